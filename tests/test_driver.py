"""The members of ``tests.support.driver``, which tests and benchmarks use."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from confluent_kafka import Producer

from consumer_coord import GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from tests.support.clients import Ours
from tests.support.driver import Member, Out
from tests.support.waiting import eventually
from tests.support.white_box import coordinator_of

RECORDS = 10


class Events(Out):
    """The output of a member, which keeps its events in order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, event: str, **details: Any) -> None:
        self.events.append(json.loads(json.dumps({"event": event, **details})))

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the events of one kind."""
        return [one for one in self.events if one["event"] == event]


def test_a_member_that_commits_has_no_pending_record_of_a_revoked_partition(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of such a record may be refused, and then the next owner reads the record again."""
    out, over = Events(), threading.Event()
    with EmbeddedKafka(topics={"t": 2}) as kafka:
        config = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,
            "partition.assignment.strategy": "cooperative-sticky",
        }
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

        def write(partition: int) -> None:
            for _ in range(RECORDS):
                producer.produce("t", b"x", partition=partition)
            assert producer.flush(90) == 0

        other = GroupConsumer(config)

        def join() -> None:
            other.subscribe(["t"])
            while not over.is_set():
                other.poll(0.05)

        joining = threading.Thread(target=join)
        member = Member({"client": "ours", "config": config, "topics": ["t"], "does": "commit"}, 0, "1", out)
        assert isinstance(member.adapter, Ours)
        consumer = member.adapter.consumer
        consume = consumer.consume

        def consume_during_a_revocation(most: int, timeout: float) -> list[Any]:
            if not joining.ident and out.of("assigned"):
                write(0)
                joining.start()
                eventually(lambda: coordinator_of(consumer).assignment.to_revoke, "the group wants a partition back")
            found: list[Any] = consume(most, timeout)
            return found

        monkeypatch.setattr(consumer, "consume", consume_during_a_revocation)
        member.begin()
        member.start()
        try:
            eventually(lambda: bool(out.of("assigned")), "the first assignment")
            write(1)
            eventually(lambda: len(out.of("committed")) > 0 < len(out.of("revoked")), "a commit after the revocation")
        finally:
            member.put(None)
            member.join(90)
            over.set()
            if joining.ident:
                joining.join(90)
            other.close()
    assert not out.of("failure"), out.events
    _check_held(out.events)


def _check_held(events: list[dict[str, Any]]) -> None:
    """Check that the member holds the partitions of each batch, and that no commit was refused."""
    held: set[int] = set()
    for event in events:
        match event["event"]:
            case "assigned":
                held |= set(event["partitions"]["t"])
            case "revoked" | "lost":
                held -= set(event["partitions"]["t"])
            case "batch":
                assert {int(partition) for partition in event["ranges"]["t"]} <= held, events
            case "committed":
                assert not event["refused"], events
