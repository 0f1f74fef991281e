#!/usr/bin/env python3
"""Start moto's S3 server (a mock in Python) for a test suite.

Only as a second opinion on wire formats and error codes: moto checks
If-None-Match and then stores without a lock between, so a create is NOT atomic
there (two winners have been seen). Never run a race test on it. Needs:
moto[s3], flask and flask-cors. Prints one JSON line, then runs until stdin closes or SIGTERM.
"""

import sys
import urllib.request
from typing import Any

from _common import HOST, Server, main, parse_args

ACCESS_KEY, SECRET_KEY, REGION = "testkey", "testsecret", "us-east-1"


def start(server: Server, port: int) -> None:
    server.spawn([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)])


def probe(port: int) -> None:
    # moto checks no signature for this, and making the bucket twice is no error.
    request = urllib.request.Request(f"http://{HOST}:{port}/{args.bucket}", data=b"", method="PUT")
    urllib.request.urlopen(request, timeout=5).close()


def describe(port: int) -> dict[str, Any]:
    endpoint = f"http://{HOST}:{port}"
    return {
        "endpoint": endpoint,
        "bucket": args.bucket,
        "url": f"s3://{args.bucket}",
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "region": REGION,
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
    sys.exit(main("moto", args, start, probe, describe))
