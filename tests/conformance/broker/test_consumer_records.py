"""The records of consumer groups: they can be read back, Kafka reads ours, and a real coordinator continues our groups."""

from __future__ import annotations

import json
import struct
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer_coord.broker.consumer_group import records
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember, MemberState
from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import consumer_group_records as wire
from consumer_coord.wire.offsets_topic import GroupMetadataKey
from tests.broker.test_consumer_migration import ORDERS
from tests.support.broker.bench import Bench, pause
from tests.support.broker.consumer_bench import MODERN, Client, settle_all
from tests.support.java import JavaProgram

_TEXT = st.text(max_size=8)
_MAYBE = st.none() | _TEXT
_EPOCHS = st.dictionaries(
    st.uuids(), st.dictionaries(st.integers(0, 9), st.integers(0, 2**31 - 1), min_size=1, max_size=3), max_size=3
)
_CLASSIC = st.builds(
    wire.ClassicMemberMetadata,
    session_timeout_ms=st.integers(0, 2**31 - 1),
    supported_protocols=st.lists(st.builds(wire.ClassicProtocol, name=_TEXT, metadata=st.binary(max_size=9)), max_size=3).map(
        tuple
    ),
)
MEMBERS = st.builds(
    ConsumerGroupMember,
    member_id=_TEXT,
    member_epoch=st.integers(-2, 2**31 - 1),
    previous_member_epoch=st.integers(-1, 2**31 - 1),
    state=st.sampled_from(MemberState).filter(lambda state: state is not MemberState.UNKNOWN),
    instance_id=_MAYBE,
    rack_id=_MAYBE,
    rebalance_timeout_ms=st.integers(-1, 2**31 - 1),
    client_id=_TEXT,
    client_host=_TEXT,
    subscribed_topics=st.frozensets(_TEXT, max_size=3),
    subscribed_regex=_MAYBE,
    server_assignor=_MAYBE,
    assigned=_EPOCHS,
    pending_revocation=_EPOCHS,
    classic=st.none() | _CLASSIC,
)


@given(MEMBERS)
def test_a_member_comes_back(member: ConsumerGroupMember) -> None:
    again = ConsumerGroupMember(member.member_id)
    for key, value in (records.member_metadata("g", member), records.current_assignment("g", member)):
        assert not isinstance(key, GroupMetadataKey)
        assert value is not None
        read_key = wire.decode_key(wire.encode_key(key))
        read = wire.decode_value(read_key, wire.encode_value(value))
        assert read_key == key
        if isinstance(read, wire.ConsumerGroupMemberMetadataValue):
            again = again.with_metadata(read)
        elif isinstance(read, wire.ConsumerGroupCurrentMemberAssignmentValue):
            again = again.with_assignment(read)
    assert again == member


def test_a_record_of_a_broker_before_4_3_has_the_members_epoch() -> None:
    topic = wire.CurrentTopicPartitions(topic_id=uuid.UUID(int=1), partitions=(0, 1))
    value = wire.ConsumerGroupCurrentMemberAssignmentValue(member_epoch=7, state=99, assigned_partitions=(topic,))
    member = ConsumerGroupMember("a").with_assignment(value)
    assert member.assigned == {uuid.UUID(int=1): {0: 7, 1: 7}}
    assert member.state is MemberState.UNKNOWN, "a state of a later version"


@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_any_bytes_are_a_record_or_one_kind_of_error(data: bytes) -> None:
    for number in sorted(wire.TYPES):
        try:
            key = wire.decode_key(number.to_bytes(2, "big") + data)
            wire.decode_value(key, b"\0\0" + data)
        except MalformedMessageError:
            continue


def test_a_value_of_the_future_is_not_read() -> None:
    with pytest.raises(UnsupportedVersionError):
        wire.decode_value(wire.ConsumerGroupMetadataKey(group_id="g"), b"\0\1" + bytes(20))


async def _history() -> list[tuple[bytes, bytes | None]]:
    """The records of a group that came through everything: both protocols, a regular expression, tombstones, conversions."""
    bench = Bench(MODERN)
    bench.elect()
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a", instance_id="i", assignor="range"), Client(bench, "b", (), regex="ord.*")
    await first.join()
    await second.join()
    await pause()
    await settle_all(first, second)
    joined = await bench.join_twice(protocols=ORDERS)
    assert joined.error_code == 0
    await settle_all(first, second)
    await first.leave(-2)
    await second.leave()
    await first.leave()
    stored = [(one.key or b"", one.value) for one in bench.logs[0].records() if not isinstance(one, MalformedMessageError)]
    bench.close()
    return stored


@pytest.mark.kafka
def test_kafka_reads_the_records_we_write_and_writes_the_same_bytes(kafka_libs: Path) -> None:
    stored = virtual.run(_history())
    types: Counter[int] = Counter()
    with JavaProgram(kafka_libs, "GroupRecords").start() as oracle:
        for key, value in stored:
            oracle.send(f"{key.hex()} {'-' if value is None else value.hex()}")
            answer = oracle.receive().split("\t")
            assert answer[0] != "refused", answer
            key_json, value_json, key_again, value_again = answer
            assert (key_again, value_again) == (key.hex(), "-" if value is None else value.hex())
            (number,) = struct.unpack_from(">h", key)
            types[number] += 1
            if value is not None and number in wire.TYPES:
                _compare(wire.decode_value(wire.decode_key(key), value), json.loads(value_json), json.loads(key_json))
    assert set(types) == {2, 3, 4, 5, 6, 7, 8, 16}


def _compare(ours: wire.Value | None, theirs: dict[str, Any], key: dict[str, Any]) -> None:
    assert key["groupId"] == "group"
    match ours:
        case wire.ConsumerGroupMetadataValue():
            assert (theirs["epoch"], theirs["metadataHash"]) == (ours.epoch, ours.metadata_hash)
        case wire.ConsumerGroupMemberMetadataValue():
            assert theirs["subscribedTopicNames"] == list(ours.subscribed_topic_names)
            assert (theirs.get("classicMemberMetadata") is None) == (ours.classic_member_metadata is None)
        case wire.ConsumerGroupTargetAssignmentMetadataValue():
            assert theirs["assignmentEpoch"] == ours.assignment_epoch
        case wire.ConsumerGroupCurrentMemberAssignmentValue():
            assert theirs["state"] == ours.state
            for one, other in zip(theirs["assignedPartitions"], ours.assigned_partitions, strict=True):
                assert (one["partitions"], one["assignmentEpochs"]) == (
                    list(other.partitions),
                    list(other.assignment_epochs or ()),
                )
