"""The simulated cluster: the production brokers behind the simulated network, each in its own process.

User topics have record batches (``record_log.py``), and so has ``__consumer_offsets``. The brokers pass each record of the
latter to ``on_record``. The checkers compare the actions of members and applications with these records.
"""

from __future__ import annotations

import bisect
import math
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

import attrs

from consumer_coord.broker.classic_group import GroupMetadata
from consumer_coord.broker.cluster import BrokerCluster, BrokerNode
from consumer_coord.broker.config import RACK_AWARE_SELECTOR, BrokerConfig
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.group_store import GROUP_METADATA_TOPIC, StoreHooks
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.topic_settings import LogSettings
from consumer_coord.broker.transaction_coordinator import TRANSACTION_STATE_TOPIC
from consumer_coord.errors import UnsupportedVersionError
from consumer_coord.simulation.exactly_once import OUTPUTS, WRITTEN, ExactlyOnceRules, WrittenLog
from consumer_coord.simulation.handlers import LETTERS, HandlerRules, LettersLog
from consumer_coord.simulation.loop import VirtualTimeLoop
from consumer_coord.simulation.network import Server, SimulatedNetwork
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.record_log import RecordedLog
from consumer_coord.simulation.scenario import Fetching
from consumer_coord.simulation.wrong_answers import WrongAnswer, WrongApis
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import decode_request_header, decode_response, encode_response
from consumer_coord.wire.messages.cluster import ApiVersionsResponse

#: The start of the simulation's calendar, in milliseconds; constant, so that a seed can be replayed.
EPOCH_MS = 1_700_000_000_000

_FETCH = 1
#: First version of Fetch with topic ids.
_TOPIC_IDS_FROM = 13
_API_VERSIONS = 18

#: The number of keys of one partition's records, if members order them by key.
_KEYS = 4
#: The newest brokers, and no transactions.
_PLAIN = Fetching()

#: The topics that no member reads.
_NOT_READ = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, LETTERS, OUTPUTS)

#: Called with (key, value, offset) of each record of ``__consumer_offsets``.
OnRecord = Callable[[bytes, "bytes | None", int], None]
#: Called with (topic, partition, settings) for the log of a user topic.
NewLog = Callable[[str, int, LogSettings], PartitionLog]


