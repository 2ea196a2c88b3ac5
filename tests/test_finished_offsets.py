"""The finished offsets in a commit's metadata: every text that was not written for this very commit is refused."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumer_coord.finished_offsets_text import Ranges, UnusableMetadataError, capacity, decode, encode

LIMIT = 4096
#: Kafka Streams' metadata of a commit: its version and a timestamp, in base64.
OF_STREAMS = base64.b64encode(b"\x02" + (1_700_000_000_000).to_bytes(8, "big") + bytes(4)).decode()


@st.composite
def finished(draw: st.DrawFn) -> tuple[int, Ranges]:
    """Return a base, and ranges of finished offsets above it."""
    base = draw(st.integers(0, 1 << 40))
    steps = draw(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), max_size=60))
    found, at = [], base
    for before, length in steps:
        found.append((at + before, at + before + length))
        at += before + length
    return base, tuple(found)


def resealed(data: bytes) -> str:
    """Return the text of changed bytes, with a right checksum."""
    body = data[:-4]
    return base64.b64encode(body + zlib.crc32(body).to_bytes(4, "big")).decode()


@given(finished())
def test_what_was_encoded_is_decoded(given: tuple[int, Ranges]) -> None:
    base, ranges = given
    text = encode(base, ranges, LIMIT)
    assert decode(text, base, ranges[-1][1] if ranges else base) == ranges
    assert bool(text) == bool(ranges)


@given(finished(), st.integers(0, 80))
def test_a_text_is_never_longer_than_its_limit_and_names_only_finished_offsets(given: tuple[int, Ranges], limit: int) -> None:
    base, ranges = given
    text = encode(base, ranges, limit)
    assert len(text) <= limit
    offsets = {offset for first, end in ranges for offset in range(first, end)}
    kept = {offset for first, end in decode(text, base, 1 << 62) for offset in range(first, end)}
    assert kept <= offsets
    # What is left out is at the end.
    assert kept == {offset for offset in offsets if kept and offset <= max(kept)}


def test_the_smaller_form_is_chosen() -> None:
    # Every other offset: a bit for each is smaller. One unfinished record before a million: a run is smaller.
    every_other = [(offset, offset + 1) for offset in range(1, 2000, 2)]
    assert len(encode(0, every_other, LIMIT)) < 2000 / 8 * 4 / 3 + 30
    assert len(encode(5, [(6, 1_000_006)], LIMIT)) < 40


def test_bits_hold_what_capacity_promises() -> None:
    room = capacity(LIMIT)
    every_other = [(offset, offset + 1) for offset in range(1, 8 * room, 2)]
    assert decode(encode(0, every_other, LIMIT), 0, 8 * room) == tuple(every_other)


@given(st.one_of(st.text(max_size=60), st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())))
@example(OF_STREAMS)
@example("checkpoint-7")
@example("é")
@example("A" * 0x8000)
def test_foreign_metadata_is_refused(text: str) -> None:
    """Java's Parallel Consumer died of it (its fork, 118 and 207), or took the committed record for finished (183)."""
    if text:
        with pytest.raises(UnusableMetadataError):
            decode(text, 7, 100)


@given(finished(), st.data())
def test_damaged_metadata_is_refused(given: tuple[int, Ranges], data: st.DataObject) -> None:
    base, ranges = given
    text = encode(base, ranges, LIMIT)
    if not text:
        return
    raw = bytearray(base64.b64decode(text))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnusableMetadataError):
        decode(base64.b64encode(raw).decode(), base, 1 << 62)
    with pytest.raises(UnusableMetadataError):
        decode(base64.b64encode(raw[: data.draw(st.integers(1, len(raw) - 1))]).decode(), base, 1 << 62)


@given(st.binary(max_size=40), st.integers(0, 2))
def test_a_body_with_a_right_checksum_is_still_checked(body: bytes, form: int) -> None:
    """A decoder that trusts its checksum reads whatever a faulty writer has sealed."""
    base, end = 1000, 1200
    head = base64.b64decode(encode(base, [(1001, 1002)], LIMIT))[:13]
    text = resealed(head[:4] + bytes([form]) + head[5:] + body + bytes(4))
    try:
        found = decode(text, base, end)
    except UnusableMetadataError:
        return
    at = base
    for first, after in found:
        assert at < first < after <= end
        at = after


def test_the_committed_record_is_never_finished() -> None:
    """The fault 183 of the fork of Java's Parallel Consumer: exactly one record, at the committed offset, was skipped."""
    raw = base64.b64decode(encode(10, [(11, 111)], LIMIT))
    assert raw[13:15] == bytes([1, 100]), "a run after one unfinished offset"
    with pytest.raises(UnusableMetadataError, match="not in order"):
        decode(resealed(raw[:13] + bytes([0, 100]) + raw[15:]), 10, 200)


def test_metadata_of_another_commit_is_refused() -> None:
    """121: the offset and the metadata of one commit were computed one after the other, and did not fit together."""
    text = encode(10, [(12, 15)], LIMIT)
    for committed in (9, 11):
        with pytest.raises(UnusableMetadataError, match="committed offset 10"):
            decode(text, committed, 100)


def test_offsets_that_the_log_does_not_have_are_refused() -> None:
    """Records that are written there later would be skipped without a word."""
    text = encode(10, [(12, 15), (90, 100)], LIMIT)
    assert decode(text, 10, 100) == ((12, 15), (90, 100))
    with pytest.raises(UnusableMetadataError, match="offset 99, and the log ends at 99"):
        decode(text, 10, 99)


def test_a_newer_version_is_refused() -> None:
    raw = base64.b64decode(encode(10, [(12, 15)], LIMIT))
    with pytest.raises(UnusableMetadataError, match="version 2"):
        decode(resealed(raw[:3] + bytes([2]) + raw[4:]), 10, 100)
