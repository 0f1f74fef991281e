"""Arguments, errors and exit statuses, whatever the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taquba import open_store
from taquba.cli import main
from taquba.cli._arguments import opened, storage_option
from taquba.cli._main import _parser
from taquba.cli._text import ago, amount, dollars, size, table, time
from taquba.errors import StoreUnavailable

from .harness import fill, made, objects

PROGRAM = [sys.executable, "-m", "taquba"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "COMMAND"),
        (["verfy"], "verfy"),
        (["verify"], "URL"),
        (["verify", "memory://"], "private to each process"),
        (["verify", "/nowhere/at/all"], "/nowhere/at/all"),
        (["verify", "file:///nowhere/at/all"], "/nowhere/at/all"),
        (["verify", "s3:/bucket"], "s3"),
        (["verify", "ftp://host/folder"], "ftp"),
        (["verify", ".", "--option", "novalue"], "KEY=VALUE"),
        (["verify", ".", "--option", "a=1"], "no storage options"),
        (["verify", ".", "--option", "read_only=false"], "read_only"),
        (["verify", ".", "--price", "put=-1"], "put=0.005"),
        (["verify", ".", "--price", "sun=1"], "put, get, list, delete"),
        (["verify", ".", "--price", "put=nan"], "put=0.005"),
        (["info", ".", "--quick", "--full"], "not allowed"),
        (["info", ".", "--scratch", "/nowhere"], "/nowhere"),
        (["info", ".", "--epochs", "many"], "many"),
        (["export", "."], "FILE"),
    ],
)
def test_a_mistake_is_one_line(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert complaint in shown.err
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("taquba")


def test_credentials_in_a_url_are_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "s3://key:hunter2@bucket/app"]) == 2
    assert "hunter2" not in capsys.readouterr().err


def test_debug_shows_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "none"), "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_unforeseen_error_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: Any) -> int:
        raise KeyError("what")

    monkeypatch.setattr("taquba.cli._verify.verify_command", broken)
    assert main(["verify", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "KeyError" in shown
    assert shown.count("\n") == 1


def test_a_store_that_fails_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: Any, **__: Any) -> int:
        raise StoreUnavailable("it is down\nand out")

    monkeypatch.setattr("taquba.cli._verify.verify_queue", broken)
    assert main(["verify", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("it is down and out\n")


@pytest.mark.parametrize("verb", ["verify", "export", "info"])
def test_help_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"\n  taquba {verb} s3://bucket/app" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert verb in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("key=abc", "abc"),
        ("key=", ""),
        ("key=a=b", "a=b"),
        ("anon=true", True),
        ("retries=3", 3),
        ('client_kwargs={"region_name": "eu-west-1"}', {"region_name": "eu-west-1"}),
        ("key={", "{"),
    ],
)
def test_a_storage_option(text: str, value: object) -> None:
    assert storage_option(text) == (text.partition("=")[0], value)


@pytest.mark.anyio
async def test_the_endpoint_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, Any] = {}

    async def spy(url: str, **options: Any) -> None:
        passed.update(options, url=url)

    monkeypatch.setattr("taquba.objectstore.open_store", spy)
    options = _parser().parse_args(
        ["info", "s3://bucket/app", "--endpoint-url", "http://localhost:9", "--option", "key=a"]
    )
    clock: Any = object()
    await opened(options, clock)
    assert passed == {
        "url": "s3://bucket/app",
        "read_only": True,
        "clock": clock,
        "driver": "fsspec",
        "endpoint_url": "http://localhost:9",
        "key": "a",
    }


# -- as a program -----------------------------------------------------------------------------


def test_as_a_program(tmp_path: Path) -> None:
    url = made(tmp_path / "app")
    done = subprocess.run([*PROGRAM, "verify", url], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert "clean" in done.stdout
    objects(tmp_path / "app", "chunks")[0].write_bytes(b"")
    done = subprocess.run([*PROGRAM, "verify", url], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (1, "")
    done = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, timeout=50)
    assert done.stdout.startswith("taquba ")
    assert done.returncode == 0


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    url = made(tmp_path / "app", lives=1)
    process = subprocess.Popen(
        [*PROGRAM, "info", url, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(50) == 141


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "import taquba.cli._verify as command\n"
        "async def wait(*_, **__):\n"
        "    print('waiting', flush=True)\n"
        "    await asyncio.get_running_loop().create_future()\n"
        "command.verify_queue = wait\n"
        "from taquba.cli import main\n"
        f"sys.exit(main(['verify', {str(tmp_path)!r}]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore this signal, and so would we.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=50)
    assert process.returncode == 130
    assert complaint == "interrupted\n"


def test_help_loads_next_to_nothing() -> None:
    program = (
        "import sys\n"
        "from taquba.cli import main\n"
        "assert main(['--help']) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    loaded = set(done.stderr.split())
    assert not loaded & {"apsw", "fsspec", "msgpack", "s3fs", "taquba.database", "taquba.queue"}


# -- on a bucket ------------------------------------------------------------------------------


def test_on_s3(s3_server: dict[str, Any], tmp_path: Path) -> None:
    import asyncio

    url = f"{s3_server['url']}/command-line"
    options: dict[str, Any] = dict(s3_server["storage_options"])
    asyncio.run(fill(url, **options))
    endpoint = options.pop("endpoint_url", None) or options["client_kwargs"].pop("endpoint_url")
    arguments = ["--endpoint-url", endpoint]
    for key, value in options.items():
        text = value if isinstance(value, str) else json.dumps(value)
        arguments += ["--option", f"{key}={text}"]

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *argv, *arguments], capture_output=True, text=True, timeout=50
        )

    done = run("verify", url, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["clean"]
    assert report["prices"]["put"] == 0.005
    done = run("info", f"{url}/", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["queues"]["mail"]["pending"] == 18
    done = run("export", url, str(tmp_path / "state.db"))
    assert (done.returncode, done.stderr) == (0, "")

    async def damage() -> str:
        store = await open_store(url, **s3_server["storage_options"])
        keys = [info.key async for info in store.list("journal/")]
        await store.delete([keys[-2]])
        await store.close()
        return keys[-2]

    key = asyncio.run(damage())
    done = run("verify", url)
    assert done.returncode == 1
    assert key in done.stdout


# -- numbers and times ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_999, "100 kB"),
        (999_999, "1.0 MB"),
        (123_456_789, "123 MB"),
        (5 * 10**17, "500 PB"),
        (5 * 10**18, "5,000 PB"),
    ],
)
def test_sizes(count: int, shown: str) -> None:
    assert size(count) == shown


def test_texts() -> None:
    assert amount(1, "entry", "entries") == "1 entry"
    assert amount(1200, "entry", "entries") == "1,200 entries"
    assert [ago(ms) for ms in (0, 1000, 119_999, 120_000, 7_200_000, 3 * 86_400_000)] == [
        "0 seconds ago",
        "1 second ago",
        "119 seconds ago",
        "2 minutes ago",
        "2 hours ago",
        "3 days ago",
    ]
    assert time(0) == "1970-01-01 00:00:00 UTC"
    assert time(2**62) == f"{2**62} ms after 1970"
    assert [dollars(value) for value in (0, 0.000012, 0.25, 1234.5)] == [
        "$ 0",
        "$ 1.2e-05",
        "$ 0.25",
        "$ 1,234.50",
    ]
    assert table([["a", "b"], ["long", "1"]], right=(1,)) == "a     b\nlong  1"
