"""Proving that a store refuses the second create."""

from __future__ import annotations

from contextlib import suppress

from taquba.clock import Clock
from taquba.errors import ObjectExists, StoreError, StoreUnavailable, UnsafeStore
from taquba.objectstore._protocol import ObjectStore
from taquba.objectstore._retry import Attempts, RetryPolicy

__all__ = ["VERIFICATION_KEY", "verify_store"]

VERIFICATION_KEY = "create-if-absent"
"""The object that `verify_store` tries to create. It stays in the store."""


async def verify_store(
    store: ObjectStore, *, clock: Clock, policy: RetryPolicy | None = None
) -> None:
    """Prove that the store refuses to create an object that is there already.

    Some stores, and some versions of their clients, ignore the condition without a word, and
    overwrite. Nothing of taquba would be safe there. (That two creates *at once* cannot both
    succeed is not proved by this: `taquba.testing.ObjectStoreConformance` tries.)

    The object `VERIFICATION_KEY` is created, and stays. So the proof takes two requests the
    first time a store is opened, and one from then on, namely a create that is refused. That
    is cheap enough for every opening, and it must be every one, since the client, a proxy or
    the service may have changed since the last. It also finds out whether the bucket exists
    and whether the credentials allow to write.

    Raises:
        UnsafeStore: The second create was not refused.
    """
    for _ in range(2):
        if await _is_refused(store, clock, RetryPolicy() if policy is None else policy):
            return
    with suppress(StoreError):  # a leftover is harmless, and what follows matters more
        await store.delete([VERIFICATION_KEY])
    raise UnsafeStore(
        f"{store!r} does not refuse to create an object that exists, but overwrites it, so two "
        "processes could destroy each other's work: use another store (or, if a proxy or an "
        "old client drops the If-None-Match header, put that right)",
        operation="create",
        key=VERIFICATION_KEY,
    )


async def _is_refused(store: ObjectStore, clock: Clock, policy: RetryPolicy) -> bool:
    unique = clock.random_bytes(16).hex()
    data = f"This object proves that the store creates an object only once. {unique}\n"
    attempts = Attempts(clock, policy)
    while True:
        try:
            await store.create(VERIFICATION_KEY, data.encode())
            return False
        except ObjectExists:
            return True  # also when it was our own lost request: its repetition was refused
        except StoreUnavailable as error:
            failed = error
        await attempts.pause(failed)
