"""Handle the requests of transactional producers, and the requests about transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.errors import AppendError, TransactionError
from consumer_coord.broker.group_offsets import Commit, CommitResult, Committer
from consumer_coord.broker.group_store import GROUP_METADATA_TOPIC
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.transaction import (
    NEW_CLIENT,
    NO_EPOCH,
    NO_ID,
    OLD_CLIENT,
    ProducerEpoch,
    Transaction,
    TransactionState,
)
from consumer_coord.topic_partition import grouped
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.log import InitProducerIdRequest, InitProducerIdResponse
from consumer_coord.wire.messages.transactions import (
    ADD_PARTITIONS_BY_CLIENTS,
    TXN_OFFSET_COMMIT_BY_NAME,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_Partitions = Collection[tuple[str, int]]
_NO_SEQUENCE: Final = -1
#: API key -> the first version whose clients know PRODUCER_FENCED; older clients get INVALID_PRODUCER_EPOCH.
_FENCED_FROM: Final = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
_NEW_END_FROM = 5
#: The versions of Produce and TxnOffsetCommit from which TRANSACTION_ABORTABLE is known, and from which the request adds the
#: partitions to the transaction (KIP-890).
PRODUCE_VERSIONS: Final = (11, 12)
_OFFSET_VERSIONS: Final = (4, 5)


def _code(error: TransactionError, api: str, version: int) -> int:
    if error.code == error_codes.PRODUCER_FENCED and version < _FENCED_FROM[api]:
        return error_codes.INVALID_PRODUCER_EPOCH
    return error.code


async def init_producer_id(node: BrokerNode, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Serve InitProducerId: for an idempotent producer, and for a transactional producer, which fences its predecessors."""
    expected = ProducerEpoch(request.producer_id, request.producer_epoch)
    named = expected.producer_id != NO_ID
    transactional_id = request.transactional_id
    error_code, producer = error_codes.NONE, ProducerEpoch(NO_ID, NO_EPOCH)
    if named != (expected.epoch != NO_EPOCH) or transactional_id == "":
        error_code = error_codes.INVALID_REQUEST
    elif transactional_id is None:
        producer = ProducerEpoch(node.cluster.next_producer_id(), 0)
    else:
        try:
            producer = node.transactions.init_producer_id(
                transactional_id, request.transaction_timeout_ms, expected if named else None
            )
        except TransactionError as error:
            error_code = _code(error, "InitProducerId", context.api_version)
    return InitProducerIdResponse(error_code=error_code, producer_id=producer.producer_id, producer_epoch=producer.epoch)


# -- adding partitions


