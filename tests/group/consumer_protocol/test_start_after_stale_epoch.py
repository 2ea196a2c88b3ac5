"""A committed offset that could not be fetched yet is not missing: no partition starts at ``auto.offset.reset``."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition

from consumer_coord import GroupConsumer
from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.wire import error_codes as codes
from tests.support.waiting import eventually

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
            message = eventually(lambda: consumer.poll(0.2), "a record, although all records were written before")
            assert message is not None
            assert message.error() is None
            assert (message.offset(), message.value()) == (4, b"4")
