"""The fixtures that pytest finds wherever taquba is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ANYIO = """
    import pytest
    from datetime import timedelta
    from taquba.workflow import Continue, Succeed

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend():
        return "asyncio"

    async def runner(step):
        return Continue(b"", after=timedelta(days=7)) if step.number == 0 else Succeed(b"done")

    @pytest.fixture
    async def sandbox(taquba_sandbox):
        async with taquba_sandbox(runner) as sandbox:
            yield sandbox

    async def test_in_the_test(taquba_sandbox, taquba_clock, taquba_store):
        async with taquba_sandbox(runner) as sandbox:
            assert sandbox.clock is taquba_clock and sandbox.store is taquba_store
            await sandbox.runtime.submit(b"", run_id="r")
            await taquba_clock.advance(timedelta(days=7))
            assert (await sandbox.runtime.outcome("r")).result == b"done"

    async def test_in_a_fixture(sandbox):
        await sandbox.runtime.submit(b"", run_id="r")
        await sandbox.crash()
        await sandbox.reopen()
        await sandbox.wait("r", within=timedelta(days=8))
"""
PLAIN = """
    import asyncio

    def test_without_any_plugin(taquba_sandbox):
        seen = []

        async def handler(delivery):
            seen.append(delivery.payload)

        async def main():
            async with taquba_sandbox(workers={"work": handler}) as sandbox:
                await sandbox.queue.enqueue("work", b"1", delay=60)
                await sandbox.advance(60)

        asyncio.run(main())
        assert seen == [b"1"]

    def test_each_test_has_its_own(taquba_clock, taquba_store):
        assert taquba_clock.monotonic() == 0
        assert len(taquba_store) == 0
"""
PLUGIN = ("-p", "taquba.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:asyncio", "-Werror")


@pytest.mark.parametrize(("tests", "count"), [(ANYIO, 2), (PLAIN, 2)], ids=["anyio", "plain"])
def test_the_fixtures_work(pytester: pytest.Pytester, tests: str, count: int) -> None:
    pytester.makepyfile(tests)
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=count)


def test_the_fixtures_are_listed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*PLUGIN, "--fixtures")
    for name in ("taquba_clock", "taquba_sandbox", "taquba_store"):
        result.stdout.fnmatch_lines([f"{name}*", "    A clock*", "*"][:1])


def test_pytest_finds_the_plugin_under_its_own_name() -> None:
    """Under another one, ``-p taquba.pytest_plugin`` would register it a second time."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    found = project["project"]["entry-points"]["pytest11"]
    assert found == {"taquba.pytest_plugin": "taquba.pytest_plugin"}


def test_the_plugin_imports_nothing_until_it_is_used() -> None:
    program = "import pytest, sys, taquba.pytest_plugin; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"apsw", "anyio", "msgpack", "taquba.queue", "taquba.testing"}
