"""Checkpoint manifests: readable JSON that says where in the log a saved state belongs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, cast

from taquba.errors import CorruptStore, IncompatibleStore, ObjectExists, ObjectNotFound
from taquba.journal._position import EpochMark, Position, seq_of_key
from taquba.objectstore import ObjectStore

__all__ = [
    "CHECKPOINT_PREFIX",
    "MANIFEST_VERSION",
    "Checkpoint",
    "checkpoint_key",
    "list_checkpoints",
    "newest_checkpoint",
    "publish_checkpoint",
    "read_checkpoint",
]

CHECKPOINT_PREFIX = "checkpoints/"
MANIFEST_VERSION = 1
_SUFFIX = ".json"
_FORMAT = "taquba-checkpoint"
_MAX_LOOKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A saved state, and the place in the log that it includes everything before.

    Attributes:
        position: The place.
        created_at_ms: Wall-clock time of its writer.
        writer: Hex id of its writer.
        content: What the state machine needs to restore itself; must survive JSON.
        committed_at_ms: The latest commit time of all entries before it, by their writers'
            clocks. `None` if there are none, or if nobody noted it.
    """

    position: Position
    created_at_ms: int
    writer: str
    content: dict[str, Any] = field(default_factory=dict[str, Any])
    committed_at_ms: int | None = None

    @property
    def as_of_ms(self) -> int:
        """A time at which all that it holds was committed."""
        return self.created_at_ms if self.committed_at_ms is None else self.committed_at_ms


def checkpoint_key(seq: int) -> str:
    """The key of the manifest of the checkpoint at `seq`."""
    return f"{CHECKPOINT_PREFIX}{seq:020d}{_SUFFIX}"


async def list_checkpoints(store: ObjectStore) -> list[int]:
    """The seqs of all checkpoints there are, ascending."""
    seqs: list[int] = []
    async for info in store.list(CHECKPOINT_PREFIX):
        seq = seq_of_key(info.key, CHECKPOINT_PREFIX, _SUFFIX)
        if seq is not None:
            seqs.append(seq)
    return sorted(seqs)


async def read_checkpoint(store: ObjectStore, seq: int) -> Checkpoint | None:
    """The checkpoint at `seq`; `None` if it is not there (any more).

    Raises:
        CorruptStore: Its manifest is damaged.
        IncompatibleStore: A newer taquba wrote it.
    """
    key = checkpoint_key(seq)
    try:
        data = await store.get(key)
    except ObjectNotFound:
        return None
    checkpoint = decode_checkpoint(key, data)
    if checkpoint.position.seq != seq:
        raise _damaged(key, f"it says that it is number {checkpoint.position.seq}")
    return checkpoint


async def newest_checkpoint(store: ObjectStore) -> Checkpoint | None:
    """The checkpoint with the highest seq; `None` if there is none yet.

    Raises:
        CorruptStore: Its manifest is damaged.
        IncompatibleStore: A newer taquba wrote it.
    """
    seq = -1
    for _ in range(_MAX_LOOKS):
        seqs = await list_checkpoints(store)
        if not seqs:
            return None
        seq = seqs[-1]
        checkpoint = await read_checkpoint(store, seq)
        if checkpoint is not None:
            return checkpoint
        # It was collected between the two requests, so there must be a newer one.
    raise _damaged(checkpoint_key(seq), "it is listed, and yet cannot be read")


