"""One interface for all Python clients, for the members of :mod:`tests.support.driver`."""

from __future__ import annotations

import asyncio
import functools
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Ranges: TypeAlias = dict[str, dict[int, list[int]]]
POLL_S = 0.1
_BATCH = 500


class Partition(Protocol):
    """The TopicPartition of any client."""

    topic: str
    partition: int


class Record(Partition, Protocol):
    """A consumed record of any client."""

    offset: int


#: Called for a callback of the client: ``on_rebalance("assigned", partitions)``.
OnRebalance: TypeAlias = Callable[[str, Iterable[Any]], None]


class Adapter(Protocol):
    """The operations of a member, the same for all clients."""

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None: ...

    def poll(self) -> Ranges: ...

    def commit(self) -> Mapping[str, Mapping[int, int]]: ...

    def owned(self) -> Iterable[Any]: ...

    def generation(self) -> int: ...

    def member_id(self) -> str: ...

    def enforce_rebalance(self, reason: str | None) -> None: ...

    def close(self) -> None: ...


def by_topic(partitions: Iterable[Any]) -> dict[str, list[int]]:
    """Return partitions as topic -> sorted numbers."""
    grouped: dict[str, list[int]] = {}
    for one in sorted(partitions, key=lambda one: (one.topic, one.partition)):
        grouped.setdefault(one.topic, []).append(one.partition)
    return grouped


def extend(ranges: Ranges, topic: str, partition: int, offset: int) -> None:
    """Add one record to ``ranges``."""
    seen = ranges.setdefault(topic, {}).setdefault(partition, [offset, offset, 0])
    seen[1] = offset
    seen[2] += 1


class Confluent:
    """confluent-kafka, and consumer_coord, which has the same methods."""

    def __init__(self, consumer: Any, on_rebalance: OnRebalance, on_error: Callable[[str], None], batch: int = _BATCH) -> None:
        self.consumer = consumer
        self.on_rebalance = on_rebalance
        self.on_error = on_error
        self.batch = batch

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        wanted = list(topics) if pattern is None else [pattern if pattern.startswith("^") else f"^{pattern}$"]
        self.consumer.subscribe(
            wanted,
            on_assign=lambda _, partitions: self.on_rebalance("assigned", partitions),
            on_revoke=lambda _, partitions: self.on_rebalance("revoked", partitions),
            on_lost=lambda _, partitions: self.on_rebalance("lost", partitions),
        )

    def poll(self) -> Ranges:
        first = self.consumer.poll(POLL_S)
        return {} if first is None else self._ranges((first, *self.consumer.consume(self.batch - 1, 0)))

    def poll_once(self) -> Ranges:
        """Poll with a single, longer call of the consumer: its callbacks run before any of the returned records is received.

        The second call of :meth:`poll` may revoke the partition of a record that its first call returned.
        """
        return self._ranges(self.consumer.consume(self.batch, POLL_S))

    def _ranges(self, messages: Iterable[Any]) -> Ranges:
        ranges: Ranges = {}
        for message in messages:
            if message.error() is not None:
                self.on_error(str(message.error()))
            else:
                extend(ranges, message.topic(), message.partition(), message.offset())
        return ranges

    def commit(self) -> Mapping[str, Mapping[int, int]]:
        from confluent_kafka import KafkaError, KafkaException

        committed: dict[str, dict[int, int]] = {}
        try:
            done = self.consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._NO_OFFSET:
                return committed
            raise
        for one in done:
            if one.error is not None:
                raise KafkaException(one.error)
            committed.setdefault(one.topic, {})[one.partition] = one.offset
        return committed

    def commit_behind(self, ranges: Ranges) -> Mapping[str, Mapping[int, str]]:
        """Commit the offsets after these records; return the refused partitions: topic -> partition -> reason."""
        from confluent_kafka import KafkaException, TopicPartition

        rows = [
            TopicPartition(topic, partition, last + 1)
            for topic, partitions in ranges.items()
            for partition, (_, last, _) in partitions.items()
        ]
        try:
            answered = self.consumer.commit(offsets=rows, asynchronous=False)
        except KafkaException as error:
            return {topic: dict.fromkeys(partitions, str(error)) for topic, partitions in ranges.items()}
        refused: dict[str, dict[int, str]] = {}
        for row in answered:
            if row.error is not None:
                refused.setdefault(row.topic, {})[row.partition] = str(row.error)
        return refused

    def owned(self) -> Iterable[Any]:
        partitions: Iterable[Any] = self.consumer.assignment()
        return partitions

    def generation(self) -> int:
        # the serialisation of librdkafka: b"CGMDv2:", then the generation as a native int32
        metadata = bytes(self.consumer.consumer_group_metadata())
        found: int = struct.unpack_from("=i", metadata, 7)[0]
        return found

    def member_id(self) -> str:
        return str(self.consumer.memberid())

    def enforce_rebalance(self, reason: str | None) -> None:
        raise NotImplementedError("librdkafka cannot request a rebalance")

    def close(self) -> None:
        self.consumer.close()


