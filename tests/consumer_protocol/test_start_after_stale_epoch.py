"""A committed offset that could not be fetched yet is no offset that is not there: nothing begins at ``auto.offset.reset``."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer, TopicPartition

from consumer_coord import GroupConsumer
from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.wire import error_codes as codes

DEADLINE_S = 30


@pytest.mark.parametrize("code", [codes.STALE_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID], ids=codes.error_name)
def test_a_member_that_is_refused_the_committed_offset_asks_again(code: int) -> None:
    with EmbeddedKafka({"orders": 1}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", b"%d" % number)
        assert producer.flush(DEADLINE_S) == 0
        settings = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "billing",
            "group.protocol": "consumer",
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
        }
        with GroupConsumer(settings) as before:
            before.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
        kafka.add_fault("OffsetFetch", Fault(error_code=code), times=3)
        with GroupConsumer(settings) as consumer:
            consumer.subscribe(["orders"])
            ends = time.monotonic() + DEADLINE_S
            message = None
            while message is None and time.monotonic() < ends:
                message = consumer.poll(0.2)
            assert message is not None, "it waits for records that come later, as from latest"
            assert message.error() is None
            assert (message.offset(), message.value()) == (4, b"4")
