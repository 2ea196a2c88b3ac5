"""Messages of librdkafka in the reader's queue: an interrupt while they are taken loses none."""

from __future__ import annotations

import itertools

from consumer_coord.columns.decode_messages import kept_chunks
from consumer_coord.confluent.own_types import Message
from consumer_coord.consumer.reading.chunks import MessageChunk
from consumer_coord.topic_partition import TopicPartition
from tests.support.consumer.signal_points import interrupted


def chunk(count: int) -> MessageChunk:
    messages = [Message("orders", 0, offset) for offset in range(10, 10 + count)]
    return MessageChunk(TopicPartition("orders", 0), 1, 10, 20, 0, messages, 0)


def test_messages_are_taken_in_order_and_the_position_ends_behind_the_chunk() -> None:
    rows = chunk(5).decode(11, kept_chunks())
    assert (len(rows), rows.position) == (4, 11)
    assert [one.offset() for one in rows.take(3)] == [11, 12, 13]
    assert (len(rows), rows.position) == (1, 14)
    assert [one.offset() for one in rows.take(3)] == [14]
    assert (len(rows), rows.position, rows.take(3)) == (0, 20, [])


def test_an_interrupted_take_leaves_the_position_only_if_every_message_is_left() -> None:
    for at in itertools.count():
        rows = chunk(5).decode(10, kept_chunks())
        with interrupted(at) as points:
            rows.take(3)
        if points.raised_at is None:
            assert at > 1, "points were interrupted"
            break
        # The reader decodes again if the position is not its cursor's.
        if rows.position == 10:
            assert [one.offset() for one in rows.take(3)] == [10, 11, 12]
