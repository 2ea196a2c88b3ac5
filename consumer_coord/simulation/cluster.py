"""The simulated cluster: the production brokers behind the simulated network, each in a process of its own.

User topics hold no records, only how many there are: a :class:`CountingLog` counts, and the application of the simulation
reads numbers.  ``__consumer_offsets`` is real, record for record; every record is shown to ``on_record`` as it is written,
so what the log says is the truth that everything else is checked against.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from random import Random

from consumer_coord.broker.cluster import BrokerCluster, BrokerNode
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.group import GroupMetadata
from consumer_coord.broker.group_store import GROUP_METADATA_TOPIC, StoreHooks
from consumer_coord.broker.kafka_apis import KafkaApis
from consumer_coord.broker.log import PartitionLog
from consumer_coord.broker.topics import NO_LEADER
from consumer_coord.simulation.data_plane import Found
from consumer_coord.simulation.loop import VirtualTimeLoop
from consumer_coord.simulation.network import SimulatedNetwork
from consumer_coord.simulation.process import Process
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes

#: The calendar begins here, in milliseconds: the same on every day on which a seed is replayed.
EPOCH_MS = 1_700_000_000_000

#: Called with (key, value, offset) of each record of ``__consumer_offsets``.
OnRecord = Callable[[bytes, "bytes | None", int], None]


class CountingLog(PartitionLog):
    """A log of which only the end is known."""

    def produce(self, count: int) -> None:
        """``count`` more records are in it."""
        self.end_offset += count


class ObservedLog(PartitionLog):
    """A log whose every record is shown as it is written."""

    def __init__(self, retention_bytes: int, max_batch_bytes: int, on_record: OnRecord) -> None:
        super().__init__(retention_bytes, max_batch_bytes)
        self._on_record = on_record

    def append_records(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        timestamp_ms: int,
        leader_epoch: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> int:
        """As the production log, and then tell."""
        base = super().append_records(records, timestamp_ms, leader_epoch, producer_id, producer_epoch)
        for offset, (key, value) in enumerate(records, base):
            if key is not None:
                self._on_record(key, value, offset)
        return base


class SimulatedCluster:
    """Brokers, each a host and a process, on the simulated network."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        network: SimulatedNetwork,
        random: Random,
        *,
        config: BrokerConfig,
        brokers: int,
        topics: Mapping[str, int],
        racks: Sequence[str | None] = (),
        on_record: OnRecord | None = None,
    ) -> None:
        self.loop = loop
        self.network = network
        self.loading_ms = 0
        #: Called with each partition that got records, for the members that read them.
        self.on_records: dict[object, Callable[[TopicPartition], None]] = {}
        self._on_record = on_record
        self.kafka = BrokerCluster(
            config,
            brokers=brokers,
            random=random,
            wall_clock_ms=self.wall_clock_ms,
            racks=racks,
            hooks=StoreHooks(append_error=self._append_error, loading_delay_ms=lambda _: self.loading_ms),
        )
        self.kafka.topics.new_log = self._new_log
        for partition in self.kafka.topics.by_name[GROUP_METADATA_TOPIC].partitions:
            partition.log = self._new_log(GROUP_METADATA_TOPIC, partition.index, -1, config.message_max_bytes)
        for name, count in topics.items():
            self.kafka.create_topic(name, count)
        self.processes = [Process.on(loop, node.host) for node in self.kafka.nodes]
        for node, process in zip(self.kafka.nodes, self.processes, strict=True):
            network.listen(node.host, node.port, KafkaApis(node), process)

    def wall_clock_ms(self) -> int:
        """The simulation's calendar."""
        return EPOCH_MS + int(self.loop.time() * 1000)

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """Where clients begin."""
        return tuple((node.host, node.port) for node in self.kafka.nodes)

    def start(self) -> None:
        """All brokers come up."""
        self.kafka.start_all()

    def close(self) -> None:
        """All brokers go for good."""
        self.kafka.close()

    def _append_error(self, partition: int) -> int:
        return error_codes.NOT_ENOUGH_REPLICAS if self.kafka.faults.is_full else error_codes.NONE

    def _new_log(self, topic: str, partition: int, retention_bytes: int, max_batch_bytes: int) -> PartitionLog:
        if topic != GROUP_METADATA_TOPIC:
            return CountingLog(retention_bytes, max_batch_bytes)
        if self._on_record is None:
            return PartitionLog(retention_bytes, max_batch_bytes)
        return ObservedLog(retention_bytes, max_batch_bytes, self._on_record)

    # -- records of user topics -------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """Every partition of every user topic."""
        return [
            TopicPartition(partition.topic, partition.index)
            for partition in self.kafka.topics.partitions()
            if partition.topic != GROUP_METADATA_TOPIC
        ]

    def produce(self, partition: TopicPartition, count: int) -> None:
        """A producer wrote records."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        if found is not None and isinstance(found.log, CountingLog):
            found.log.produce(count)
            for called in tuple(self.on_records.values()):
                called(partition)

    def trim(self, partition: TopicPartition, before: int) -> None:
        """Retention: records before an offset are gone."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        if found is not None:
            found.log.delete_before(min(before, found.log.end_offset))

    def log(self, partition: TopicPartition) -> object:
        """The log that there is now; None when there is no such partition."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        return None if found is None else found.log

    def log_start(self, partition: TopicPartition) -> int:
        """The first offset there is."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        return 0 if found is None else found.log.log_start_offset

    def reached(self, partition: TopicPartition, host: str) -> Found | None:
        """See :class:`~consumer_coord.simulation.data_plane.Brokers`."""
        found = self.kafka.topics.partition(*partition)
        if found is None or found.leader == NO_LEADER:
            return None
        # A broker's id is its place among the nodes.
        node = self.kafka.nodes[found.leader]
        if not node.up or self.processes[found.leader].frozen or not self.network.passes_both_ways(host, node.host):
            return None
        return found

    def end_offset(self, partition: TopicPartition) -> int | None:
        """How many records there are; None when there is no such partition."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        return None if found is None else found.log.end_offset

    # -- what goes wrong --------------------------------------------------------------------------------------------

    def stop_broker(self, index: int) -> None:
        """A broker crashes: its connections end, its partitions go to others."""
        node = self.kafka.nodes[index]
        if node.up:
            self.kafka.stop(index)
            self.network.disconnect(node.host)

    def start_broker(self, index: int) -> None:
        """It comes back."""
        self.kafka.start(index)

    def index_of(self, node: BrokerNode) -> int:
        """The index of a broker."""
        return self.kafka.nodes.index(node)

    def brokers_up(self) -> list[int]:
        """The indexes of the brokers that run."""
        return [index for index, node in enumerate(self.kafka.nodes) if node.up]

    # -- for checkers -----------------------------------------------------------------------------------------------

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name of a topic; None for one that is gone."""
        found = self.kafka.topics.by_id.get(topic_id)
        return None if found is None else found.name

    def coordinator_of(self, group_id: str) -> BrokerNode | None:
        """The broker that coordinates a group."""
        return self.kafka.coordinator_of(group_id)

    def group(self, group_id: str) -> GroupMetadata | None:
        """The group as its coordinator has it."""
        node = self.kafka.coordinator_of(group_id)
        return None if node is None else node.coordinator.group(group_id)

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """The same of a group of the consumer protocol."""
        node = self.kafka.coordinator_of(group_id)
        return None if node is None else node.coordinator.consumer_group(group_id)
