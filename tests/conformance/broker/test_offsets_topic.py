"""The records of ``__consumer_offsets``: ours as Kafka reads them, Kafka's as we do, and bytes that are neither."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire import offsets_topic
from consumer_coord.wire.offsets_topic import (
    ForeignKey,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tests.support.java import JavaProgram
from tests.support.line_process import LineProcess

_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
OFFSETS = st.builds(
    OffsetCommitValue,
    offset=_INT64,
    leader_epoch=_INT32,
    metadata=_TEXT,
    commit_timestamp_ms=_INT64,
    expire_timestamp_ms=st.one_of(st.just(-1), _INT64),
    topic_id=st.one_of(st.just(uuid.UUID(int=0)), st.uuids()),
)
MEMBERS = st.builds(
    MemberMetadata,
    member_id=_TEXT,
    group_instance_id=st.none() | _TEXT,
    client_id=_TEXT,
    client_host=_TEXT,
    rebalance_timeout_ms=_INT32,
    session_timeout_ms=_INT32,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
GROUPS = st.builds(
    GroupMetadataValue,
    protocol_type=_TEXT,
    generation=_INT32,
    protocol=st.none() | _TEXT,
    leader=st.none() | _TEXT,
    current_state_timestamp_ms=_INT64,
    members=st.lists(MEMBERS, max_size=3).map(tuple),
)


def as_far_as_offset(value: OffsetCommitValue, version: int) -> OffsetCommitValue:
    """Return the part of a value that a version with fewer fields can store."""
    return attrs.evolve(
        value,
        leader_epoch=value.leader_epoch if version >= 3 else -1,
        expire_timestamp_ms=value.expire_timestamp_ms if version == 1 else -1,
        topic_id=value.topic_id if version >= 4 else uuid.UUID(int=0),
    )


def as_far_as_group(value: GroupMetadataValue, version: int) -> GroupMetadataValue:
    """Return the part of a value that a version with fewer fields can store."""
    return attrs.evolve(
        value,
        current_state_timestamp_ms=value.current_state_timestamp_ms if version >= 2 else -1,
        members=tuple(
            attrs.evolve(
                member,
                group_instance_id=member.group_instance_id if version >= 3 else None,
                rebalance_timeout_ms=member.rebalance_timeout_ms if version >= 1 else -1,
            )
            for member in value.members
        ),
    )


@given(OFFSETS, st.integers(0, 4))
def test_offsets_come_back_in_every_version(value: OffsetCommitValue, version: int) -> None:
    data = offsets_topic.encode_offset_value(value, version)
    assert offsets_topic.decode_offset_value(data) == as_far_as_offset(value, version)


@given(GROUPS, st.integers(0, 4))
def test_groups_come_back_in_every_version(value: GroupMetadataValue, version: int) -> None:
    data = offsets_topic.encode_group_value(value, version)
    assert offsets_topic.decode_group_value(data) == as_far_as_group(value, version)


@given(_TEXT, _TEXT, _INT32)
def test_keys_come_back(group: str, topic: str, partition: int) -> None:
    key = OffsetCommitKey(group, topic, partition)
    assert offsets_topic.decode_key(offsets_topic.encode_offset_key(key)) == key
    assert offsets_topic.decode_key(b"\0\0" + offsets_topic.encode_offset_key(key)[2:]) == key
    assert offsets_topic.decode_key(offsets_topic.encode_group_key(GroupMetadataKey(group))) == GroupMetadataKey(group)


@pytest.mark.parametrize("version", [3, 8, 23, 4711])
def test_other_protocols_have_keys_of_their_own(version: int) -> None:
    assert offsets_topic.decode_key(version.to_bytes(2, "big") + b"whatever") == ForeignKey(version)


@given(st.binary(max_size=60))
@settings(max_examples=500)
def test_any_bytes_are_a_record_or_one_kind_of_error(data: bytes) -> None:
    for decode in (offsets_topic.decode_key, offsets_topic.decode_offset_value, offsets_topic.decode_group_value):
        try:
            decode(data)
        except (MalformedMessageError, UnsupportedVersionError):
            continue


@given(GROUPS, st.integers(0, 4), st.data())
def test_a_group_that_is_cut_off_is_malformed(value: GroupMetadataValue, version: int, data: st.DataObject) -> None:
    whole = offsets_topic.encode_group_value(value, version)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedMessageError):
        offsets_topic.decode_group_value(whole[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"\0\3\0\0\0\0\0\1\xff\xff\xff\xff\0\0\0\0\0\0\0\0\x7f\xff\xff\xff",  # two thousand million members
        b"\0\4\1\0\0\0\1\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\x7f",  # a varint that does not end
        b"\0\0\0\1\xff\0\0\0\0\xff\xff\xff\xff\0\0\0\0",  # not UTF-8
        b"\xff\xff" + bytes(40),
    ],
)
def test_absurd_numbers_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        offsets_topic.decode_group_value(data)


def test_versions_that_do_not_exist() -> None:
    with pytest.raises(UnsupportedVersionError):
        offsets_topic.encode_offset_value(OffsetCommitValue(1), 5)
    with pytest.raises(UnsupportedVersionError):
        offsets_topic.encode_group_value(GroupMetadataValue("consumer", 1), -1)
    with pytest.raises(UnsupportedVersionError):
        offsets_topic.decode_offset_value(b"\0\5" + bytes(40))


def test_unknown_tagged_fields_are_skipped() -> None:
    value = OffsetCommitValue(1, metadata="m")
    data = offsets_topic.encode_offset_value(value, 4)
    assert data.endswith(b"\0"), "no tagged field"
    assert offsets_topic.decode_offset_value(data[:-1] + b"\1\7\2xy") == value


def test_the_version_that_is_written_follows_from_the_value() -> None:
    def version(value: OffsetCommitValue) -> int:
        return offsets_topic.encode_offset_value(value)[1]

    assert version(OffsetCommitValue(1)) == 3
    assert version(OffsetCommitValue(1, topic_id=uuid.UUID(int=7))) == 4
    assert version(OffsetCommitValue(1, expire_timestamp_ms=5)) == 1


# -- Kafka's own classes


class Oracle:
    """Kafka's own reader and writer of these records."""

    def __init__(self, process: LineProcess) -> None:
        self._process = process

    def read(self, records: Sequence[tuple[bytes, bytes | None]]) -> list[tuple[Any, Any, bytes, bytes | None]]:
        """(key as JSON, value as JSON, both as Kafka writes them) of each record."""
        for key, value in records:
            self._process.send(f"{key.hex()} {'-' if value is None else value.hex()}")
        answers = []
        for _ in records:
            parts = self._process.receive().split("\t")
            assert parts[0] != "refused", parts
            key_json, value_json, key_again, value_again = parts
            answers.append(
                (
                    json.loads(key_json),
                    None if value_json == "-" else json.loads(value_json),
                    bytes.fromhex(key_again),
                    None if value_again == "-" else bytes.fromhex(value_again),
                )
            )
        return answers


