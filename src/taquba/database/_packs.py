"""Packs: the objects that hold the blocks of a checkpoint's database file.

The raw content of a pack is the number of the upload that made it, in eight bytes, the places of
its blocks, ascending, four bytes each (all big-endian), and then the blocks. It is stored
compressed, under a name that ends with its sha256.

The number makes each upload's packs unlike those of all others of its epoch, so that a name that
was deleted is never used again: a deletion whose answer was lost may still happen much later.
"""

from __future__ import annotations

import itertools
import re
import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from taquba.errors import CorruptStore

__all__ = ["CHUNK_PREFIX", "Pack", "chunk_key", "decode_pack", "encode_pack", "is_chunk_key"]

CHUNK_PREFIX = "chunks/"
_KEY = re.compile(re.escape(CHUNK_PREFIX) + r"[0-9]{10}-[0-9a-f]{64}")
_LEVEL = 1
"""zlib's fastest: checkpoints should not take the processor from the work."""
_SAMPLE = 32 * 1024
_WORTHWHILE = 0.8
"""Content of which a sample compresses to no less than this share is stored as it is."""
_NUMBER = 4
_UPLOAD = 8


@dataclass(frozen=True, slots=True)
class Pack:
    """What a manifest says of a pack."""

    digest: str
    """Hex sha256 of the raw content."""
    blocks: int
    """How many it holds."""
    size: int
    """Bytes of the object."""


def chunk_key(epoch: int, digest: str) -> str:
    """The key of the pack that a writer with this epoch stored."""
    return f"{CHUNK_PREFIX}{epoch:010d}-{digest}"


def is_chunk_key(key: str) -> bool:
    """Whether a pack can have this key; others are not ours."""
    return _KEY.fullmatch(key) is not None


def encode_pack(places: Sequence[int], content: bytes, *, upload: int = 0) -> tuple[Pack, bytes]:
    """The pack with these blocks of a file, one after the other in `content`; and the object.

    `upload` tells uploads by the same writer apart.
    """
    numbers = array("I", places)
    if sys.byteorder == "little":
        numbers.byteswap()
    raw = upload.to_bytes(_UPLOAD) + numbers.tobytes() + content
    sample = raw[len(raw) // 2 :][:_SAMPLE]
    compressible = len(zlib.compress(sample, _LEVEL)) < _WORTHWHILE * len(sample)
    data = zlib.compress(raw, _LEVEL if compressible else 0)
    return Pack(sha256(raw).hexdigest(), len(places), len(data)), data


def decode_pack(
    pack: Pack, key: str, data: bytes, block_size: int, checkpoint: str
) -> tuple[array[int], memoryview]:
    """Places and blocks of a pack, of which `data` was found under `key`.

    `checkpoint` is for errors.

    Raises:
        CorruptStore: It is not what the manifest says.
    """
    if len(data) != pack.size:
        raise damaged(key, checkpoint, f"it has {len(data)} bytes instead of {pack.size}")
    try:
        raw = zlib.decompress(data)
    except zlib.error as error:
        raise damaged(key, checkpoint, f"it cannot be decompressed ({error})") from error
    if sha256(raw).hexdigest() != pack.digest:
        raise damaged(key, checkpoint, "its content does not match its name")
    expected = _UPLOAD + pack.blocks * (_NUMBER + block_size)
    if len(raw) != expected:
        raise damaged(key, checkpoint, f"it holds {len(raw)} bytes instead of {expected}")
    places = array("I", raw[_UPLOAD : _UPLOAD + pack.blocks * _NUMBER])
    if sys.byteorder == "little":
        places.byteswap()
    if any(one >= other for one, other in itertools.pairwise(places)):
        raise damaged(key, checkpoint, "the places of its blocks are not in order")
    return places, memoryview(raw)[_UPLOAD + pack.blocks * _NUMBER :]


def damaged(key: str, checkpoint: str, reason: str) -> CorruptStore:
    return CorruptStore(
        f"chunk {key!r} of {checkpoint} is damaged: {reason}. Restore the object from a "
        "backup or an older object version",
        key=key,
    )
