"""``taquba queues``, ``jobs``, ``dead`` and ``kv``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from taquba import ManualClock, PermanentError, Queue, QueueConfig
from taquba.cli import main
from taquba.cli._main import run

Show = Callable[..., Any]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "app")


def using(url: str, use: Callable[[Queue], Awaitable[Any]], **options: Any) -> Any:
    """What a process does that owns the store for a while."""

    async def process() -> Any:
        async with Queue.open(url, **options) as queue:
            return await use(queue)

    return asyncio.run(process())


def fail(*errors: Any, payload: bytes = b"x", **options: Any) -> Callable[[Queue], Awaitable[None]]:
    """Makes a dead job for each error."""

    async def use(queue: Queue) -> None:
        for error in errors:
            await queue.enqueue("mail", payload, **options)
            claim = await queue.claim("mail")
            assert claim is not None
            await queue.dead_letter(claim, error)

    return use


# -- queues ---------------------------------------------------------------------------------


def test_queues(url: str, shown: Show, told: Show) -> None:
    using(url, fail("no"))

    async def more(queue: Queue) -> None:
        await queue.enqueue_many("mail", [b""] * 1200)
        await queue.enqueue("reports", b"", delay=60)

    using(url, more)
    lines = shown("queues", url).splitlines()
    assert lines[0].split()[:6] == ["queue", "pending", "scheduled", "claimed", "done", "dead"]
    assert lines[1].split()[:6] == ["mail", "1,200", "0", "0", "0", "1"]
    queues = told("queues", url)["queues"]
    assert queues["mail"]["pending"] == 1200
    assert queues["mail"]["oldest_ready_age_seconds"] >= 0
    assert queues["reports"]["scheduled"] == 1
    assert queues["reports"]["oldest_ready_age_seconds"] is None


def test_a_store_without_jobs(url: str, shown: Show) -> None:
    async def nothing(queue: Queue) -> None: ...

    using(url, nothing)
    assert shown("queues", url) == "no queue ever had a job\n"
    assert "a job on queue 'mail'" in shown("jobs", "list", url, "mail", status=2)


def test_a_folder_that_is_no_store(tmp_path: Path, shown: Show) -> None:
    for command in (["queues"], ["jobs", "list"], ["kv", "scan"]):
        rest = ["mail"] if command == ["jobs", "list"] else []
        assert "holds no taquba store" in shown(*command, str(tmp_path), *rest, status=2)
    assert list(tmp_path.iterdir()) == []


# -- jobs -----------------------------------------------------------------------------------


def test_jobs_page_by_page(url: str, shown: Show, told: Show) -> None:
    async def three(queue: Queue) -> list[str]:
        return [x.job_id for x in await queue.enqueue_many("mail", [b"a", b"b", b"c"])]

    ids = using(url, three)
    page = told("jobs", "list", url, "mail", "--limit", "2")
    assert [job["id"] for job in page["jobs"]] == ids[:2]
    rest = told("jobs", "list", url, "mail", "--limit", "2", "--after", page["next"])
    assert [job["id"] for job in rest["jobs"]] == ids[2:]
    assert rest["next"] is None
    text = shown("jobs", "list", url, "mail", "--limit", "2")
    assert ids[0] in text and ids[2] not in text
    assert text.endswith(f"more: --after {page['next']}\n")
    assert shown("jobs", "list", url, "mail", "--state", "dead") == "no such jobs\n"


def test_filters(url: str, told: Show, shown: Show) -> None:
    using(url, fail("Timeout of 3 s", "refused", headers={"customer": "7"}))
    using(url, fail("Timeout of 4 s"))

    def errors(*options: str) -> list[str]:
        jobs = told("dead", "list", url, "mail", *options)["jobs"]
        return [job["last_error"] for job in jobs]

    assert errors() == ["Timeout of 3 s", "refused", "Timeout of 4 s"]
    assert errors("--error", "Timeout") == ["Timeout of 3 s", "Timeout of 4 s"]
    assert errors("--header", "customer=7") == ["Timeout of 3 s", "refused"]
    assert errors("--header", "customer=7", "--error", "3 s") == ["Timeout of 3 s"]
    assert errors("--since", "-1h") == errors()
    assert errors("--until", "-1h") == []
    assert errors("--since", "2099-01-01T00:00Z") == []
    assert "Timeout of 3 s" in shown("dead", "list", url, "mail")
    twice = ["--header", "a=1", "--header", "a=2"]
    assert "twice" in shown("dead", "list", url, "mail", *twice, status=2)
    assert "--since soon" in shown("dead", "list", url, "mail", "--since", "soon", status=2)


def test_one_job(url: str, told: Show, shown: Show) -> None:
    async def use(queue: Queue) -> str:
        job_id = (
            await queue.enqueue(
                "mail", "grüße".encode(), headers={"customer": "7"}, max_attempts=2, priority=5
            )
        ).job_id
        for error in (ValueError("first\nwith a line"), PermanentError("second")):
            claim = await queue.claim("mail")
            assert claim is not None
            await queue.nack(claim, error)
        return job_id

    job_id = using(url, use, config=QueueConfig(backoff_base=0))
    for verb in ("jobs", "dead"):
        job = told(verb, "show", url, job_id)
        assert (job["state"], job["attempts"], job["max_attempts"]) == ("dead", 2, 2)
        assert (job["payload"], job["payload_size"]) == ("grüße", 7)
        assert (job["error_type"], job["last_error"]) == ("taquba.errors.PermanentError", "second")
        assert [each["outcome"] for each in job["history"]] == ["retried", "dead_lettered"]
        assert job["headers"] == {"customer": "7"}
    text = shown("dead", "show", url, job_id)
    for part in ("customer: 7", "second", "first with a line", "dead lettered", "grüße", "2 of 2"):
        assert part in text
    assert "there is no job 'nobody'" in shown("jobs", "show", url, "nobody", status=2)


def test_a_job_that_is_not_dead(url: str, shown: Show) -> None:
    async def use(queue: Queue) -> str:
        return (await queue.enqueue("mail", b"\xff\x00")).job_id

    job_id = using(url, use)
    assert "is pending" in shown("dead", "show", url, job_id, status=2)
    assert "ff00" in shown("jobs", "show", url, job_id)


def test_what_a_terminal_would_obey_is_not_written(url: str, shown: Show) -> None:
    using(url, fail("\x1b[2Jgone", headers={"a": "b"}))
    assert "\x1b" not in shown("dead", "list", url, "mail")


@pytest.mark.parametrize("size", [3, 300_000], ids=["inline", "an object"])
def test_a_payload_is_written_as_it_is(
    url: str, size: int, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    payload = os.urandom(size)

    async def use(queue: Queue) -> str:
        return (await queue.enqueue("mail", payload)).job_id

    job_id = using(url, use)
    assert main(["jobs", "show", url, job_id, "--payload"]) == 0
    assert capfdbinary.readouterr().out == payload
    assert main(["jobs", "show", url, job_id, "--payload", "--json"]) == 2


def test_a_payload_that_is_gone_does_not_hide_its_job(url: str, shown: Show) -> None:
    async def use(queue: Queue) -> str:
        return (await queue.enqueue("mail", bytes(300_000))).job_id

    job_id = using(url, use)
    for file in (Path(url) / "payloads").iterdir():
        file.unlink()
    assert "300 kB" in shown("jobs", "show", url, job_id)
    assert "payload" in shown("jobs", "show", url, job_id, "--payload", status=2)


# -- redriving ------------------------------------------------------------------------------


def test_redriving_what_an_owner_left(url: str, told: Show, shown: Show) -> None:
    using(url, fail("Timeout", "Timeout", "refused"), heartbeat=60)
    assert told("dead", "redrive", url, "mail", "--error", "Timeout", "--limit", "1") == {
        "requeued": 1,
        "more": True,
        "refused": [],
    }
    # This command was an owner, and said that it closed.
    assert told("dead", "redrive", url, "mail", "--all")["requeued"] == 2
    queues = told("queues", url)["queues"]
    assert (queues["mail"]["pending"], queues["mail"]["dead"]) == (3, 0)


@pytest.mark.parametrize("owner", ["without heartbeat", "killed", "running", "silent after one"])
def test_it_is_refused_while_there_may_be_an_owner(url: str, shown: Show, owner: str) -> None:
    beat = {} if owner == "without heartbeat" else {"heartbeat": 60}
    using(url, fail("no"), **beat)

    async def process() -> None:
        if owner == "without heartbeat":
            return
        options = {} if owner == "silent after one" else beat
        queue = await Queue.open(url, **options)
        try:
            status = await asyncio.to_thread(main, ["dead", "redrive", url, "mail", "--all"])
            assert status == 2
            await queue.enqueue("mail", b"")  # it is not fenced
        finally:
            await queue.close()

    if owner in ("running", "silent after one"):
        asyncio.run(process())
        return
    if owner == "killed":
        code = (
            "import asyncio, os\nfrom taquba import Queue\n"
            f"async def main():\n    await Queue.open({url!r}, heartbeat=60)\n    os._exit(9)\n"
            "asyncio.run(main())"
        )
        import subprocess
        import sys

        assert subprocess.run([sys.executable, "-c", code], timeout=50).returncode == 9
    complaint = shown("dead", "redrive", url, "mail", "--all", status=2)
    assert "may be owned by a running process" in complaint
    assert "--take-over" in complaint


def test_naming_jobs(url: str, told: Show, capsys: pytest.CaptureFixture[str]) -> None:
    using(url, fail("one", "two"), heartbeat=60)
    first, second = (job["id"] for job in told("dead", "list", url, "mail")["jobs"])
    argv = ["dead", "redrive", url, "mail", "--job", first, "--job", "nobody", "--take-over"]
    assert main(argv) == 2
    out = capsys.readouterr().out
    assert "put back 1 job\n" in out
    assert "not put back: there is no job 'nobody'" in out
    assert [job["id"] for job in told("dead", "list", url, "mail")["jobs"]] == [second]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "say which jobs"),
        (["--job", "a", "--all"], "neither --all"),
        (["--job", "a", "--limit", "1"], "neither --all"),
        (["--all", "--limit", "0"], "whole number"),
    ],
)
def test_a_mistake_changes_nothing(
    url: str, options: list[str], complaint: str, shown: Show
) -> None:
    using(url, fail("no"), heartbeat=60)
    before = sorted(os.listdir(Path(url) / "journal"))
    assert complaint in shown("dead", "redrive", url, "mail", *options, status=2)
    assert sorted(os.listdir(Path(url) / "journal")) == before


def test_redriving_sweeps_nothing(url: str, told: Show, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own configuration is not the owner's, who may keep dead jobs for ever."""
    clock = ManualClock()
    keep = QueueConfig(keep_dead=None, keep_done=10**9)
    using(url, fail("one", "two"), heartbeat=60, clock=clock, config=keep)
    asyncio.run(clock.advance(90 * 86400))
    argv = ["dead", "redrive", url, "mail", "--error", "one"]
    assert run(argv, clock=clock) == 0
    assert "put back 1 job" in capsys.readouterr().out
    assert [job["last_error"] for job in told("dead", "list", url, "mail")["jobs"]] == ["two"]


