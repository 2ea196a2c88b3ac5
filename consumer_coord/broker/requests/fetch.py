"""Handle Fetch: read partitions' logs, with or without fetch sessions (KIP-227), by topic name or topic id (KIP-516)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence

import attrs

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.config import RACK_AWARE_SELECTOR
from consumer_coord.broker.fetch_sessions import NO_SESSION, FetchContext, TopicName
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.requests.log import READ_COMMITTED
from consumer_coord.broker.topics import Partition
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.log import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchLeaderIdAndEpoch,
    FetchNodeEndpoint,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

_NO_EPOCH = -1
#: The first version in which consumers may fetch from followers (KIP-392).
_FOLLOWERS_FROM = 11
_TOPIC_IDS_FROM = 13
#: The first version in which a broker that is not the leader names the leader in its response (KIP-951).
_LEADERS_FROM = 16
_waiters = itertools.count()

Wanted = tuple[TopicName, FetchPartition]


async def fetch(node: BrokerNode, context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Serve Fetch: read batches. If there are fewer than ``min_bytes``, first wait up to ``max_wait_ms`` for more."""
    by_id = node.cluster.topics.by_id
    reading = node.fetch_sessions.begin(
        context.api_version,
        request,
        lambda topic_id: by_id[topic_id].name if topic_id in by_id else None,
        asyncio.get_running_loop().time(),
    )
    if reading.error_code:
        return FetchResponse(session_id=NO_SESSION, error_code=reading.error_code)
    reader = _Reader(node, context.api_version, request)
    if request.max_wait_ms > 0 and request.min_bytes > 0:
        await reader.wait_for_records(reading.wanted)
    session = reading.session
    if session is not None and session.epoch != reading.epoch:
        # Another request of the session was served during the wait, on another connection.
        return FetchResponse(session_id=session.session_id, error_code=error_codes.INVALID_FETCH_SESSION_EPOCH)
    rows = _news(reading, reader.read(reading.wanted))
    return FetchResponse(
        session_id=NO_SESSION if session is None else session.session_id,
        responses=_by_topic(rows),
        node_endpoints=reader.endpoints(data for _, data in rows),
    )


def _news(reading: FetchContext, rows: Sequence[tuple[TopicName, PartitionData]]) -> Sequence[tuple[TopicName, PartitionData]]:
    """Return the rows of the response: in an incremental Fetch only the changed rows, otherwise all rows."""
    if reading.session is None:
        return rows
    news = [(topic, data) for topic, data in rows if reading.session.answered(topic, data)]
    return news if reading.incremental else rows


def _by_topic(rows: Iterable[tuple[TopicName, PartitionData]]) -> Sequence[FetchableTopicResponse]:
    return tuple(
        FetchableTopicResponse(
            topic=topic.name or "", topic_id=topic.topic_id, partitions=tuple(data for _, data in partitions)
        )
        for topic, partitions in itertools.groupby(rows, key=lambda row: row[0])
    )


