from __future__ import annotations

import hashlib
import struct
import zlib

import pytest

from taquba.errors import CorruptStore, IncompatibleStore
from taquba.journal import START, EpochMark, Kind, Position
from taquba.journal._entry import HEADER_SIZE, Entry, decode_entry, encode_entry
from taquba.journal._position import advance, entry_key, seq_of_key

KEY = entry_key(7)


def encoded(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "kind": Kind.ORDINARY,
        "epoch": 2,
        "seq": 7,
        "writer": b"w" * 16,
        "previous": b"p" * 32,
        "committed_at_ms": 1234,
        "window": 4,
        "durable_before": 5,
        "body": b"some body",
        **changes,
    }
    return encode_entry(**fields)[0]  # type: ignore[arg-type]


def decoded(**changes: object) -> Entry:
    return decode_entry(KEY, encoded(**changes))


def with_header(data: bytes, offset: int, change: bytes) -> bytes:
    """The entry with a changed header, and the checksum that fits."""
    header = bytearray(data[: HEADER_SIZE - 4])
    header[offset : offset + len(change)] = change
    return bytes(header) + struct.pack(">I", zlib.crc32(header)) + data[HEADER_SIZE:]


def test_an_entry_survives_encoding() -> None:
    data, digest = encode_entry(
        kind=Kind.EPOCH,
        epoch=3,
        seq=7,
        writer=b"w" * 16,
        previous=bytes(32),
        committed_at_ms=-5,
        window=16,
        durable_before=6,
        body=b"meta",
        ahead=True,
    )
    assert decode_entry(KEY, data) == Entry(
        kind=Kind.EPOCH,
        epoch=3,
        seq=7,
        writer=b"w" * 16,
        previous=bytes(32),
        committed_at_ms=-5,
        window=16,
        durable_before=6,
        body=b"meta",
        ahead=True,
        digest=digest,
    )
    assert digest == hashlib.sha256(data).digest()
    assert decoded(body=b"").body == b""


def test_every_flipped_bit_is_noticed() -> None:
    data = encoded()
    for place in range(len(data)):
        for bit in (1, 128):
            damaged = bytearray(data)
            damaged[place] ^= bit
            with pytest.raises((CorruptStore, IncompatibleStore), match="journal/0+7"):
                decode_entry(KEY, bytes(damaged))


def test_every_truncation_and_addition_is_noticed() -> None:
    data = encoded()
    for length in range(len(data)):
        with pytest.raises(CorruptStore, match="journal/0+7"):
            decode_entry(KEY, data[:length])
    with pytest.raises(CorruptStore, match="body has 10 bytes instead of 9"):
        decode_entry(KEY, data + b"x")


@pytest.mark.parametrize(
    ("offset", "change", "reason"),
    [
        (0, b"X", "begins with"),
        (8, b"\x00\x00", "format version is 0"),
        (10, b"\x09", "kind is 9"),
        (11, b"\x01", "flags 1"),
        (11, b"\x02", "flags 2"),
        (12, bytes(4), "window 0"),
        (16, bytes(8), "epoch 0"),
    ],
)
def test_impossible_fields_are_damage(offset: int, change: bytes, reason: str) -> None:
    with pytest.raises(CorruptStore, match=reason):
        decode_entry(KEY, with_header(encoded(), offset, change))


def test_a_newer_format_is_not_called_damage() -> None:
    for data in (with_header(encoded(), 8, b"\x00\x02"), b"TAQUBAJ\n\x00\x02whatever comes then"):
        with pytest.raises(IncompatibleStore, match="format version 2"):
            decode_entry(KEY, data)


def test_keys() -> None:
    assert entry_key(7) == "journal/00000000000000000007"
    assert seq_of_key(entry_key(12345678901234567890)) == 12345678901234567890
    for other in ("journal/7", "journal/0000000000000000000x", "other/00000000000000000007"):
        assert seq_of_key(other) is None


HERE = Position(7, 2, b"p" * 32, 4, (EpochMark(0, 2, 4),))


def test_an_ordinary_entry_leads_one_on() -> None:
    entry = decoded()
    assert advance(HERE, entry) == Position(8, 2, entry.digest, 4, HERE.epochs)


def test_an_epoch_entry_skips_a_window() -> None:
    entry = decoded(kind=Kind.EPOCH, epoch=3)
    mark = EpochMark(7, 3, 11)
    assert advance(HERE, entry) == Position(11, 3, entry.digest, 4, (*HERE.epochs, mark))


def test_an_epoch_entry_ahead_chains_what_it_could_not_know() -> None:
    entry = decoded(kind=Kind.EPOCH, epoch=3, ahead=True, previous=bytes(32))
    after = advance(HERE, entry)
    assert after.digest == hashlib.sha256(HERE.digest + entry.digest).digest()
    assert after.seq == 11


def test_the_first_epoch_entry_fixes_the_window() -> None:
    first = decoded(kind=Kind.EPOCH, epoch=1, seq=0, previous=bytes(32), window=9)
    assert advance(START, first) == Position(9, 1, first.digest, 9, (EpochMark(0, 1, 9),))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seq": 8}, "number 8"),
        ({"window": 5}, "window is 5"),
        ({"epoch": 1}, "epoch is 1 where only 2"),
        ({"epoch": 3}, "epoch is 3 where only 2"),
        ({"kind": Kind.EPOCH, "epoch": 2}, "epoch is 2 where only 3"),
        ({"kind": Kind.EPOCH, "epoch": 4}, "epoch is 4 where only 3"),
        ({"previous": b"q" * 32}, "digest 7171"),
        ({"kind": Kind.EPOCH, "epoch": 3, "previous": b"q" * 32}, "digest 7171"),
        ({"kind": Kind.EPOCH, "epoch": 3, "ahead": True}, "digest 7070"),
    ],
)
def test_what_does_not_continue_the_log(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(CorruptStore, match=reason):
        advance(HERE, decoded(**changes))
