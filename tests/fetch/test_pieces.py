"""Unit tests of batches, sessions and error tables."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.broker.fetch_sessions import FetchSessions
from consumer_coord.broker.record_batch import build_batch
from consumer_coord.errors import CoordinatorError, MalformedMessageError
from consumer_coord.fetch import error_steps
from consumer_coord.fetch.batches import Reach, reach
from consumer_coord.fetch.error_steps import Step
from consumer_coord.fetch.sessions import FetchSession, Wanted
from consumer_coord.net.answers import AnswerCheck
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.log import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tests.support.columns.old_messages import OFFSETS, each_kind
from tests.support.group.virtual import in_virtual_time

IDS = {"a": uuid.UUID(int=1), "b": uuid.UUID(int=2)}


def batch(base: int, count: int, epoch: int = 0) -> bytes:
    """Return a batch of ``count`` records."""
    return build_batch([(b"k", b"v")] * count, base_offset=base, timestamp_ms=5, leader_epoch=epoch)


# -- batches


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 200)
)
def test_the_reach_is_that_of_the_whole_batches(shapes: Sequence[tuple[int, int]], into: int, cut: int) -> None:
    """The result does not depend on gaps, on the first offset inside a batch, or on where the last batch is cut."""
    data, base, ends = b"", 10, []
    for number, (gap, count) in enumerate(shapes):
        base += gap
        data += batch(base, count, number)
        base += count
        ends.append((len(data), base, number))
    first_base = 10 + shapes[0][0]
    offset = min(first_base + into, first_base + shapes[0][1] - 1)
    shown = data[: len(data) - cut] if cut < len(data) else data
    whole = [end for end in ends if end[0] <= len(shown)]
    count = sum(shape[1] for shape in shapes[: len(whole)])
    if whole:
        assert reach(shown, offset) == reach(memoryview(shown), offset) == Reach(0, *whole[-1], count)
    else:
        with pytest.raises(MalformedMessageError, match="no complete record batch"):
            reach(shown, offset)


@given(st.binary(max_size=200), st.integers(0, 5))
def test_any_bytes_have_a_reach_or_raise(junk: bytes, offset: int) -> None:
    for data in (junk, batch(5, 2) + junk, junk[:16] + b"\2" + junk[17:]):
        try:
            found = reach(data, offset)
        except CoordinatorError:
            continue  # any other exception fails the test
        assert 0 <= found.begin <= found.end <= len(data)
        assert found.next_offset >= offset
        assert (found.next_offset > offset) == (found.begin < found.end)


def test_a_message_of_an_old_format_is_a_batch_of_its_own() -> None:
    sizes = [len(one) for one in each_kind()]
    old, current = b"".join(each_kind()), batch(OFFSETS[-1] + 1, 3, 5)
    whole = len(old)
    assert reach(old, 0) == Reach(0, whole, OFFSETS[-1] + 1, -1, 9)
    assert reach(old + current, 0) == Reach(0, whole + len(current), OFFSETS[-1] + 4, 5, 12)
    # Offset 8 is inside the fifth message, which contains the offsets 7, 8 and 10.
    inside = reach(old, 8)
    assert (inside.begin, inside.end, inside.next_offset) == (sum(sizes[:4]), whole, OFFSETS[-1] + 1)
    cut = reach(old[:-1], 0)
    assert (cut.end, cut.next_offset) == (whole - sizes[-1], 17)
    with pytest.raises(MalformedMessageError, match="has no complete record batch at offset 0, only 20 bytes"):
        reach(old[:20], 0)
    with pytest.raises(MalformedMessageError, match="has the wrong offsets 0 to 0"):
        reach(old + old, 0)
    with pytest.raises(MalformedMessageError, match="states a size of 12 bytes"):
        reach(old[:8] + bytes(4) + old[12:], 0)


def test_batches_before_the_offset_are_skipped() -> None:
    old, current = batch(0, 5), batch(5, 10)
    assert reach(old + current, 10) == Reach(len(old), len(old + current), 15, 0, 10)
    assert reach(old + batch(3, 2) + current, 10).begin == len(old + batch(3, 2))
    only_old = reach(old, 10)
    assert (only_old.begin, only_old.end, only_old.next_offset) == (len(old), len(old), 10)


@pytest.mark.parametrize("data", [batch(8, 1) + batch(7, 1), batch(8, 2) + batch(9, 1)])
def test_offsets_never_go_back(data: bytes) -> None:
    with pytest.raises(MalformedMessageError, match="has the wrong offsets"):
        reach(data, 8)


# -- sessions


@pytest.mark.parametrize("version", [6, 7, 12, 13, 18])
@given(seed=st.integers(0, 10_000))
def test_the_brokers_session_always_knows_what_the_client_wants(version: int, seed: int) -> None:
    """The client's half against the broker's half: requests lost, responses lost, sessions evicted, topics recreated."""
    random = Random(seed)
    client, broker = FetchSession(), FetchSessions(1, Random(seed))
    ids = dict(IDS)
    for moment in range(30):
        if random.random() < 0.1:
            ids[random.choice("ab")] = uuid.UUID(int=random.getrandbits(64))
        wanted = {
            TopicPartition(topic, number): Wanted(ids[topic], random.randrange(3))
            for topic in "ab"
            for number in range(3)
            if random.random() < 0.7
        }
        part = client.build(version, wanted)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            session_id=part.session_id,
            session_epoch=part.session_epoch,
            topics=part.topics,
            forgotten_topics_data=part.forgotten,
        )
        event = random.random()
        if event < 0.1:
            client.failed()  # the request is lost
            continue
        names = {topic_id: name for name, topic_id in ids.items()}
        context = broker.begin(version, request, names.get, moment * (200.0 if random.random() < 0.2 else 1.0))
        if context.error_code == codes.FETCH_SESSION_ID_NOT_FOUND:
            client.not_found()
            continue
        assert context.error_code == 0, "the client follows the protocol"
        read = {(name.name, partition.partition, name.topic_id): partition.fetch_offset for name, partition in context.wanted}
        by_id = version >= 13
        assert read == {
            (one.topic, one.partition, value.topic_id if by_id else uuid.UUID(int=0)): value.offset
            for one, value in wanted.items()
        }
        if event < 0.2:
            client.failed()  # the response is lost
            continue
        if event < 0.3:
            broker.clear()  # and the broker restarts
        rows = [
            FetchableTopicResponse(
                topic="" if by_id else name.name or "",
                topic_id=name.topic_id,
                partitions=(PartitionData(partition_index=partition.partition, error_code=0, high_watermark=0, records=b""),),
            )
            for name, partition in context.wanted
            if not context.incremental or random.random() < 0.5
        ]
        session_id = 0 if context.session is None else context.session.session_id
        matched = client.answered(FetchResponse(session_id=session_id, responses=rows), AnswerCheck(), "kafka:9092")
        assert set(matched.rows) <= set(wanted)
        assert not matched.unanswered


def _row(topic: str, partition: int) -> FetchableTopicResponse:
    row = PartitionData(partition_index=partition, error_code=0, high_watermark=0, records=b"")
    return FetchableTopicResponse(topic_id=IDS[topic], partitions=(row,))


@in_virtual_time
async def test_a_wrong_response_keeps_the_rows_that_were_asked_for_and_begins_a_new_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session, answers, (one, two) = FetchSession(), AnswerCheck(), (TopicPartition("a", 0), TopicPartition("a", 1))
    wanted = {one: Wanted(IDS["a"], 0), two: Wanted(IDS["a"], 0)}
    session.build(18, wanted)
    lacking = session.answered(FetchResponse(session_id=5, responses=[_row("a", 0)]), answers, "kafka:9092")
    assert (set(lacking.rows), set(lacking.unanswered)) == ({one}, {two})
    assert session.build(18, wanted).session_epoch == 0
    session.answered(FetchResponse(session_id=6, responses=[_row("a", 0), _row("a", 1)]), answers, "kafka:9092")
    assert session.build(18, wanted).session_epoch == 1
    extra = session.answered(FetchResponse(session_id=6, responses=[_row("a", 0), _row("a", 7)]), answers, "kafka:9092")
    assert (set(extra.rows), set(extra.unanswered)) == ({one}, set())
    assert session.build(18, wanted).session_epoch == 0
    assert [each.getMessage() for each in caplog.records] == [
        "the response of kafka:9092 to Fetch has no row for a-1; asking again",
        "the response of kafka:9092 to Fetch has a row for a-7, which was not asked for and is ignored",
    ]


# -- errors


def test_every_error_code_has_a_step() -> None:
    for code in codes.ERROR_NAMES:
        for table in (error_steps.PARTITION, error_steps.RESPONSE, error_steps.EPOCH_END):
            assert error_steps.step_for(table, code) in Step
    assert error_steps.step_for(error_steps.PARTITION, codes.NOT_ENOUGH_REPLICAS) is Step.FIND_LEADER
    assert error_steps.step_for(error_steps.PARTITION, codes.INVALID_REQUEST) is Step.STOP
    assert error_steps.step_for(error_steps.PARTITION, 1234) is Step.STOP


def test_a_refusal_says_what_to_do() -> None:
    error = error_steps.refusal(codes.TOPIC_AUTHORIZATION_FAILED, TopicPartition("a", 3), 7)
    assert str(error) == (
        "Fetch of a-3 at offset 7 was refused with TOPIC_AUTHORIZATION_FAILED (29): the principal needs READ on the topic"
    )
