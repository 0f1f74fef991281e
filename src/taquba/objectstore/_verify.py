"""Proving that a store refuses the second create."""

from __future__ import annotations

import logging

from taquba.clock import Clock
from taquba.errors import ObjectExists, StoreError, StoreUnavailable, UnsafeStore
from taquba.objectstore._protocol import ObjectStore
from taquba.objectstore._retry import Attempts, RetryPolicy

__all__ = ["PROBE_PREFIX", "verify_store"]

logger = logging.getLogger("taquba.objectstore")

PROBE_PREFIX = "probes/"
"""Where `verify_store` makes its objects, ``probes/{milliseconds:015d}-{random}``.

It removes what it made. What is left of one that was killed, or may not delete, is harmless:
nobody reads it, and everything below this prefix may be deleted at any time.
"""


async def verify_store(
    store: ObjectStore, *, clock: Clock, policy: RetryPolicy | None = None
) -> None:
    """Prove that the store refuses to create an object that is there already.

    Some stores, and some versions of their clients, ignore the condition without a word, and
    overwrite. Nothing of taquba would be safe there. (That two creates *at once* cannot both
    succeed is not proved by this: `taquba.testing.ObjectStoreConformance` tries.)

    A probe object is created, created again, which has to be refused, and removed: three
    requests. Its key is random and never used again, since a late repetition of a create may
    bring an object back that was deleted. It also finds out whether the bucket exists and
    whether the credentials allow to write.

    Raises:
        UnsafeStore: The second create was not refused.
    """
    policy = RetryPolicy() if policy is None else policy
    key = f"{PROBE_PREFIX}{clock.now_ms():015d}-{clock.random_bytes(16).hex()}"
    refused = False
    for _ in range(2):
        refused = refused or await _is_refused(store, key, clock, policy)
    try:
        await store.delete([key])
    except StoreError as error:
        # It is in nobody's way, and whether the store is safe is known.
        logger.info("the probe %r is left in %r: %s", key, store, error)
    if not refused:
        raise UnsafeStore(
            f"{store!r} does not refuse to create an object that exists, but overwrites it, so "
            "two processes could destroy each other's work: use another store (or, if a proxy "
            "or an old client drops the If-None-Match header, put that right)",
            operation="create",
            key=key,
        )


async def _is_refused(store: ObjectStore, key: str, clock: Clock, policy: RetryPolicy) -> bool:
    unique = clock.random_bytes(16).hex()
    data = f"This object tries out whether the store creates it only once. {unique}\n".encode()
    attempts = Attempts(clock, policy)
    while True:
        try:
            await store.create(key, data)
            return False
        except ObjectExists:
            return True  # also when it was our own lost request: its repetition was refused
        except StoreUnavailable as error:
            failed = error
        await attempts.pause(failed)