def _without_records(wanted: FetchPartition, code: int) -> PartitionData:
    """Return the row of a partition that was not read; as in Kafka, without aborted transactions (empty, or None)."""
    unknown = code in (error_codes.UNKNOWN_TOPIC_ID, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    return PartitionData(
        partition_index=wanted.partition,
        error_code=code,
        high_watermark=-1,
        aborted_transactions=() if unknown else None,
        records=b"",
    )


def _row(partition: Partition, records: bytes = b"", aborted: Sequence[AbortedTransaction] | None = None) -> PartitionData:
    """Return the row of a partition of which this broker has the log."""
    log = partition.log
    return PartitionData(
        partition_index=partition.index,
        high_watermark=log.end_offset,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=aborted,
        records=records,
    )


class _Reader:
    """Reads the partitions of one request."""

    def __init__(self, node: BrokerNode, version: int, request: FetchRequest) -> None:
        self._node = node
        self._version = version
        self._request = request
        self._committed = request.isolation_level == READ_COMMITTED
        #: Whether the request has waited for records.
        self._waited = False

    def read(self, wanted: Sequence[Wanted]) -> Sequence[tuple[TopicName, PartitionData]]:
        """Read every partition, within the request's byte limits. The first batch is returned even if it is larger."""
        budget = min(self._request.max_bytes, self._node.cluster.config.fetch_max_bytes)
        rows = []
        empty_so_far = True
        for topic, partition in wanted:
            data = self._read(topic, partition, budget, empty_so_far)
            size = len(data.records or b"")
            budget = max(budget - size, 0)
            empty_so_far = empty_so_far and not size
            rows.append((topic, data))
        return rows

    def endpoints(self, rows: Iterable[PartitionData]) -> Sequence[FetchNodeEndpoint]:
        """Return the addresses of the leaders that the response names."""
        leaders = sorted({data.current_leader.leader_id for data in rows if data.current_leader.leader_id >= 0})
        nodes = [self._node.cluster.node(leader) for leader in leaders]
        return tuple(FetchNodeEndpoint(node_id=one.broker_id, host=one.host, port=one.port, rack=one.rack) for one in nodes)

    async def wait_for_records(self, wanted: Sequence[Wanted]) -> None:
        """Wait until there is enough to read, there is another reason to respond, or the time is over."""
        found = [(self._find(topic, partition), partition) for topic, partition in wanted]
        partitions = [(one, partition) for one, partition in found if isinstance(one, Partition)]
        ready = [self._available(*one) for one in partitions]
        if len(partitions) < len(found) or not partitions or sum(ready) >= self._request.min_bytes:
            return
        done = asyncio.Event()

        def on_append(place: int) -> Callable[[int], None]:
            def appended(size: int) -> None:
                # With read_committed, new records may belong to an open transaction, and a marker may make earlier records
                # readable.
                ready[place] = self._available(*partitions[place]) if self._committed else ready[place] + size
                if not size or sum(ready) >= self._request.min_bytes:
                    done.set()  # Size 0 means that the leader changed or the topic was deleted.

            return appended

        self._waited = True
        number = next(_waiters)
        # A session may contain a partition twice: with the id of a deleted topic, and with the id of the new topic of the same
        # name.
        for place, (one, _) in enumerate(partitions):
            one.log.on_append[number, place] = on_append(place)
        self._node.waiting[number] = done.set
        timer = self._node.purgatory.schedule(self._request.max_wait_ms, done.set)
        try:
            await done.wait()
        finally:
            self._node.purgatory.cancel(timer)
            self._node.waiting.pop(number, None)
            for place, (one, _) in enumerate(partitions):
                one.log.on_append.pop((number, place), None)

    def _available(self, partition: Partition, wanted: FetchPartition) -> int:
        log = partition.log
        if wanted.fetch_offset >= self._before(partition):
            return 0
        return log.available(
            wanted.fetch_offset, min(self._request.min_bytes, wanted.partition_max_bytes), self._before(partition)
        )

    def _before(self, partition: Partition) -> int:
        """Return the offset before which the client may read."""
        return partition.log.last_stable_offset if self._committed else partition.log.end_offset

    def _read(self, topic: TopicName, wanted: FetchPartition, budget: int, at_least_one: bool) -> PartitionData:
        found = self._find(topic, wanted)
        if isinstance(found, PartitionData):
            return found
        log = found.log
        records = log.read(wanted.fetch_offset, min(budget, wanted.partition_max_bytes), at_least_one, self._before(found))
        aborted = None
        if self._committed:
            aborted = tuple(
                AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
                for one in (log.aborted_transactions(wanted.fetch_offset) if records else ())
            )
        return _row(found, records, aborted)

    def _find(self, topic: TopicName, wanted: FetchPartition) -> Partition | PartitionData:
        """Return the partition if this broker must read it, otherwise a row without records."""
        code, partition = self._look_up(topic, wanted)
        if partition is None:
            return self._refusal(code, topic, wanted)
        log = partition.log
        in_range = log.log_start_offset <= wanted.fetch_offset <= log.end_offset
        preferred = self._preferred_replica(partition)
        if preferred is not None and in_range:
            # As in Kafka, name a preferred replica only if it has the offset.
            return attrs.evolve(_row(partition), preferred_read_replica=preferred)
        if wanted.last_fetched_epoch != _NO_EPOCH:
            epoch, end_offset = log.end_offset_for(wanted.last_fetched_epoch, partition.leader_epoch)
            if epoch == _NO_EPOCH:
                return _without_records(wanted, error_codes.OFFSET_OUT_OF_RANGE)
            if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
                return attrs.evolve(_row(partition), diverging_epoch=FetchEpochEndOffset(epoch=epoch, end_offset=end_offset))
        if not in_range:
            return _without_records(wanted, error_codes.OFFSET_OUT_OF_RANGE)
        return partition

    def _look_up(self, topic: TopicName, wanted: FetchPartition) -> tuple[int, Partition | None]:
        """Return (0, the partition), or (error code, None)."""
        topics = self._node.cluster.topics
        if topic.name is None:
            return error_codes.UNKNOWN_TOPIC_ID, None
        partition = topics.partition(topic.name, wanted.partition)
        if partition is None:
            return error_codes.UNKNOWN_TOPIC_OR_PARTITION, None
        here = self._node.broker_id
        if here not in partition.replicas:
            return error_codes.NOT_LEADER_OR_FOLLOWER, None
        if topic.topic_id.int and topics.by_name[topic.name].topic_id != topic.topic_id:
            # The topic was deleted during the wait, and a new topic has its name. Respond as for the deleted topic.
            gone = error_codes.UNKNOWN_TOPIC_OR_PARTITION
            return gone if self._waited else error_codes.INCONSISTENT_TOPIC_ID, None
        if wanted.current_leader_epoch != _NO_EPOCH and wanted.current_leader_epoch < partition.leader_epoch:
            return error_codes.FENCED_LEADER_EPOCH, None
        if wanted.current_leader_epoch > partition.leader_epoch:
            return error_codes.UNKNOWN_LEADER_EPOCH, None
        if partition.leader != here and self._version < _FOLLOWERS_FROM:
            return error_codes.NOT_LEADER_OR_FOLLOWER, None
        return error_codes.NONE, partition

    def _refusal(self, code: int, topic: TopicName, wanted: FetchPartition) -> PartitionData:
        stale = code in (error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.FENCED_LEADER_EPOCH)
        partition = self._node.cluster.topics.partition(topic.name or "", wanted.partition)
        if not stale or partition is None or self._version < _LEADERS_FROM:
            return _without_records(wanted, code)
        return attrs.evolve(
            _without_records(wanted, code),
            current_leader=FetchLeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch),
        )

    def _preferred_replica(self, partition: Partition) -> int | None:
        """Return the replica in the client's rack, if the leader is in another rack (``RackAwareReplicaSelector``)."""
        cluster, rack = self._node.cluster, self._request.rack_id
        if cluster.config.replica_selector_class != RACK_AWARE_SELECTOR or not rack or self._version < _FOLLOWERS_FROM:
            return None
        if partition.leader != self._node.broker_id or self._node.rack == rack:
            return None
        near = (broker for broker in partition.replicas if cluster.is_up(broker) and cluster.rack_of(broker) == rack)
        return next(near, None)
