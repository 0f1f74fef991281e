#!/usr/bin/env python3
"""Start Azurite's blob service (Microsoft's Azure Storage emulator) for a test suite.

Needs: node and the npm package `azurite` (looked for in $AZURITE_BLOB_BIN, in
node_modules/.bin of the current folder and of every folder above this script,
then on PATH) and azure-storage-blob (adlfs brings it) to create the container.
Prints one JSON line, then runs until stdin closes or SIGTERM.
"""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from _common import HOST, Server, find_program, main, parse_args

# The account and key that Microsoft publishes for every emulator; no secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory", action="store_true", help="keep the data in memory only")


def connection_string(port: int) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint=http://{HOST}:{port}/{ACCOUNT};"
    )


def start(server: Server, port: int) -> None:
    here = [Path.cwd(), *Path(__file__).resolve().parents]
    argv = [
        find_program(
            "azurite-blob", "AZURITE_BLOB_BIN", [d / "node_modules" / ".bin" for d in here]
        ),
        "--blobHost",
        HOST,
        "--blobPort",
        str(port),
        "--silent",
        "--disableTelemetry",  # on by default: it would phone home
        "--skipApiVersionCheck",  # the SDK is often ahead of the emulator
        "--disableProductStyleUrl",  # account always in the path
    ]
    argv += ["--inMemoryPersistence"] if args.memory else ["--location", str(server.data)]
    server.spawn(argv)


def probe(port: int) -> None:
    from azure.core.exceptions import ResourceExistsError  # pyright: ignore[reportMissingImports]
    from azure.storage.blob import BlobServiceClient  # pyright: ignore[reportMissingImports]

    with BlobServiceClient.from_connection_string(
        connection_string(port), retry_total=0, connection_timeout=2, read_timeout=10
    ) as service:
        container = service.get_container_client(args.bucket)
        with contextlib.suppress(ResourceExistsError):
            container.create_container()
        container.upload_blob("__ready__", b"ready", overwrite=True)
        container.delete_blob("__ready__")


def describe(port: int) -> dict[str, Any]:
    return {
        "endpoint": f"http://{HOST}:{port}/{ACCOUNT}",
        "bucket": args.bucket,
        "url": f"az://{args.bucket}",
        "account_name": ACCOUNT,
        "account_key": KEY,
        # fsspec.filesystem("az", **storage_options)
        "storage_options": {"account_name": ACCOUNT, "connection_string": connection_string(port)},
        # obstore.store.AzureStore(bucket, **obstore)
        "obstore": {
            "account_name": ACCOUNT,
            "account_key": KEY,
            "endpoint": f"http://{HOST}:{port}/{ACCOUNT}",
            "client_options": {"allow_http": True},
        },
    }


if __name__ == "__main__":
    args = parse_args(__doc__, options)
    sys.exit(main("azurite", args, start, probe, describe))