class Ours(Confluent):
    """`consumer_coord.GroupConsumer`."""

    def generation(self) -> int:
        # not consumer_group_metadata(), which delays the member's next join until the next poll
        found: int = self.consumer.generation()
        return found

    def enforce_rebalance(self, reason: str | None) -> None:
        self.consumer.enforce_rebalance(reason or "")


class OursColumns(Ours):
    """`consumer_coord.GroupConsumer`, which reads with ``consume_arrow``."""

    def poll(self) -> Ranges:
        batch = self.consumer.consume_arrow(self.batch, timeout=POLL_S, columns=("topic", "partition", "offset"))
        ranges: Ranges = {}
        if len(batch):
            import pyarrow as pa

            for row in pa.record_batch(batch).to_pylist():
                extend(ranges, row["topic"], row["partition"], row["offset"])
        return ranges


class ByHand(Confluent):
    """librdkafka without a group: each of ``members`` members assigns its share of a topic's partitions to itself."""

    def __init__(self, consumer: Any, on_rebalance: OnRebalance, on_error: Callable[[str], None], share: Iterable[int]) -> None:
        super().__init__(consumer, on_rebalance, on_error)
        self.share = list(share)

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        from confluent_kafka import TopicPartition

        rows = [TopicPartition(topic, number, 0) for topic in topics for number in self.share]
        self.consumer.assign(rows)
        self.on_rebalance("assigned", rows)

    def generation(self) -> int:
        return -1


class KafkaPython:
    """kafka-python."""

    def __init__(self, config: Mapping[str, Any], assignors: Sequence[str], on_rebalance: OnRebalance) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        known = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor, CooperativeStickyAssignor)
        classes = {one.name: one for one in known}
        settings = {name.replace(".", "_"): value for name, value in config.items()}
        self.consumer = KafkaConsumer(partition_assignment_strategy=[classes[name] for name in assignors], **settings)

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                on_rebalance("assigned", assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                on_rebalance("revoked", revoked)

            def on_partitions_lost(self, lost: Iterable[Any]) -> None:
                on_rebalance("lost", lost)

        self.listener = Listener()

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        self.consumer.subscribe(topics=topics, pattern=pattern, listener=self.listener)
        # kafka-python 3.0 joins before it has the metadata of its topics, and joins again when it has. If the response of the
        # second join arrives after the poll that sent it, the rebalance is forgotten (`need_rejoin` is false by then): the
        # member neither receives its partitions nor sends heartbeats. So request the metadata first.
        for topic in topics:
            self.consumer.partitions_for_topic(topic)

    def poll(self) -> Ranges:
        ranges: Ranges = {}
        for records in self.consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=_BATCH).values():
            for record in records:
                extend(ranges, record.topic, record.partition, record.offset)
        return ranges

    def commit(self) -> Mapping[str, Mapping[int, int]]:
        self.consumer.commit()
        offsets: dict[str, dict[int, int]] = {}
        for one in self.consumer.assignment():
            offset = self.consumer.committed(one)
            if offset is not None:
                offsets.setdefault(one.topic, {})[one.partition] = offset
        return offsets

    def owned(self) -> Iterable[Any]:
        partitions: Iterable[Any] = self.consumer.assignment()
        return partitions

    def generation(self) -> int:
        return int(self.consumer.group_metadata().generation_id)

    def member_id(self) -> str:
        return str(self.consumer.group_metadata().member_id)

    def enforce_rebalance(self, reason: str | None) -> None:
        raise NotImplementedError("kafka-python cannot request a rebalance")

    def close(self) -> None:
        self.consumer.close(autocommit=False)


