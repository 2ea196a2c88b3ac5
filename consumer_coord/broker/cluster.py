"""The brokers of one embedded cluster, and their shared state: topics, leaders, clock, random numbers, faults.

The cluster runs on one event loop, in real or in virtual time, and uses no sockets. A TCP server or a simulated network passes
the frames for a broker to :meth:`~consumer_coord.broker.kafka_apis.KafkaApis.handle`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import attrs

from consumer_coord.broker.client_metrics import ClientMetrics
from consumer_coord.broker.client_quotas import ClientQuotas
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.consumer_group.topics_image import MetadataImage
from consumer_coord.broker.data_dir import DataDirectory, StoredCluster, partition_directory, stored_topics
from consumer_coord.broker.errors import AppendError
from consumer_coord.broker.faults import Faults
from consumer_coord.broker.fetch_sessions import FetchSessions
from consumer_coord.broker.group_coordinator import GroupCoordinator
from consumer_coord.broker.group_settings import GroupSettings
from consumer_coord.broker.group_store import GROUP_METADATA_TOPIC, StoreHooks
from consumer_coord.broker.java_hash import partition_for
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.purgatory import DelayedOperation, Purgatory
from consumer_coord.broker.topic_settings import LogSettings
from consumer_coord.broker.topics import NO_LEADER, Partition, Topic, Topics, name_problem
from consumer_coord.broker.transaction import Transaction
from consumer_coord.broker.transaction_coordinator import TRANSACTION_STATE_TOPIC, TransactionCoordinator
from consumer_coord.errors import ConfigurationError
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import Request

#: The first producer id. Kafka assigns ids in blocks per broker; this cluster uses one counter.
_FIRST_PRODUCER_ID = 1000
#: Number of producer ids reserved on disk at a time.
_PRODUCER_ID_BLOCK = 1000
#: Maximum number of cached Metadata responses.
_KEPT_METADATA = 100


class BrokerNode:
    """A broker of a cluster. ``host`` and ``port`` are the address that the broker advertises to clients."""

    def __init__(self, cluster: BrokerCluster, broker_id: int, rack: str | None = None) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.rack = rack
        self.host: str = f"broker-{broker_id}"
        self.port = 9092
        self.up: bool = False
        self.purgatory: Purgatory = Purgatory()
        self.coordinator: GroupCoordinator = GroupCoordinator(
            cluster.config,
            random=cluster.random,
            wall_clock_ms=cluster.wall_clock_ms,
            purgatory=self.purgatory,
            hooks=attrs.evolve(
                cluster.hooks,
                append_error=lambda partition: cluster.append_error() or cluster.hooks.append_error(partition),
            ),
            image=MetadataImage(cluster.topics, cluster.rack_of),
            group_settings=cluster.group_settings,
        )
        self.transactions: TransactionCoordinator = TransactionCoordinator(
            cluster.config, cluster, self.purgatory, cluster.wall_clock_ms
        )
        self.fetch_sessions: FetchSessions = FetchSessions(
            cluster.config.max_incremental_fetch_session_cache_slots, cluster.random
        )
        #: Functions that wake the Fetch requests that wait for records on this broker; called when the broker stops.
        self.waiting: dict[int, Callable[[], None]] = {}
        self._retention: DelayedOperation | None = None

    def watch_retention(self) -> None:
        """Delete records older than ``retention.ms`` every ``log.retention.check.interval.ms``, while the broker is up."""
        if self.up and self._retention is None:
            interval_ms = self.cluster.config.log_retention_check_interval_ms
            self._retention = self.purgatory.schedule(interval_ms, self._delete_older)

    def _delete_older(self) -> None:
        self._retention = None
        for partition in self.cluster.topics.partitions():
            if partition.leader == self.broker_id:
                partition.log.delete_older(self.cluster.wall_clock_ms())
        self.watch_retention()

    def shut_down(self) -> None:
        """Stop at once: requests in progress end without a response."""
        self.up = False
        self.coordinator.close()
        self.transactions.close()
        self.fetch_sessions.clear()
        for wake in tuple(self.waiting.values()):
            wake()
        self.purgatory.close()
        self._retention = None


class BrokerCluster:
    """A cluster of one or more brokers. Use it on one running event loop, from :meth:`start_all` to :meth:`close`."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        topics: Mapping[str, int] | None = None,
        brokers: int = 1,
        *,
        random: Random,
        wall_clock_ms: Callable[[], int],
        racks: Sequence[str | None] = (),
        hooks: StoreHooks | None = None,
        storage: DataDirectory | None = None,
    ) -> None:
        self.config: BrokerConfig = config or BrokerConfig()
        self._first_config = self.config
        #: The settings of the brokers that were changed while they run.
        self.changed_settings: Mapping[str, str] = {}
        self.group_settings: GroupSettings = GroupSettings(self.config)
        self.client_quotas: ClientQuotas = ClientQuotas()
        self.random = random
        self.wall_clock_ms = wall_clock_ms
        self.faults: Faults = Faults()
        self.client_metrics: ClientMetrics = ClientMetrics(random, wall_clock_ms)
        self.hooks: StoreHooks = hooks or StoreHooks()
        self._storage = storage
        stored = None if storage is None else storage.stored
        self._metadata: dict[tuple[int, Any], bytes] = {}
        self._metadata_version = -1
        self.cluster_id: str = _short_id(random) if stored is None else stored.cluster_id
        self._next_producer_id = _FIRST_PRODUCER_ID if stored is None else stored.next_producer_id
        self._producer_ids_until = self._next_producer_id
        self._racks = tuple(racks)
        ids = tuple(range(brokers))
        self.topics: Topics = Topics(self.config, ids, _memory_log if storage is None else storage.new_log)
        self.nodes: tuple[BrokerNode, ...] = tuple(BrokerNode(self, broker_id, self.rack_of(broker_id)) for broker_id in ids)
        if stored is not None:
            self._restore(stored)
        for name, partitions in (topics or {}).items():
            problem = name_problem(name)
            if problem is not None or partitions < 1:
                raise ConfigurationError(problem or f"topic {name} has {partitions} partitions")
            present = self.topics.by_name.get(name)
            if present is None:
                self.create_topic(name, partitions)
            elif len(present.partitions) < partitions:
                self.grow_topic(name, partitions)
        if GROUP_METADATA_TOPIC not in self.topics.by_name:
            self._create_internal(GROUP_METADATA_TOPIC, self.config.offsets_topic_num_partitions)

    # -- brokers

    def node(self, broker_id: int) -> BrokerNode:
        """Return a broker by its id, which is its index in ``nodes``."""
        return self.nodes[broker_id]

    def rack_of(self, broker_id: int) -> str | None:
        """Return the rack of a broker; None if the broker has no rack."""
        return self._racks[broker_id] if broker_id < len(self._racks) else None

    def start_all(self) -> None:
        """Start every broker, and load the groups. Call it on the loop."""
        for node in self.nodes:
            node.up = True
        self.topics.version += 1
        for partition in self.topics.partitions():
            if partition.leader == NO_LEADER:
                partition.leader = self._first_up(partition)
        for partition in self.topics.partitions():
            self._elected(partition)
        self._watch_retention()

    def close(self) -> None:
        """Stop every broker permanently."""
        for node in self.nodes:
            node.shut_down()

    def stop(self, broker_id: int) -> None:
        """Stop a broker at once, like a crash: its partitions move to the other replicas."""
        node = self.nodes[broker_id]
        if not node.up:
            return
        node.shut_down()
        self.topics.version += 1
        for partition in self.topics.partitions():
            if partition.leader == node.broker_id:
                self._lead(partition, self._first_up(partition))

    def start(self, broker_id: int) -> None:
        """Start a broker again. The broker becomes the leader of its partitions that have no leader."""
        node = self.nodes[broker_id]
        if node.up:
            return
        node.up = True
        self.topics.version += 1
        for partition in self.topics.partitions():
            if partition.leader == NO_LEADER and node.broker_id in partition.replicas:
                self._lead(partition, node.broker_id)
        self._watch_retention()

    def move_leader(self, topic: str, partition: int, to: int, end_offset: int | None = None) -> None:
        """Make broker ``to``, which must be up, the leader of a partition; add it to the replicas if needed.

        With an ``end_offset``, the election is unclean: the new leader does not have the records at this offset and above.
        """
        found = self.topics.partition(topic, partition)
        if found is None:
            raise KeyError(f"{topic}-{partition}")
        target = self.nodes[to]
        if not target.up:
            raise ValueError(f"broker {target.broker_id} is down")
        if target.broker_id not in found.replicas:
            found.replicas = (*found.replicas, target.broker_id)
        if end_offset is not None:
            found.log.truncate_to(end_offset, found.leader_epoch + 1)
        if found.leader != target.broker_id or end_offset is not None:
            self._lead(found, target.broker_id)

    def move_coordinator(self, partition: int, to: int) -> None:
        """Make broker ``to`` the coordinator of the groups of one partition of ``__consumer_offsets``."""
        self.move_leader(GROUP_METADATA_TOPIC, partition, to)

    def is_up(self, broker_id: int) -> bool:
        """Return whether a broker runs."""
        return self.node(broker_id).up

    @property
    def controller_id(self) -> int:
        """The lowest id of a broker that is up."""
        return next((node.broker_id for node in self.nodes if node.up), NO_LEADER)

    def assign_replicas(self, partition: Partition, replicas: Sequence[int]) -> None:
        """Give a partition other replicas, which exist: every broker has every log, so nothing is copied."""
        partition.replicas = tuple(replicas)
        if partition.leader in partition.replicas:
            self.topics.moved(partition)
        else:
            self._lead(partition, self._first_up(partition))

    def _lead(self, partition: Partition, leader: int) -> None:
        former = partition.leader
        self.topics.set_leader(partition, leader)
        coordinators = _COORDINATORS.get(partition.topic)
        if coordinators is not None:
            if former != NO_LEADER:
                coordinators(self.node(former)).on_resignation(partition.index)
            self._elected(partition)
        else:
            # End the waits of Fetch requests at the former leader, because their clients must fetch from the new leader.
            for callback in tuple(partition.log.on_append.values()):
                callback(0)

    def _elected(self, partition: Partition) -> None:
        """Let the leader load the groups or the transactions of an internal topic's partition."""
        coordinators = _COORDINATORS.get(partition.topic)
        if coordinators is not None and partition.leader != NO_LEADER:
            coordinators(self.node(partition.leader)).on_election(partition.index, partition.log, partition.leader_epoch)

    def _first_up(self, partition: Partition) -> int:
        return next((broker for broker in partition.replicas if self.is_up(broker)), NO_LEADER)

    # -- metadata

    def kept_metadata(self, request: Request) -> bytes | None:
        """Return the cached response to an equal Metadata request, without correlation id; None if there is none."""
        if self._metadata_version != self.topics.version:
            self._metadata_version = self.topics.version
            self._metadata.clear()
        return self._metadata.get((request.version, request.message))

    def keep_metadata(self, request: Request, answer: bytes) -> None:
        """Cache a Metadata response until brokers or topics change, because the members of a large group send equal requests.

        Do not cache the response if its request created a topic.
        """
        if self._metadata_version == self.topics.version and len(self._metadata) < _KEPT_METADATA:
            self._metadata[request.version, request.message] = answer

    # -- groups and transactions

    def coordinator_partition(self, group_id: str) -> int:
        """Return the partition of ``__consumer_offsets`` that contains a group's records."""
        return partition_for(group_id, self.config.offsets_topic_num_partitions)

    def coordinator_of(self, group_id: str) -> BrokerNode | None:
        """Return the broker that coordinates a group; None if the group has no coordinator."""
        return self._leader_of(GROUP_METADATA_TOPIC, self.coordinator_partition(group_id))

    def transaction_coordinator_of(self, transactional_id: str) -> BrokerNode | None:
        """Return the broker that coordinates a transactional id; None if it has no coordinator."""
        count = self.config.transaction_state_log_num_partitions
        return self._leader_of(TRANSACTION_STATE_TOPIC, partition_for(transactional_id, count))

    def create_transaction_topic(self) -> None:
        """Create ``__transaction_state`` unless it exists: Kafka does this when a client first looks for a coordinator."""
        if TRANSACTION_STATE_TOPIC not in self.topics.by_name:
            count = self.config.transaction_state_log_num_partitions
            for partition in self._create_internal(TRANSACTION_STATE_TOPIC, count).partitions:
                self._elected(partition)

    def write_marker(self, topic: str, partition: int, ended: Transaction, coordinator_epoch: int) -> bool:
        """Write the marker of a transaction to a partition; return False if the partition cannot be written at present."""
        found = self.topics.partition(topic, partition)
        if found is None:
            return True  # The topic was deleted.
        if found.leader == NO_LEADER:
            return False
        try:
            self.append_marker(found, ended.producer_id, ended.producer_epoch, ended.is_committed, coordinator_epoch)
        except AppendError:
            return False  # The coordinator retries.
        return True

    def append_marker(
        self, partition: Partition, producer_id: int, producer_epoch: int, committed: bool, coordinator_epoch: int
    ) -> None:
        """Write a marker to a partition that has a leader, and apply the offsets of the transaction.

        Raise :class:`~consumer_coord.broker.errors.AppendError` if the marker cannot be written at present.
        """
        code = self.append_error()
        if code:
            raise AppendError(code, "the disk is full")
        marker = (producer_id, producer_epoch, committed, coordinator_epoch)
        if partition.topic != GROUP_METADATA_TOPIC:
            partition.log.append_marker(self.wall_clock_ms(), partition.leader_epoch, *marker)
        elif not self.node(partition.leader).coordinator.offsets.end_transaction(partition.index, *marker):
            raise AppendError(error_codes.COORDINATOR_LOAD_IN_PROGRESS, "the groups of this partition are loading")

    def _leader_of(self, topic: str, index: int) -> BrokerNode | None:
        partition = self.topics.partition(topic, index)
        return None if partition is None or partition.leader == NO_LEADER else self.node(partition.leader)

    # -- topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        internal: bool = False,
    ) -> Topic:
        """Add a topic. The caller validates names and numbers that come from a client."""
        topic = self.topics.create(
            name,
            self.config.num_partitions if partitions is None else partitions,
            uuid.UUID(int=self.random.getrandbits(128), version=4),
            replication_factor=min(replication_factor or self.config.default_replication_factor, len(self.topics.brokers)),
            configs=configs or {},
            is_up=self.is_up,
            assignments=assignments,
            internal=internal,
        )
        self._save()
        self._watch_retention()
        return topic

    def _create_internal(self, name: str, partitions: int) -> Topic:
        return self.create_topic(name, partitions, configs={"cleanup.policy": "compact"}, internal=True)

    def grow_topic(self, name: str, partitions: int, assignments: Sequence[Sequence[int]] | None = None) -> None:
        """Add partitions to a topic, up to a total of ``partitions``."""
        self.topics.grow(self.topics.by_name[name], partitions, self.is_up, assignments)
        self._save()

    def change_settings(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a topic, which the caller has checked, and apply them to its logs."""
        self.topics.configure(self.topics.by_name[name], configs)
        self._save()
        self._watch_retention()

    def with_settings(self, changed: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration with changed settings of the brokers.

        Raise :class:`~consumer_coord.errors.ConfigurationError` for an invalid value.
        """
        return BrokerConfig.from_mapping({**self._first_config.to_mapping(), **changed})

    def change_broker_settings(self, config: BrokerConfig, changed: Mapping[str, str]) -> None:
        """Replace the changed settings of all brokers, which are defaults of topics, and apply them to the logs."""
        self.config = self.topics.config = config
        self.changed_settings = changed
        for topic in self.topics.by_name.values():
            self.topics.configure(topic, topic.configs)
        self._watch_retention()

    def clean_topic(self, name: str) -> None:
        """Apply ``retention.ms``, and ``cleanup.policy=compact``, to a topic now, as Kafka's cleaner does from time to time.

        Raise :class:`KeyError` if the topic does not exist.
        """
        for partition in self.topics.by_name[name].partitions:
            partition.log.delete_older(self.wall_clock_ms())
            if partition.log.settings.compacted:
                partition.log.compact(self.wall_clock_ms())

    def _watch_retention(self) -> None:
        """Let the brokers delete old records from time to time, while there is a topic with ``retention.ms``."""
        if any(partition.log.settings.retention_ms >= 0 for partition in self.topics.partitions()):
            for node in self.nodes:
                node.watch_retention()

    def delete_topic(self, name: str) -> None:
        """Remove a topic, its records and its committed offsets; raise :class:`KeyError` if the topic does not exist."""
        topic = self.topics.delete(name)
        for partition in topic.partitions:
            partition.leader = NO_LEADER
            for callback in tuple(partition.log.on_append.values()):
                callback(0)
        for node in self.nodes:
            node.coordinator.offsets.delete_topic((name,))
        self._save(partition_directory(name, partition.index) for partition in topic.partitions)

    def next_producer_id(self) -> int:
        """Return a new id for an idempotent producer; ids are not reused after a restart."""
        self._next_producer_id += 1
        if self._next_producer_id > self._producer_ids_until:
            self._producer_ids_until += _PRODUCER_ID_BLOCK
            self._save()
        return self._next_producer_id - 1

    def _restore(self, stored: StoredCluster) -> None:
        for topic in stored.topics:
            setting, wanted = {
                GROUP_METADATA_TOPIC: ("offsets.topic.num.partitions", self.config.offsets_topic_num_partitions),
                TRANSACTION_STATE_TOPIC: (
                    "transaction.state.log.num.partitions",
                    self.config.transaction_state_log_num_partitions,
                ),
            }.get(topic.name, ("", topic.partitions))
            if topic.partitions != wanted:
                raise ConfigurationError(f"{setting} is {wanted}, but the data directory was created with {topic.partitions}")
            restored = self.topics.create(
                topic.name,
                topic.partitions,
                topic.id,
                replication_factor=min(topic.replication_factor, len(self.topics.brokers)),
                configs=topic.configs,
                is_up=self.is_up,
                internal=topic.internal,
            )
            for partition in restored.partitions:
                # The leader before the restart used the last epoch in the log, so the next leader needs a higher epoch.
                partition.leader_epoch = partition.log.epoch_at(partition.log.end_offset) + 1

    def _save(self, deleting: Iterable[str] = ()) -> None:
        if self._storage is not None:
            self._storage.save(
                StoredCluster(
                    self.cluster_id,
                    self._producer_ids_until,
                    stored_topics(self.topics.by_name.values()),
                    tuple(deleting),
                )
            )

    @property
    def log_dir(self) -> str:
        """The directory of the logs; without a data directory, a name."""
        return "memory" if self._storage is None else str(self._storage.path)

    def append_error(self) -> int:
        """Return the error code with which every append fails at present, or 0 if appends succeed."""
        return error_codes.KAFKA_STORAGE_ERROR if self.faults.is_full else error_codes.NONE


#: The internal topics -> the coordinator that a partition's leader has.
_COORDINATORS: Mapping[str, Callable[[BrokerNode], GroupCoordinator | TransactionCoordinator]] = {
    GROUP_METADATA_TOPIC: lambda node: node.coordinator,
    TRANSACTION_STATE_TOPIC: lambda node: node.transactions,
}


def _memory_log(topic: str, partition: int, settings: LogSettings) -> PartitionLog:
    return PartitionLog(settings)


def _short_id(random: Random) -> str:
    """Return 22 characters of URL-safe base64, the form of Kafka's cluster ids."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return "".join(alphabet[random.getrandbits(6)] for _ in range(22))