async def add_partitions_to_txn(
    node: BrokerNode, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Serve AddPartitionsToTxn: up to version 3 from clients, later versions from brokers, which may only verify partitions."""
    if context.api_version > ADD_PARTITIONS_BY_CLIENTS:
        return AddPartitionsToTxnResponse(
            results_by_transaction=tuple(
                AddPartitionsToTxnResult(one.transactional_id, _add(node, context, one, NEW_CLIENT))
                for one in request.transactions
            )
        )
    single = AddPartitionsToTxnTransaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_add(node, context, single, OLD_CLIENT))


def _add(
    node: BrokerNode, context: RequestContext, wanted: AddPartitionsToTxnTransaction, client_version: int
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    topics = node.cluster.topics
    partitions = [(topic.name, index) for topic in wanted.topics for index in topic.partitions]
    missing = {one for one in partitions if topics.partition(*one) is None}
    producer = ProducerEpoch(wanted.producer_id, wanted.producer_epoch)
    codes = dict.fromkeys(partitions, error_codes.NONE)
    if missing:
        for one in partitions:
            unknown = one in missing
            codes[one] = error_codes.UNKNOWN_TOPIC_OR_PARTITION if unknown else error_codes.OPERATION_NOT_ATTEMPTED
    else:
        try:
            if wanted.verify_only:
                codes = node.transactions.verify(wanted.transactional_id, producer, partitions)
            else:
                node.transactions.add_partitions(wanted.transactional_id, producer, partitions, client_version)
        except TransactionError as error:
            codes = dict.fromkeys(partitions, _code(error, "AddPartitionsToTxn", context.api_version))
    rows = grouped((topic, AddPartitionsToTxnPartitionResult(index, code)) for (topic, index), code in codes.items())
    return tuple(AddPartitionsToTxnTopicResult(topic, tuple(results)) for topic, results in rows.items())


async def add_offsets_to_txn(
    node: BrokerNode, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Serve AddOffsetsToTxn: add the group's partition of ``__consumer_offsets`` to a transaction."""
    offsets = (GROUP_METADATA_TOPIC, node.cluster.coordinator_partition(request.group_id))
    producer = ProducerEpoch(request.producer_id, request.producer_epoch)
    try:
        node.transactions.add_partitions(request.transactional_id, producer, [offsets], OLD_CLIENT)
    except TransactionError as error:
        return AddOffsetsToTxnResponse(error_code=_code(error, "AddOffsetsToTxn", context.api_version))
    return AddOffsetsToTxnResponse(error_code=error_codes.NONE)


def add_or_verify(
    node: BrokerNode,
    transactional_id: str,
    producer: ProducerEpoch,
    partitions: Mapping[tuple[str, int], int],
    version: int,
    versions: tuple[int, int],
) -> dict[tuple[str, int], int]:
    """Ask the transaction coordinator about partitions to which a producer writes (``AddPartitionsToTxnManager``).

    ``partitions`` has the first sequence number of each partition. ``versions`` are those from which the request knows
    TRANSACTION_ABORTABLE, and from which it adds partitions. Return an error code for each partition to which the producer may
    not write, and 0 for each partition that the coordinator allows; partitions with an ongoing transaction need no permission.
    """
    knows_abortable, adds = version >= versions[0], version >= versions[1]
    wanted: list[tuple[str, int]] = []
    refused: dict[tuple[str, int], int] = {}
    for (topic, index), sequence in partitions.items():
        found = node.cluster.topics.partition(topic, index)
        if found is None or found.leader != node.broker_id:
            continue  # The caller refuses the partition.
        if not found.log.has_ongoing_transaction(producer.producer_id, producer.epoch):
            try:
                found.log.producers.begin_verification(producer.producer_id, producer.epoch, sequence, adds)
                wanted.append((topic, index))
            except AppendError as error:
                refused[topic, index] = error.code
    if not wanted:
        return refused
    coordinator = node.cluster.transaction_coordinator_of(transactional_id)
    if coordinator is None:
        return refused | dict.fromkeys(wanted, error_codes.COORDINATOR_NOT_AVAILABLE)
    try:
        if adds:
            coordinator.transactions.add_partitions(transactional_id, producer, wanted, NEW_CLIENT)
            return refused | dict.fromkeys(wanted, error_codes.NONE)
        codes = coordinator.transactions.verify(transactional_id, producer, wanted)
    except TransactionError as error:
        fenced = error.code == error_codes.PRODUCER_FENCED
        return refused | dict.fromkeys(wanted, error_codes.INVALID_PRODUCER_EPOCH if fenced else error.code)
    refusal = error_codes.TRANSACTION_ABORTABLE if knows_abortable else error_codes.INVALID_TXN_STATE
    return refused | {one: refusal if code else code for one, code in codes.items()}


# -- ending


async def end_txn(node: BrokerNode, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Serve EndTxn: commit or abort a transaction; the markers are written before the response, if that is possible."""
    client_version = NEW_CLIENT if context.api_version >= _NEW_END_FROM else OLD_CLIENT
    producer = ProducerEpoch(request.producer_id, request.producer_epoch)
    try:
        after = node.transactions.end(request.transactional_id, producer, request.committed, client_version)
    except TransactionError as error:
        return EndTxnResponse(error_code=_code(error, "EndTxn", context.api_version))
    return EndTxnResponse(error_code=error_codes.NONE, producer_id=after.producer_id, producer_epoch=after.epoch)


# -- offsets


async def txn_offset_commit(
    node: BrokerNode, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Serve TxnOffsetCommit: offsets that become effective when the transaction commits."""
    topics = node.cluster.topics
    by_id = context.api_version > TXN_OFFSET_COMMIT_BY_NAME
    commits: list[Commit] = []
    results: list[CommitResult] = []
    for topic in request.topics:
        known = topics.by_id.get(topic.topic_id) if by_id else topics.by_name.get(topic.name)
        name, topic_id = (topic.name, topic.topic_id) if known is None else (known.name, known.topic_id)
        for row in topic.partitions:
            commit = Commit(
                name, row.partition_index, row.committed_offset, row.committed_leader_epoch, row.committed_metadata, topic_id
            )
            if known is None and by_id:
                results.append((commit, error_codes.UNKNOWN_TOPIC_ID))
            elif known is None or not 0 <= row.partition_index < len(known.partitions):
                results.append((commit, error_codes.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                commits.append(commit)
    if commits:
        results = [*await _commit(node, context, request, commits), *results]
    rows = grouped(
        ((commit.topic, commit.topic_id), TxnOffsetCommitResponsePartition(commit.partition, code)) for commit, code in results
    )
    return TxnOffsetCommitResponse(
        topics=tuple(TxnOffsetCommitResponseTopic(name, topic_id, tuple(found)) for (name, topic_id), found in rows.items())
    )


async def _commit(
    node: BrokerNode, context: RequestContext, request: TxnOffsetCommitRequest, commits: list[Commit]
) -> list[CommitResult]:
    if not request.group_id:
        return [(commit, error_codes.INVALID_GROUP_ID) for commit in commits]
    offsets = (GROUP_METADATA_TOPIC, node.cluster.coordinator_partition(request.group_id))
    producer = ProducerEpoch(request.producer_id, request.producer_epoch)
    version = context.api_version
    codes = add_or_verify(node, request.transactional_id, producer, {offsets: _NO_SEQUENCE}, version, _OFFSET_VERSIONS)
    code = codes.get(offsets, error_codes.NONE)
    if code:
        return [(commit, code) for commit in commits]
    committer = Committer(request.group_id, request.generation_id_or_member_epoch, request.member_id, request.group_instance_id)
    return await node.coordinator.offsets.commit(version, committer, commits, producer.producer_id, producer.epoch)


# -- administration


async def describe_transactions(
    node: BrokerNode, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Serve DescribeTransactions."""
    return DescribeTransactionsResponse(
        transaction_states=tuple(_describe(node, transactional_id) for transactional_id in request.transactional_ids)
    )


def _describe(node: BrokerNode, transactional_id: str) -> DescribedTransaction:
    try:
        found: Transaction = node.transactions.describe(transactional_id)
    except TransactionError as error:
        return DescribedTransaction(transactional_id=transactional_id, error_code=error.code)
    by_topic = grouped(sorted(found.partitions))
    return DescribedTransaction(
        error_code=error_codes.NONE,
        transactional_id=transactional_id,
        transaction_state=found.state.text,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(DescribedTransactionTopic(topic, tuple(indexes)) for topic, indexes in by_topic.items()),
    )


async def list_transactions(
    node: BrokerNode, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """Serve ListTransactions: the transactional ids of this coordinator that match the filters."""
    try:
        found: Iterable[Transaction] = tuple(
            node.transactions.list(
                request.state_filters,
                request.producer_id_filters,
                request.duration_filter,
                request.transactional_id_pattern,
            )
        )
    except TransactionError as error:
        return ListTransactionsResponse(error_code=error.code)
    names = {state.text for state in TransactionState}
    return ListTransactionsResponse(
        error_code=error_codes.NONE,
        unknown_state_filters=tuple(name for name in dict.fromkeys(request.state_filters) if name not in names),
        transaction_states=tuple(ListedTransaction(one.transactional_id, one.producer_id, one.state.text) for one in found),
    )
