"""A follower of a real bucket, with credentials that may only read and list."""

from __future__ import annotations

from typing import Any

import pytest

from taquba import Follower, Queue, open_store
from taquba.errors import StoreAccessDenied
from tests.queue.harness import counts, take

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def test_credentials_that_only_read_are_enough(s3_server: dict[str, Any]) -> None:
    url = f"{s3_server['url']}/follower"
    options = s3_server["storage_options"]
    reading = {**options, **s3_server["reader"]}
    with pytest.raises(StoreAccessDenied):
        await open_store(url, **reading)  # which verifies that it may write
    async with (
        Queue.open(url, storage_options=options) as queue,
        Follower.open(url, storage_options=reading, poll_interval=60) as follower,
    ):
        enqueued = await queue.enqueue("q", b"data")
        await queue.kv.put("key", b"value")
        await follower.wait_for(queue.position)
        job = await follower.get_job(enqueued.job_id)
        assert job is not None
        assert job.payload == b"data"
        assert await follower.kv.get("key") == b"value"
        await queue._core.database.checkpoint()
        await queue.ack(await take(queue))
        async with Follower.open(url, storage_options=reading, poll_interval=60) as late:
            assert await late.stats("q") == counts(done=1)
            assert await late.read("SELECT * FROM kv") == await queue.read("SELECT * FROM kv")
        async with Queue.open(url, storage_options=options) as successor:
            await successor.enqueue("q", b"more")
            await follower.refresh()
            assert await follower.stats("q") == counts(pending=1, done=1)
