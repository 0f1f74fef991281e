r"""The bytes of one journal entry: a fixed binary header, then an opaque body.

::

    offset  size
         0     8  magic, b"TAQUBAJ\n"
         8     2  format version
        10     1  kind: 1 = ordinary, 2 = epoch
        11     1  flags: 1 = ahead
        12     4  window of the store
        16     8  epoch
        24     8  seq
        32     8  durable_before: every seq below it was acknowledged when this was sealed
        40     8  commit time, milliseconds since the Unix epoch, signed
        48    16  writer id
        64    32  digest at the place before; zero if ahead
        96     8  length of the body
       104    32  sha256 of the body
       136     4  crc32 of the 136 bytes before
       140        body

An epoch entry is *ahead* when it was created in the path of a log that kept moving, so that
its writer could not know what would come before it; see `taquba.journal._takeover`. All
numbers are big-endian. The digest of an entry is the sha256 of all its bytes, so
``sha256sum`` on the object gives what the next entry must name.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

from taquba.errors import CorruptStore, IncompatibleStore

__all__ = ["FORMAT_VERSION", "HEADER_SIZE", "Entry", "Kind", "decode_entry", "encode_entry"]

FORMAT_VERSION = 1

_AHEAD = 1
_MAGIC = b"TAQUBAJ\n"
_PREAMBLE = struct.Struct(">8sH")
_FIELDS = struct.Struct(">8sHBBIQQQq16s32sQ32s")
_CHECKSUM = struct.Struct(">I")
HEADER_SIZE = _FIELDS.size + _CHECKSUM.size


class Kind(IntEnum):
    """What an entry is for."""

    ORDINARY = 1
    """A batch of transactions."""
    EPOCH = 2
    """A takeover: the log goes on `window` later, with this entry's epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the journal.

    Attributes:
        kind: Ordinary or epoch.
        epoch: The reign of one writer; each takeover is one more.
        seq: The place in the log.
        writer: 16 random bytes, drawn when the writer opened the store.
        previous: Digest at the place before this one; zero if it is ahead.
        committed_at_ms: Wall-clock time at the seal, by the writer's clock.
        window: How many entries the store's writers may have in flight.
        durable_before: Every seq below this was acknowledged when the entry was sealed.
        body: Opaque; of an epoch entry, the metadata its writer passed.
        ahead: An epoch entry that was created in the path of a log that kept moving.
        digest: sha256 of the whole encoded entry.
    """

    kind: Kind
    epoch: int
    seq: int
    writer: bytes
    previous: bytes
    committed_at_ms: int
    window: int
    durable_before: int
    body: bytes
    ahead: bool
    digest: bytes


def encode_entry(
    *,
    kind: Kind,
    epoch: int,
    seq: int,
    writer: bytes,
    previous: bytes,
    committed_at_ms: int,
    window: int,
    durable_before: int,
    body: bytes,
    ahead: bool = False,
) -> tuple[bytes, bytes]:
    """The encoded entry, and its digest."""
    fields = _FIELDS.pack(
        _MAGIC,
        FORMAT_VERSION,
        kind,
        _AHEAD if ahead else 0,
        window,
        epoch,
        seq,
        durable_before,
        committed_at_ms,
        writer,
        previous,
        len(body),
        sha256(body).digest(),
    )
    data = b"".join((fields, _CHECKSUM.pack(zlib.crc32(fields)), body))
    return data, sha256(data).digest()


def decode_entry(key: str, data: bytes) -> Entry:
    """The entry that `data`, found under `key`, holds.

    Raises:
        IncompatibleStore: A newer taquba wrote it.
        CorruptStore: It is damaged; the message names the object and the damage.
    """
    if len(data) < _PREAMBLE.size:
        raise _damaged(key, f"it has {len(data)} bytes, too few for a header")
    magic, version = _PREAMBLE.unpack_from(data)
    if magic != _MAGIC:
        raise _damaged(key, f"it begins with {magic!r} instead of {_MAGIC!r}")
    if version > FORMAT_VERSION:
        raise IncompatibleStore(
            f"journal entry {key!r} has format version {version}, this taquba reads up to "
            f"{FORMAT_VERSION}: upgrade this process"
        )
    if version < 1:
        raise _damaged(key, f"its format version is {version}")
    if len(data) < HEADER_SIZE:
        raise _damaged(key, f"it has {len(data)} bytes, too few for a header")
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if zlib.crc32(data[: _FIELDS.size]) != checksum:
        raise _damaged(key, "its header does not match its checksum")
    (
        _,
        _,
        kind,
        flags,
        window,
        epoch,
        seq,
        durable_before,
        committed_at_ms,
        writer,
        previous,
        length,
        body_digest,
    ) = _FIELDS.unpack_from(data)
    body = data[HEADER_SIZE:]
    if len(body) != length:
        raise _damaged(key, f"its body has {len(body)} bytes instead of {length}")
    if sha256(body).digest() != body_digest:
        raise _damaged(key, "its body does not match its sha256")
    if kind not in (Kind.ORDINARY, Kind.EPOCH):
        raise _damaged(key, f"its kind is {kind}")
    if flags not in (0, _AHEAD if kind == Kind.EPOCH else 0) or window < 1 or epoch < 1:
        raise _damaged(key, f"it says window {window}, epoch {epoch}, flags {flags}")
    return Entry(
        kind=Kind(kind),
        epoch=epoch,
        seq=seq,
        writer=writer,
        previous=previous,
        committed_at_ms=committed_at_ms,
        window=window,
        durable_before=durable_before,
        body=body,
        ahead=flags == _AHEAD,
        digest=sha256(data).digest(),
    )


def _damaged(key: str, reason: str) -> CorruptStore:
    return CorruptStore(
        f"journal entry {key!r} is damaged: {reason}. Restore the object from a backup or an "
        f"older object version",
        key=key,
    )