@pytest.fixture(scope="module")
def oracle(kafka_libs: Path) -> Iterator[Oracle]:
    with JavaProgram(kafka_libs, "GroupRecords").start() as process:
        yield Oracle(process)


@pytest.mark.kafka
def test_kafka_reads_the_offsets_we_write_and_writes_the_same_bytes(oracle: Oracle) -> None:
    @given(OFFSETS, st.integers(0, 4))
    @settings(max_examples=60, deadline=None)
    def compare(value: OffsetCommitValue, version: int) -> None:
        key = offsets_topic.encode_offset_key(OffsetCommitKey("group", "topic", 3))
        data = offsets_topic.encode_offset_value(value, version)
        ((key_json, read, key_again, again),) = oracle.read([(key, data)])
        assert key_json == {"group": "group", "topic": "topic", "partition": 3}
        assert (key_again, again) == (key, data)
        assert (read["offset"], read["metadata"], read["commitTimestamp"]) == (
            value.offset,
            value.metadata,
            value.commit_timestamp_ms,
        )
        if version >= 4 and value.topic_id.int:
            padded = read["topicId"] + "=="
            assert uuid.UUID(bytes=base64.urlsafe_b64decode(padded)) == value.topic_id

    compare()


@pytest.mark.kafka
def test_kafka_reads_the_groups_we_write_and_writes_the_same_bytes(oracle: Oracle) -> None:
    @given(GROUPS, st.integers(0, 4))
    @settings(max_examples=60, deadline=None)
    def compare(value: GroupMetadataValue, version: int) -> None:
        key = offsets_topic.encode_group_key(GroupMetadataKey("group"))
        data = offsets_topic.encode_group_value(value, version)
        ((key_json, read, key_again, again),) = oracle.read([(key, data)])
        assert key_json == {"group": "group"}
        assert (key_again, again) == (key, data)
        assert (read["generation"], read["leader"]) == (value.generation, value.leader)
        assert [member["memberId"] for member in read["members"]] == [member.member_id for member in value.members]

    compare()