async def publish_checkpoint(store: ObjectStore, checkpoint: Checkpoint) -> Checkpoint:
    """Make a checkpoint visible. Call it only when every entry before its seq is stored.

    Publishing the same place twice is fine; the first manifest stays.

    Returns:
        The checkpoint that is visible at this place now; its content may be another's.

    Raises:
        CorruptStore: Another history has a checkpoint at this place.
        StoreError: The store failed; the checkpoint may be visible, now or later.
    """
    seq = checkpoint.position.seq
    key = checkpoint_key(seq)
    try:
        await store.create(key, encode_checkpoint(checkpoint))
    except ObjectExists:
        found = await read_checkpoint(store, seq)
        if found is None:
            return checkpoint  # collected meanwhile
        if found.position != checkpoint.position:
            raise _damaged(
                key,
                f"its entries end with digest {found.position.digest.hex()}, ours with "
                f"{checkpoint.position.digest.hex()}",
            ) from None
        return found
    return checkpoint


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The manifest of a checkpoint."""
    position = checkpoint.position
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "version": MANIFEST_VERSION,
        "seq": position.seq,
        "epoch": position.epoch,
        "digest": position.digest.hex(),
        "window": position.window,
        "epochs": [[mark.seq, mark.epoch, mark.resume_at] for mark in position.epochs],
        "committed_at_ms": checkpoint.committed_at_ms,
        "created_at_ms": checkpoint.created_at_ms,
        "writer": checkpoint.writer,
        "content": checkpoint.content,
    }
    manifest["sha256"] = _self_digest(manifest)
    return json.dumps(manifest, indent=1).encode()


def decode_checkpoint(key: str, data: bytes) -> Checkpoint:
    """The checkpoint that `data`, found under `key`, describes.

    Raises:
        CorruptStore: It is damaged.
        IncompatibleStore: A newer taquba wrote it.
    """
    try:
        parsed: Any = json.loads(data)
    except ValueError as error:
        raise _damaged(key, f"it is not JSON ({error})") from None
    if not isinstance(parsed, dict):
        raise _damaged(key, "it is not a JSON object")
    manifest = cast("dict[str, Any]", parsed)
    if manifest.get("format") != _FORMAT:
        raise _damaged(key, f"its format is {manifest.get('format')!r}, not {_FORMAT!r}")
    version = manifest.get("version")
    if not isinstance(version, int) or version < 1:
        raise _damaged(key, f"its version is {version!r}")
    if version > MANIFEST_VERSION:
        raise IncompatibleStore(
            f"checkpoint {key!r} has version {version}, this taquba reads up to "
            f"{MANIFEST_VERSION}: upgrade this process"
        )
    digest = manifest.pop("sha256", None)
    if digest != _self_digest(manifest):
        raise _damaged(key, "its content does not match its sha256")
    try:
        position = Position(
            seq=_number(manifest["seq"]),
            epoch=_number(manifest["epoch"]),
            digest=bytes.fromhex(manifest["digest"]),
            window=_number(manifest["window"]),
            epochs=tuple(EpochMark(*map(_number, mark)) for mark in manifest["epochs"]),
        )
        checkpoint = Checkpoint(
            position=position,
            created_at_ms=_number(manifest["created_at_ms"]),
            writer=str(manifest["writer"]),
            content=dict(manifest["content"]),
            committed_at_ms=_number_or_none(manifest.get("committed_at_ms")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(key, f"it lacks a field, or one has the wrong type ({error!r})") from None
    _check_position(key, position)
    return checkpoint


def _check_position(key: str, position: Position) -> None:
    if len(position.digest) != 32 or position.window < 1 or not position.epochs:
        raise _damaged(key, "its place in the log is incomplete")
    last = position.epochs[-1]
    if last.epoch != position.epoch or last.resume_at > position.seq:
        raise _damaged(key, f"its last epoch {last} does not lead to seq {position.seq}")
    at = 0
    for number, mark in enumerate(position.epochs, start=1):
        if mark.epoch != number or mark.seq < at or mark.resume_at != mark.seq + position.window:
            raise _damaged(key, f"its table of epochs is out of order at {mark}")
        at = mark.resume_at


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _number_or_none(value: Any) -> int | None:
    return None if value is None else _number(value)


def _self_digest(manifest: dict[str, Any]) -> str:
    """What a manifest says of itself under ``sha256``, which is not in `manifest`."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(canonical.encode()).hexdigest()


def _damaged(key: str, reason: str) -> CorruptStore:
    return CorruptStore(
        f"checkpoint {key!r} is damaged: {reason}. Restore the object from a backup or an "
        f"older object version",
        key=key,
    )