# -- keys and values ------------------------------------------------------------------------


async def fill(queue: Queue) -> None:
    for key in ("orders/1", "orders/2", "orders/3", "other"):
        await queue.kv.put(key, key.encode())
    await queue.kv.put(b"\x00\xff", b"\x01")


def test_a_value(url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    using(url, fill)
    assert main(["kv", "get", url, "orders/2"]) == 0
    assert capfdbinary.readouterr().out == b"orders/2"
    assert main(["kv", "get", url, "00ff", "--hex"]) == 0
    assert capfdbinary.readouterr().out == b"\x01"
    assert main(["kv", "get", url, "nothing"]) == 2
    assert main(["kv", "get", url, "zz", "--hex"]) == 2


def test_a_scan(url: str, told: Show, shown: Show) -> None:
    using(url, fill)
    page = told("kv", "scan", url, "orders/", "--limit", "2")
    assert [each["key"] for each in page["entries"]] == ["orders/1", "orders/2"]
    assert page["next"] == "--after orders/2"
    rest = told("kv", "scan", url, "orders/", *page["next"].split())
    assert [each["value"] for each in rest["entries"]] == ["orders/3"]
    text = shown("kv", "scan", url, "--limit", "1")
    assert "0x00ff" in text and "0x01" in text
    rest = told("kv", "scan", url, *text.splitlines()[-1].split()[1:])
    assert len(rest["entries"]) == 4
    assert shown("kv", "scan", url, "nothing/") == "no such keys\n"
