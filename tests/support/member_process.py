"""A Python client as a member of a group, in a process of its own; see `tests.support.members` for what it speaks."""

from __future__ import annotations

import asyncio
import json
import queue
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

Ranges: TypeAlias = dict[str, dict[int, list[int]]]
_POLL_S = 0.1
_BATCH = 500


class Partition(Protocol):
    """What all clients call a TopicPartition."""

    topic: str
    partition: int


class Record(Partition, Protocol):
    """A consumed record as far as it matters here."""

    offset: int


#: ``tell("assigned", partitions)``
Tell: TypeAlias = Callable[[str, Iterable[Any]], None]


class Adapter(Protocol):
    """One client, reduced to what a member does."""

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None: ...

    def poll(self) -> Ranges: ...

    def commit(self) -> Mapping[str, Mapping[int, int]]: ...

    def owned(self) -> Iterable[Any]: ...

    def generation(self) -> int: ...

    def member_id(self) -> str: ...

    def enforce_rebalance(self, reason: str | None) -> None: ...

    def close(self) -> None: ...


def by_topic(partitions: Iterable[Any]) -> dict[str, list[int]]:
    """Partitions as topic -> sorted numbers."""
    grouped: dict[str, list[int]] = {}
    for one in sorted(partitions, key=lambda one: (one.topic, one.partition)):
        grouped.setdefault(one.topic, []).append(one.partition)
    return grouped


def extend(ranges: Ranges, topic: str, partition: int, offset: int) -> None:
    """Count one record into ``ranges``."""
    seen = ranges.setdefault(topic, {}).setdefault(partition, [offset, offset, 0])
    seen[1] = offset
    seen[2] += 1


class Confluent:
    """confluent-kafka, and ours, which has the same methods."""

    def __init__(self, consumer: Any, tell: Tell, on_error: Callable[[str], None]) -> None:
        self.consumer = consumer
        self.tell = tell
        self.on_error = on_error

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        wanted = list(topics) if pattern is None else [pattern if pattern.startswith("^") else f"^{pattern}$"]
        self.consumer.subscribe(
            wanted,
            on_assign=lambda _, partitions: self.tell("assigned", partitions),
            on_revoke=lambda _, partitions: self.tell("revoked", partitions),
            on_lost=lambda _, partitions: self.tell("lost", partitions),
        )

    def poll(self) -> Ranges:
        ranges: Ranges = {}
        first = self.consumer.poll(_POLL_S)
        if first is None:
            return ranges
        for message in (first, *self.consumer.consume(_BATCH, 0)):
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

    def owned(self) -> Iterable[Any]:
        partitions: Iterable[Any] = self.consumer.assignment()
        return partitions

    def generation(self) -> int:
        # librdkafka's own serialisation: b"CGMDv2:", then the generation as a native int32
        metadata = bytes(self.consumer.consumer_group_metadata())
        found: int = struct.unpack_from("=i", metadata, 7)[0]
        return found

    def member_id(self) -> str:
        return str(self.consumer.memberid())

    def enforce_rebalance(self, reason: str | None) -> None:
        raise NotImplementedError("librdkafka cannot ask for a rebalance")

    def close(self) -> None:
        self.consumer.close()


class Ours(Confluent):
    """`consumer_coord.GroupConsumer`."""

    def generation(self) -> int:
        # not consumer_group_metadata(): it would hold the member's next join back until the next poll
        found: int = self.consumer.generation()
        return found

    def enforce_rebalance(self, reason: str | None) -> None:
        self.consumer.enforce_rebalance(reason or "")


