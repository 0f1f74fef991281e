"""Bytes under keys, in a bucket, a folder, or memory; with one conditional write."""

from __future__ import annotations

from taquba.objectstore._fsspec import FsspecStore
from taquba.objectstore._local import LocalStore
from taquba.objectstore._memory import MemoryStore
from taquba.objectstore._open import open_store
from taquba.objectstore._protocol import (
    MAX_KEY_LENGTH,
    MAX_SEGMENT_LENGTH,
    ObjectInfo,
    ObjectStore,
)
from taquba.objectstore._retry import RetryingStore, RetryPolicy
from taquba.objectstore._verify import PROBE_PREFIX, verify_store

__all__ = [
    "MAX_KEY_LENGTH",
    "MAX_SEGMENT_LENGTH",
    "PROBE_PREFIX",
    "FsspecStore",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectStore",
    "RetryPolicy",
    "RetryingStore",
    "open_store",
    "verify_store",
]