class OffsetsObserver(Protocol):
    """Is told what transactions write to a partition of ``__consumer_offsets``."""

    def on_transactional_record(self, partition: int, producer_id: int, key: bytes, value: bytes) -> None:
        """Process a record of a transaction."""

    def on_offsets_marker(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """Process the end of a transaction."""


class ObservedLog(PartitionLog):
    """A partition of ``__consumer_offsets`` that reports each new record, and the ends of transactions."""

    def __init__(self, settings: LogSettings, number: int, on_record: OnRecord, transactions: OffsetsObserver | None) -> None:
        super().__init__(settings)
        self._number = number
        self._on_record = on_record
        self._transactions = transactions

    def append_records(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        timestamp_ms: int,
        leader_epoch: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> int:
        """Append like the production log, and report the records."""
        base = super().append_records(records, timestamp_ms, leader_epoch, producer_id, producer_epoch)
        for offset, (key, value) in enumerate(records, base):
            if key is not None and producer_id < 0:
                self._on_record(key, value, offset)
            elif key is not None and value is not None and self._transactions is not None:
                self._transactions.on_transactional_record(self._number, producer_id, key, value)
        return base

    def append_marker(
        self,
        timestamp_ms: int,
        leader_epoch: int,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int = 0,
    ) -> int:
        """Append like the production log, and report the end of the transaction."""
        offset = super().append_marker(timestamp_ms, leader_epoch, producer_id, producer_epoch, committed, coordinator_epoch)
        if self._transactions is not None:
            self._transactions.on_offsets_marker(self._number, producer_id, committed=committed)
        return offset


#: How long the error of a wrong response may be raised after the last wrong response, in seconds.
_ERRED_S = 10.0


class AgedApis:
    """The request handler of a broker that serves Fetch only up to a version, like a broker of an older release."""

    def __init__(self, apis: Server, newest_fetch: Callable[[], int]) -> None:
        self._apis = apis
        self._newest_fetch = newest_fetch

    @property
    def up(self) -> bool:
        """Whether the broker runs."""
        return self._apis.up

    async def handle(self, frame: bytes, client: ClientConnection) -> bytes | None:
        """Serve one request frame, as :class:`~consumer_coord.broker.kafka_apis.KafkaApis`."""
        header = decode_request_header(frame)
        if header.api_key == _FETCH and header.version > self._newest_fetch():
            raise UnsupportedVersionError(f"this broker does not serve Fetch in version {header.version}")
        answer = await self._apis.handle(frame, client)
        if header.api_key != _API_VERSIONS or answer is None:
            return answer
        correlation_id, response = decode_response(ApiVersionsResponse, header.version, answer)
        keys = [
            attrs.evolve(key, max_version=self._newest_fetch()) if key.api_key == _FETCH else key for key in response.api_keys
        ]
        return encode_response(attrs.evolve(response, api_keys=keys), header.version, correlation_id)


class SimulatedCluster:
    """Brokers on the simulated network, each with its own host and process."""

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
        fetching: Fetching | None = None,
        seed: int = 0,
        handlers: HandlerRules | None = None,
        exactly_once: ExactlyOnceRules | None = None,
        offsets_observer: OffsetsObserver | None = None,
        new_log: NewLog | None = None,
        serve: Callable[[Server], Server] = lambda apis: apis,
    ) -> None:
        """Create the brokers. A random generator from ``seed`` begins and ends transactions in user topics.

        With ``handlers``, most records have a key, and there is a topic for dead letters. With ``exactly_once``, there are the
        topics to which members write. ``new_log`` creates the logs of user topics in place of :class:`RecordedLog`. ``serve``
        may replace what serves the requests to each broker.
        """
        self._new_user_log = new_log
        fetching = fetching or _PLAIN
        self._handlers = handlers
        self._exactly_once = exactly_once
        self._offsets_observer = offsets_observer
        self.loop = loop
        self.network = network
        self.loading_ms = 0
        #: How the brokers answer wrongly at present.
        self.wrong_answers: list[WrongAnswer] = []
        #: Partition -> (first offset, time) of each call of :meth:`produce`.
        self._appended: defaultdict[TopicPartition, list[tuple[int, float]]] = defaultdict(list)
        #: When brokers last ceased to answer wrongly, and to edit responses.
        self._wrong_at = self._edited_at = -math.inf
        #: A wrong response -> the one that the broker gave.
        self._told: dict[bytes, bytes] = {}
        #: Whether brokers have refused the look-up of a partition.
        self.refused: bool = False
        self._on_record = on_record
        self._fetching = fetching
        self._seed = seed
        self._settled = False
        #: Every log with records, by the number of the log, including the logs of deleted topics.
        self.logs: list[RecordedLog] = []
        #: The newest Fetch version that each broker serves, by the index of the broker. If empty, brokers serve all versions.
        self.fetch_versions: list[int] = list(fetching.versions[:brokers])
        #: True after a broker served only versions without topic ids.
        self.fetches_by_name: bool = min(self.fetch_versions, default=_TOPIC_IDS_FROM) < _TOPIC_IDS_FROM
        config = attrs.evolve(
            config,
            max_incremental_fetch_session_cache_slots=config.max_incremental_fetch_session_cache_slots
            if fetching is _PLAIN
            else fetching.session_slots,
            replica_selector_class=RACK_AWARE_SELECTOR if fetching.racks else config.replica_selector_class,
        )
        racks = [f"rack-{number}" for number in range(brokers)] if fetching.racks else racks
        self.kafka: BrokerCluster = BrokerCluster(
            config,
            brokers=brokers,
            random=random,
            wall_clock_ms=self.wall_clock_ms,
            racks=racks,
            hooks=StoreHooks(append_error=self._append_error, loading_delay_ms=lambda _: self.loading_ms),
        )
        self.kafka.topics.new_log = self._new_log
        for partition in self.kafka.topics.by_name[GROUP_METADATA_TOPIC].partitions:
            partition.log = self._new_log(GROUP_METADATA_TOPIC, partition.index, partition.log.settings)
        for name, count in topics.items():
            self.kafka.create_topic(name, count)
        if handlers is not None:
            self.kafka.create_topic(LETTERS, 1)
        for name, count in WRITTEN.items() if exactly_once is not None else ():
            self.kafka.create_topic(name, count)
        self.processes: list[Process] = [Process.on(loop, node.host) for node in self.kafka.nodes]
        for node, process in zip(self.kafka.nodes, self.processes, strict=True):
            network.listen(node.host, node.port, serve(self._apis(node)), process)

    def wall_clock_ms(self) -> int:
        """Return the simulation's calendar time in milliseconds."""
        return EPOCH_MS + int(self.loop.time() * 1000)

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """Return the bootstrap addresses for clients."""
        return tuple((node.host, node.port) for node in self.kafka.nodes)

    def start(self) -> None:
        """Start all brokers."""
        self.kafka.start_all()

    def close(self) -> None:
        """Stop all brokers permanently."""
        self.kafka.close()

    def _apis(self, node: BrokerNode) -> Server:
        apis = WrongApis(KafkaApis(node), self.wrong_answers, self._told)
        if not self.fetch_versions:
            return apis
        return AgedApis(apis, lambda: self.fetch_versions[node.broker_id])

    def _append_error(self, partition: int) -> int:
        return error_codes.NOT_ENOUGH_REPLICAS if self.kafka.faults.is_full else error_codes.NONE

    def _new_log(self, topic: str, partition: int, settings: LogSettings) -> PartitionLog:
        if topic == LETTERS and self._handlers is not None:
            return LettersLog(settings, self._handlers.letters)
        if topic in WRITTEN and self._exactly_once is not None:
            return WrittenLog(settings, TopicPartition(topic, partition), self._exactly_once)
        internal = topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
        if not internal and self._new_user_log is not None:
            return self._new_user_log(topic, partition, settings)
        if not internal:
            number, at = len(self.logs), TopicPartition(topic, partition)
            former = next((one for one in reversed(self.logs) if one.partition == at), None)
            if former is not None:
                former.replaced_at = self.loop.time()
            log = RecordedLog(
                settings,
                number=number,
                partition=at,
                random=Random(f"{self._seed}-log-{number}"),
                wall_clock_ms=self.wall_clock_ms,
                transactions=self._fetching.transactions and not self._settled,
                keys=_KEYS if self._handlers is not None else 0,
            )
            self.logs.append(log)
            return log
        if self._on_record is None or topic == TRANSACTION_STATE_TOPIC:
            return PartitionLog(settings)
        return ObservedLog(settings, partition, self._on_record, self._offsets_observer)

    # -- records of user topics -------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """Return every partition of every user topic."""
        return [
            TopicPartition(partition.topic, partition.index)
            for partition in self.kafka.topics.partitions()
            if partition.topic not in _NOT_READ
        ]

    def answer_wrongly(self, wrong: WrongAnswer) -> Callable[[], None]:
        """Make all brokers answer wrongly in one more way, until the returned function is called."""
        self.wrong_answers.append(wrong)
        self.refused |= wrong.refuses

        def end() -> None:
            self.wrong_answers.remove(wrong)
            self._wrong_at = self.loop.time()
            if wrong.edits:
                self._edited_at = self._wrong_at

        return end

    @property
    def errs(self) -> bool:
        """Whether brokers answer wrongly, or did so a moment ago, so that a lookup has little of its time limit left."""
        return bool(self.wrong_answers) or self.loop.time() < self._wrong_at + _ERRED_S

    @property
    def edits(self) -> bool:
        """Whether brokers edit responses, or did so a moment ago.

        A client remembers for some seconds which versions a broker claimed to support.
        """
        return any(one.edits for one in self.wrong_answers) or self.loop.time() < self._edited_at + _ERRED_S

    def honest(self, answer: bytes) -> bytes:
        """Return the response that the broker gave in place of a wrong one. Call this once for each response."""
        return self._told.pop(answer, answer)

    def produce(self, partition: TopicPartition, count: int) -> None:
        """Append records as a producer does."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        if found is not None and isinstance(found.log, RecordedLog):
            appended, first = self._appended[partition], found.log.end_offset
            if appended and appended[-1][0] >= first:
                # Another log, or a truncated one.
                appended.clear()
            appended.append((first, self.loop.moment))
            found.log.produce(count, found.leader_epoch)

    def appended_at(self, partition: TopicPartition, offset: int) -> float:
        """Return when a record was appended, in seconds on the loop's clock; infinite if this is not known."""
        appended = self._appended[partition]
        number = bisect.bisect_right(appended, (offset, math.inf))
        return appended[number - 1][1] if number else math.inf

    def settle(self) -> None:
        """End all open transactions. Later transactions end with the call that began them."""
        self._settled = True
        for partition in self.kafka.topics.partitions():
            if isinstance(partition.log, RecordedLog):
                partition.log.settle(partition.leader_epoch)

    def trim(self, partition: TopicPartition, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        if found is not None:
            found.log.delete_before(min(before, found.log.end_offset))

    def age(self, index: int, version: int) -> None:
        """Let a broker serve Fetch only up to this version."""
        self.fetch_versions[index] = version
        self.fetches_by_name = self.fetches_by_name or version < _TOPIC_IDS_FROM

    def log(self, partition: TopicPartition) -> object:
        """Return the current log; None if the partition does not exist."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        return None if found is None else found.log

    def log_start(self, partition: TopicPartition) -> int:
        """Return the log start offset; 0 if the partition does not exist."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        return 0 if found is None else found.log.log_start_offset

    def first_record(self, partition: TopicPartition, offset: int) -> int:
        """Return the first offset from ``offset`` on that has a record for consumers, or the end offset if there is none.

        A negative ``offset`` means that there is no offset; return it unchanged if the log has records.
        """
        log = self.log(partition)
        if not isinstance(log, RecordedLog):
            return offset
        first = log.first_record(max(offset, log.log_start_offset))
        return offset if offset < 0 and first < log.end_offset else first

    def agreed(self, partition: TopicPartition, offset: int, leader_epoch: int) -> int:
        """Return where a reader at ``offset``, in a leader epoch, continues: at a lower offset after a truncation.

        Without a leader epoch, at most the end of the log.
        """
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        if found is None:
            return offset
        if leader_epoch < 0:
            return min(offset, found.log.end_offset)
        if not isinstance(found.log, RecordedLog):
            return offset
        end = found.log.end_offset_for(leader_epoch, found.leader_epoch)[1]
        return offset if end < 0 else min(offset, end)

    def end_offset(self, partition: TopicPartition) -> int | None:
        """Return the end offset, or None if the partition does not exist."""
        found = self.kafka.topics.partition(partition.topic, partition.partition)
        return None if found is None else found.log.end_offset

    # -- faults -----------------------------------------------------------------------------------------------------

    def stop_broker(self, index: int) -> None:
        """Crash a broker: connections end, and other brokers become the leaders of the broker's partitions."""
        node = self.kafka.nodes[index]
        if node.up:
            self.kafka.stop(index)
            self.network.disconnect(node.host)
            # A crash also ends a pause. Otherwise the broker would process old requests after its restart.
            self.processes[index].thaw()

    def start_broker(self, index: int) -> None:
        """Start a broker again."""
        self.kafka.start(index)

    def move_broker(self, index: int) -> None:
        """Give a stopped broker another port; clients learn the port from the metadata of other brokers."""
        node = self.kafka.nodes[index]
        self.network.move(node.host, node.port, node.port + 1)
        node.port += 1

    def brokers_up(self) -> list[int]:
        """Return the indexes of the running brokers."""
        return [index for index, node in enumerate(self.kafka.nodes) if node.up]

    # -- for checkers -----------------------------------------------------------------------------------------------

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic; None for a deleted one."""
        found = self.kafka.topics.by_id.get(topic_id)
        return None if found is None else found.name

    def coordinator_of(self, group_id: str) -> BrokerNode | None:
        """Return the broker that coordinates a group, or None if no broker does."""
        return self.kafka.coordinator_of(group_id)

    def group(self, group_id: str) -> GroupMetadata | None:
        """Return the classic group, as the coordinator stores it."""
        node = self.kafka.coordinator_of(group_id)
        return None if node is None else node.coordinator.group(group_id)

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return the group of the consumer protocol, as the coordinator stores it."""
        node = self.kafka.coordinator_of(group_id)
        return None if node is None else node.coordinator.consumer_group(group_id)
