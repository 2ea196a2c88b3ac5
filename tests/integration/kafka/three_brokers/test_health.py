"""One of three real brokers is stopped with SIGSTOP for 14 s; the health of a consumer names its partitions, and no other."""

from __future__ import annotations

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.health import Health, Owed, Reason
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.admin import describe_group
from tests.support.kafka.producing import produce
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LIMIT_S, FROZEN_S = 5.0, 14.0


def test_a_frozen_broker_is_named_with_its_partitions(kafka3: RealKafka, group: str) -> None:
    """The partitions have one replica, so no other broker takes them over."""
    topic = kafka3.new_topic(6, replication_factor=1)
    produce(kafka3, topic, 6, 10)
    settings = {"bootstrap.servers": kafka3.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    with GroupConsumer(settings) as consumer:
        consumer.subscribe([topic])

        def look() -> Health:
            consumer.poll(0.05)
            return consumer.health(LIMIT_S)

        def all_read() -> bool:
            partitions = look().partitions
            return len(partitions) == 6 and all(one.owed is Owed.NO for one in partitions)

        eventually(all_read, step=lambda: None)
        coordinator = describe_group(kafka3.admin, group).coordinator
        leaders = {one.id: one.leader for one in consumer.list_topics(topic).topics[topic].partitions.values()}
        frozen = next(leader for leader in leaders.values() if leader != coordinator)
        expected = {number for number, leader in leaders.items() if leader == frozen}
        assert 0 < len(expected) < 6
        kafka3.pause(frozen)
        try:

            def silent() -> Health | None:
                health = look()
                since = [one.since_s for one in health.partitions if one.partition in expected]
                return health if len(since) == len(expected) and min(since) > FROZEN_S else None

            health = eventually(silent, step=lambda: None)
            assert health is not None
            assert not health.healthy
            assert health.live
            for one in health.partitions:
                if one.partition in expected:
                    assert (one.owed, one.reason) == (Owed.UNKNOWN, Reason.LEADER_SILENT)
                    assert f"broker {frozen} has not answered for" in one.detail
                else:
                    assert one.owed is Owed.NO
            assert {text.split(":")[0] for text in health.problems} == {f"{topic}-{number}" for number in expected}
        finally:
            kafka3.resume(frozen)
        eventually(all_read, step=lambda: None)
        assert consumer.health(LIMIT_S).healthy