class KafkaPython:
    """kafka-python."""

    def __init__(self, config: Mapping[str, Any], assignors: Sequence[str], tell: Tell) -> None:
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
                tell("assigned", assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                tell("revoked", revoked)

            def on_partitions_lost(self, lost: Iterable[Any]) -> None:
                tell("lost", lost)

        self.listener = Listener()

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        self.consumer.subscribe(topics=topics, pattern=pattern, listener=self.listener)
        # kafka-python 3.0 joins before it knows its topics, joins again when it does, and forgets that second rebalance
        # for good if its answer comes after the end of the poll that began it (`need_rejoin` is false by then): the
        # member neither takes its partitions nor sends heartbeats. So it gets to know them first.
        for topic in topics:
            self.consumer.partitions_for_topic(topic)

    def poll(self) -> Ranges:
        ranges: Ranges = {}
        for records in self.consumer.poll(timeout_ms=int(_POLL_S * 1000), max_records=_BATCH).values():
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
        raise NotImplementedError("kafka-python cannot ask for a rebalance")

    def close(self) -> None:
        self.consumer.close(autocommit=False)


class Aiokafka:
    """aiokafka, on a loop that runs while we poll, which is nearly always."""

    def __init__(self, config: Mapping[str, Any], assignors: Sequence[str], tell: Tell) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        known = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)
        classes = {one.name: one for one in known}
        settings = {name.replace(".", "_"): value for name, value in config.items()}
        self.loop = asyncio.new_event_loop()

        async def make() -> Any:
            strategy = [classes[name] for name in assignors]
            return AIOKafkaConsumer(partition_assignment_strategy=strategy, **settings)

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka's module is not followed
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                tell("assigned", assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                tell("revoked", revoked)

        self.listener = Listener()
        self.consumer = self.loop.run_until_complete(make())
        self.started = False

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        self.consumer.subscribe(topics=topics, pattern=pattern, listener=self.listener)
        if not self.started:
            self.loop.run_until_complete(self.consumer.start())
            self.started = True

    def poll(self) -> Ranges:
        ranges: Ranges = {}
        batch = self.consumer.getmany(timeout_ms=int(_POLL_S * 1000), max_records=_BATCH)
        for records in self.loop.run_until_complete(batch).values():
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

        return self.loop.run_until_complete(commit())

    def owned(self) -> Iterable[Any]:
        partitions: Iterable[Any] = self.consumer.assignment()
        return partitions

    def generation(self) -> int:
        return int(self.consumer._coordinator.generation)

    def member_id(self) -> str:
        return str(self.consumer._coordinator.member_id)

    def enforce_rebalance(self, reason: str | None) -> None:
        raise NotImplementedError("aiokafka cannot ask for a rebalance")

    def close(self) -> None:
        self.loop.run_until_complete(self.consumer.stop())


class MemberProcess:
    """Polls, carries out commands, and tells what happens."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.setup = setup
        self.commands: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.writing = threading.Lock()  # kafka-python calls its listener on a thread of its own
        self.polling = True
        self.total = 0
        self.adapter: Adapter = self.make()

    def make(self) -> Adapter:
        config, assignors, client = self.setup["config"], self.setup["assignors"], self.setup["client"]
        if client == "kafka-python":
            return KafkaPython(config, assignors, self.tell)
        if client == "aiokafka":
            return Aiokafka(config, assignors, self.tell)
        with_assignors = {**config, "partition.assignment.strategy": ",".join(assignors)} if assignors else config
        if client == "ours":
            from consumer_coord import GroupConsumer

            return Ours(GroupConsumer(with_assignors), self.tell, self.tell_error)
        from confluent_kafka import Consumer

        return Confluent(Consumer(with_assignors), self.tell, self.tell_error)

    def run(self) -> None:
        """Until told to end."""
        threading.Thread(target=self.read_commands, name="commands", daemon=True).start()
        self.adapter.subscribe(self.setup["topics"], self.setup["pattern"])
        self.emit({"event": "ready"})
        while True:
            try:
                line = self.commands.get(block=not self.polling)
            except queue.Empty:
                self.poll()
                continue
            if line is None or not self.execute(json.loads(line)):
                self.adapter.close()
                return

    def poll(self) -> None:
        try:
            ranges = self.adapter.poll()
        except Exception as error:  # noqa: BLE001 - told to whoever drives this member
            self.tell_error(f"{type(error).__name__}: {error}")
            time.sleep(_POLL_S)
            return
        self.total += sum(count for partitions in ranges.values() for _, _, count in partitions.values())
        if ranges and self.setup["report"]:
            event = {"event": "records", "ranges": ranges, "total": self.total}
            self.emit({**event, "generation": self.adapter.generation()})

    def execute(self, command: Mapping[str, Any]) -> bool:
        """Carry out one command and answer it; False when the member is to end."""
        answer: dict[str, Any] = {"event": "answer", "id": command["id"]}
        try:
            match command["command"]:
                case "close":
                    self.adapter.close()
                    self.emit(answer)
                    sys.exit(0)
                case "commit":
                    answer["offsets"] = self.adapter.commit()
                case "enforce_rebalance":
                    self.adapter.enforce_rebalance(command.get("reason"))
                case "start_polling":
                    self.polling = True
                case "stop_polling":
                    self.polling = False
                case "state":
                    answer.update(owned=by_topic(self.adapter.owned()), total=self.total)
                    answer.update(generation=self.adapter.generation(), member_id=self.adapter.member_id())
                case "subscribe":
                    self.adapter.subscribe(command.get("topics", ()), command.get("pattern"))
                case unknown:
                    answer["error"] = f"unknown command {unknown}"
        except Exception as error:  # noqa: BLE001 - told to whoever drives this member
            answer["error"] = f"{type(error).__name__}: {error}"
        self.emit(answer)
        return True

    def tell(self, what: str, partitions: Iterable[Any]) -> None:
        """A callback of the client."""
        generation = self.adapter.generation() if hasattr(self, "adapter") else -1
        self.emit({"event": what, "partitions": by_topic(partitions), "generation": generation})

    def tell_error(self, error: str) -> None:
        self.emit({"event": "error", "error": error})

    def emit(self, event: Mapping[str, Any]) -> None:
        line = json.dumps({**event, "at_ns": time.monotonic_ns()})
        with self.writing:
            print(line, flush=True)

    def read_commands(self) -> None:
        for line in sys.stdin:
            self.commands.put(line)
        self.commands.put(None)


if __name__ == "__main__":
    MemberProcess(json.loads(sys.argv[1])).run()