class Aiokafka:
    """aiokafka; all members of a process share one loop, which runs in a separate thread."""

    def __init__(self, config: Mapping[str, Any], assignors: Sequence[str], on_rebalance: OnRebalance) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        known = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)
        classes = {one.name: one for one in known}
        settings = {name.replace(".", "_"): value for name, value in config.items()}
        self.on_rebalance = on_rebalance

        async def make() -> Any:
            strategy = [classes[name] for name in assignors]
            return AIOKafkaConsumer(partition_assignment_strategy=strategy, **settings)

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka's module is not followed
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                on_rebalance("assigned", assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                on_rebalance("revoked", revoked)

        self.listener = Listener()
        self.consumer = _on_loop(make())
        self.started = False

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        self.consumer.subscribe(topics=topics, pattern=pattern, listener=self.listener)
        if not self.started:
            _on_loop(self.consumer.start())
            self.started = True

    def poll(self) -> Ranges:
        ranges: Ranges = {}
        batch = self.consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=_BATCH)
        for records in _on_loop(batch).values():
            for record in records:
                extend(ranges, record.topic, record.partition, record.offset)
        return ranges

    def commit(self) -> Mapping[str, Mapping[int, int]]:
        async def commit() -> Mapping[str, Mapping[int, int]]:
            await self.consumer.commit()
            offsets: dict[str, dict[int, int]] = {}
            for one in self.consumer.assignment():
                offset = await self.consumer.committed(one)
                if offset is not None:
                    offsets.setdefault(one.topic, {})[one.partition] = offset
            return offsets

        return _on_loop(commit())

    def owned(self) -> Iterable[Any]:
        partitions: Iterable[Any] = self.consumer.assignment()
        return partitions

    def generation(self) -> int:
        return int(self._coordinator.generation)

    def member_id(self) -> str:
        return str(self._coordinator.member_id)

    @property
    def _coordinator(self) -> Any:
        return self.consumer._coordinator

    def enforce_rebalance(self, reason: str | None) -> None:
        raise NotImplementedError("aiokafka cannot request a rebalance")

    def close(self) -> None:
        left = list(self.consumer.assignment())
        _on_loop(self.consumer.stop())
        # aiokafka does not call the listener when the consumer stops.
        self.on_rebalance("revoked", left)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="aiokafka's loop", daemon=True).start()
    return loop


def _on_loop(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


def make(setup: Mapping[str, Any], number: int, on_rebalance: OnRebalance, on_error: Callable[[str], None]) -> Adapter:
    """Return the consumer of the ``number``-th member of a driver's setup."""
    config, assignors, client = setup["config"], setup.get("assignors"), setup["client"]
    if client == "kafka-python":
        return KafkaPython(config, assignors or (), on_rebalance)
    if client == "aiokafka":
        return Aiokafka(config, assignors or (), on_rebalance)
    if assignors:
        config = {**config, "partition.assignment.strategy": ",".join(assignors)}
    if client in ("ours", "ours-columns"):
        from consumer_coord import GroupConsumer

        kind = Ours if client == "ours" else OursColumns
        return kind(GroupConsumer(config), on_rebalance, on_error, setup.get("batch", _BATCH))
    from confluent_kafka import Consumer

    if client == "manual":
        return ByHand(Consumer(config), on_rebalance, on_error, range(number, setup["partitions"], len(setup["members"])))
    return Confluent(Consumer(config), on_rebalance, on_error, setup.get("batch", _BATCH))
