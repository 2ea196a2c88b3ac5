"""Queries of one group for the tests: started with short timeouts, observed, and stopped with the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from consumer_coord.spark import progress
from tests.support.waiting import eventually

#: Deadline of each wait, in seconds; less than pytest's timeout, which breaks Spark's connection to the JVM and the session.
DEADLINE_S = 600


def await_end(query: Any) -> None:
    """Wait until a query ends; raise its error (StreamingQueryException), or TimeoutError."""
    if not query.awaitTermination(DEADLINE_S):
        raise TimeoutError(f"the query did not end within {DEADLINE_S:g} s: {query.status}")


@attrs.define
class Rows:
    """The records of a query's finished batches, as (batch, topic, partition, offset); each batch first calls ``before``.

    ``columns``: the columns to collect after the batch, instead of topic, partition and offset.
    """

    seen: list[tuple[int, Any, int, int]] = attrs.field(factory=list)
    before: Callable[[int], None] = lambda batch: None
    columns: tuple[str, str, str] = ("topic", "partition", "offset")

    def __call__(self, frame: Any, batch: int) -> None:
        self.before(batch)
        self.seen += [(batch, *row) for row in frame.select(*self.columns).collect()]

    def offsets(self, partition: int | None = None) -> list[int]:
        """Return offsets of one partition, or of all, in the order of their arrival."""
        return [offset for _, _, number, offset in self.seen if partition in (None, number)]


@attrs.define
class Queries:
    """Starts queries of one group on one broker, and stops them with the test."""

    spark: Any
    bootstrap_servers: str
    group: str
    directory: Path
    admin: AdminClient
    started: list[Any] = attrs.field(factory=list)

    def frame(self, topic: str, options: Mapping[str, str] | None = None) -> Any:
        """Return a streaming frame of the group."""
        reader = self.spark.readStream.format("kafka_group")
        settings = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "group.id": self.group,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
        if (options or {}).get("kafka.group.protocol") != "consumer":
            settings |= {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "300"}
        for key, value in {**settings, **(options or {})}.items():
            reader = reader.option(key, value)
        return reader.load()

    def start(
        self,
        topic: str,
        options: Mapping[str, str] | None = None,
        *,
        checkpoint: str = "",
        now: bool = False,
        rows: Rows | None = None,
    ) -> tuple[Any, Rows]:
        """Start a query that writes to ``rows``; ``now`` is Trigger.AvailableNow."""
        return self.write(self.frame(topic, options), checkpoint=checkpoint, now=now, rows=rows)

    def write(self, frame: Any, *, checkpoint: str = "", now: bool = False, rows: Rows | None = None) -> tuple[Any, Rows]:
        """Start a query of any frame."""
        rows = rows or Rows()
        writer = frame.writeStream.foreachBatch(rows)
        writer = writer.option("checkpointLocation", str(self.directory / (checkpoint or f"c{len(self.started)}")))
        query = (writer.trigger(availableNow=True) if now else writer).start()
        self.started.append(query)
        return query, rows

    def committed(self, topic: str, count: int) -> dict[int, int]:
        """Return partition -> the group's committed offset, negative if there is none."""
        wanted = [TopicPartition(topic, number) for number in range(count)]
        request = ConsumerGroupTopicPartitions(self.group, wanted)
        answer = self.admin.list_consumer_group_offsets([request])[self.group].result(90)
        return {found.partition: found.offset for found in answer.topic_partitions}

    def member_count(self) -> int:
        """Return the number of the group's members, as the broker describes it."""
        return len(self.admin.describe_consumer_groups([self.group])[self.group].result(90).members)

    def is_stable(self) -> bool:
        """Return whether no rebalance is in progress, as the broker describes the group."""
        return bool(self.admin.describe_consumer_groups([self.group])[self.group].result(90).state is ConsumerGroupState.STABLE)

    def stop(self) -> None:
        """Stop all queries."""
        for query in self.started:
            query.stop()


def until(condition: Callable[[], bool], what: str, queries: Sequence[Any] = ()) -> None:
    """Wait until ``condition`` holds; a query of ``queries`` that fails during the wait fails the test."""

    def met() -> bool:
        for query in queries:
            if not query.isActive and query.exception() is not None:
                raise AssertionError(f"the query failed: {query.exception()}")
        return condition()

    eventually(met, what, within_s=DEADLINE_S, every_s=0.1)


def owned(query: Any) -> list[int]:
    """Return the partition numbers that a query owns, from its last progress."""
    found = progress(query)
    return [] if found is None else sorted(number for numbers in found.owned.values() for number in numbers)


def kinds(query: Any) -> list[str]:
    """Return the kinds of changes to a query's partitions, from its last progress."""
    found = progress(query)
    return [] if found is None else [event.kind for event in found.events]
