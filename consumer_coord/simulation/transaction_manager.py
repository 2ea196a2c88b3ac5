"""The transactions of a simulated producer: Kafka's ``TransactionManager`` with ``transaction.version`` 2 (KIP-890).

A Produce or TxnOffsetCommit request adds its partition to the transaction, and every end of a transaction increments the
producer's epoch, so that a late request of an earlier transaction is refused. An error is one of three kinds: *retriable* (call
again), *abortable* (``txn_requires_abort()``: abort the transaction), or *fatal* (create another producer).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from consumer_coord.confluent.types import KafkaError, KafkaException
from consumer_coord.consumer.group_metadata import ConsumerGroupMetadata
from consumer_coord.errors import CoordinatorError
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.net.group_requests import GROUP, TRANSACTION, coordinator_in, find_coordinator
from consumer_coord.net.metadata import Broker
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, grouped
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.log import InitProducerIdRequest, InitProducerIdResponse
from consumer_coord.wire.messages.transactions import (
    TXN_OFFSET_COMMIT_BY_NAME,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

#: (producer id, epoch)
Identity: TypeAlias = tuple[int, int]

_FENCED: Final = (error_codes.PRODUCER_FENCED, error_codes.INVALID_PRODUCER_EPOCH)
#: After these errors, another broker may be the coordinator.
_MOVED: Final = (
    error_codes.NOT_COORDINATOR,
    error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.REQUEST_TIMED_OUT,
)
#: The errors of each request that only end the transaction; all other errors that are not retriable are fatal, as in Kafka.
_ABORTABLE: Final[Mapping[str, tuple[int, ...]]] = {
    "InitProducerId": (),
    "TxnOffsetCommit": (
        error_codes.GROUP_AUTHORIZATION_FAILED,
        error_codes.FENCED_INSTANCE_ID,
        error_codes.TRANSACTION_ABORTABLE,
        error_codes.UNKNOWN_MEMBER_ID,
        error_codes.ILLEGAL_GENERATION,
    ),
    "EndTxn": (error_codes.TRANSACTION_ABORTABLE, error_codes.UNKNOWN_PRODUCER_ID, error_codes.INVALID_PRODUCER_ID_MAPPING),
}
#: The errors of a batch after which the producer cannot continue.
_FATAL_IN_PRODUCE: Final = (
    error_codes.PRODUCER_FENCED,
    error_codes.INVALID_PRODUCER_ID_MAPPING,
    error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    error_codes.CLUSTER_AUTHORIZATION_FAILED,
)


class ProducerState(enum.Enum):
    """The states of a transactional producer."""

    UNINITIALIZED = "Init"
    READY = "Ready"
    IN_TRANSACTION = "InTransaction"
    COMMITTING = "Committing"
    ABORTING = "Aborting"
    ABORTABLE_ERROR = "AbortableError"
    FATAL_ERROR = "FatalError"


#: Call -> the states in which it may be made.
_LEGAL: Final[Mapping[str, tuple[ProducerState, ...]]] = {
    "init_transactions": (ProducerState.UNINITIALIZED,),
    "begin_transaction": (ProducerState.READY,),
    "produce": (ProducerState.IN_TRANSACTION,),
    "send_offsets_to_transaction": (ProducerState.IN_TRANSACTION,),
    "commit_transaction": (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING),
    "abort_transaction": (
        ProducerState.IN_TRANSACTION,
        ProducerState.COMMITTING,
        ProducerState.ABORTING,
        ProducerState.ABORTABLE_ERROR,
    ),
}


class TransactionManager:
    """The state of one transactional producer, and its requests to the two coordinators.

    Every method that waits raises :class:`KafkaException` for an error. Times are in milliseconds.
    """

    def __init__(
        self, transactional_id: str, timeout_ms: int, cluster: ClusterClient, request_ms: float, retry_ms: float
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.state: ProducerState = ProducerState.UNINITIALIZED
        #: The producer id and epoch of the present transaction; None before the initialization.
        self.identity: Identity | None = None
        #: Whether a request was sent that may have begun the transaction at the coordinator.
        self.may_have_begun: bool = False
        self._cluster = cluster
        self._request_ms = request_ms
        self._retry_ms = retry_ms
        self._error: KafkaError | None = None
        #: Whether EndTxn with a commit was sent, so that the transaction can no longer be aborted.
        self._commit_sent = False
        #: (key type, key) -> the coordinator.
        self._coordinators: dict[tuple[int, str], Broker] = {}

    # -- states -------------------------------------------------------------------------------------------------------

    @property
    def sends(self) -> bool:
        """Whether records may be sent now."""
        return self.state in (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING)

    def check(self, call: str) -> None:
        """Raise an error unless the call may be made now."""
        legal = self.state in _LEGAL[call] and not (call == "abort_transaction" and self._commit_sent)
        if legal:
            return
        if self.state is ProducerState.FATAL_ERROR or (
            self.state is ProducerState.ABORTABLE_ERROR and call == "commit_transaction"
        ):
            assert self._error is not None
            raise KafkaException(self._error)
        text = f"{call} is not valid in state {self.state.value}"
        # As in librdkafka, all calls but produce say that the transaction must be aborted.
        abort = self.state is ProducerState.ABORTABLE_ERROR and call != "produce"
        raise KafkaException(KafkaError(KafkaError._STATE, text, txn_requires_abort=abort))

    def begin(self) -> None:
        """Begin a transaction, locally, as Kafka does."""
        self.check("begin_transaction")
        self.state = ProducerState.IN_TRANSACTION
        self.may_have_begun = False

    def begin_commit(self) -> None:
        """Accept no more records."""
        self.check("commit_transaction")
        self.state = ProducerState.COMMITTING

    def begin_abort(self) -> None:
        """Send no more records."""
        self.check("abort_transaction")
        self.state = ProducerState.ABORTING

    def check_sent(self) -> None:
        """Raise the error that a record of this transaction had, if one had one."""
        if self.state in (ProducerState.ABORTABLE_ERROR, ProducerState.FATAL_ERROR):
            assert self._error is not None
            raise KafkaException(self._error)

    def batch_failed(self, code: int) -> KafkaError:
        """Record that a batch cannot be sent; return the error for its records."""
        # The epoch is too old if the coordinator aborted the transaction after its timeout. Only EndTxn tells whether another
        # producer has the transactional id (KIP-588).
        return self._failed("Produce", code, fatal=code in _FATAL_IN_PRODUCE)

    def _failed(self, request: str, code: int, *, fatal: bool) -> KafkaError:
        if fatal and code in _FENCED:
            code = KafkaError._FENCED
        text = f"{request} of {self.transactional_id}: {KafkaError(code).str()}"
        error = KafkaError(code, text, fatal=fatal, txn_requires_abort=not fatal)
        if fatal or self.sends:
            self._error = error
            self.state = ProducerState.FATAL_ERROR if fatal else ProducerState.ABORTABLE_ERROR
        return error

    # -- requests -----------------------------------------------------------------------------------------------------

    async def initialize(self, deadline: Deadline) -> None:
        """Get the producer id and epoch; the coordinator fences former producers, and aborts their open transaction."""
        self.check("init_transactions")

        async def attempt() -> int:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self.timeout_ms,
                enable2_pc=False,
                keep_prepared_txn=False,
            )
            answer: InitProducerIdResponse = await self._ask(TRANSACTION, self.transactional_id, request, deadline)
            if not answer.error_code:
                self.identity = answer.producer_id, answer.producer_epoch
            return answer.error_code

        await self._repeated("InitProducerId", attempt, deadline)
        self.state = ProducerState.READY

    async def send_offsets(
        self, positions: Mapping[TopicPartition, OffsetAndMetadata], member: ConsumerGroupMetadata, deadline: Deadline
    ) -> None:
        """Send the offsets of a group's member, which become its commit when the transaction commits."""
        self.check("send_offsets_to_transaction")
        left = dict(positions)

        async def attempt() -> int:
            self.may_have_begun = True
            request = Versioned(
                TxnOffsetCommitRequest, lambda _: self._offsets_request(left, member), TXN_OFFSET_COMMIT_BY_NAME
            )
            answer: TxnOffsetCommitResponse = await self._ask(GROUP, member.group_id, request, deadline)
            codes = {
                TopicPartition(topic.name, row.partition_index): row.error_code
                for topic in answer.topics
                for row in topic.partitions
            }
            # A row that is missing is no answer.
            failed = {one: codes.get(one, error_codes.REQUEST_TIMED_OUT) for one in left}
            for one, code in failed.items():
                if not code:
                    del left[one]
            # An error for good counts more than one that may pass.
            return min(filter(None, failed.values()), key=error_codes.is_retriable, default=error_codes.NONE)

        if left:
            await self._repeated("TxnOffsetCommit", attempt, deadline)

    def _offsets_request(
        self, positions: Mapping[TopicPartition, OffsetAndMetadata], member: ConsumerGroupMetadata
    ) -> TxnOffsetCommitRequest:
        assert self.identity is not None
        topics = grouped(
            (one.topic, TxnOffsetCommitRequestPartition(one.partition, at.offset, at.leader_epoch, at.metadata))
            for one, at in sorted(positions.items())
        )
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=member.group_id,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            generation_id_or_member_epoch=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=tuple(TxnOffsetCommitRequestTopic(name=name, partitions=tuple(rows)) for name, rows in topics.items()),
        )

    async def end(self, deadline: Deadline) -> None:
        """Commit or abort the transaction. After this, the next one may begin, with the next epoch."""
        committed = self.state is ProducerState.COMMITTING

        async def attempt() -> int:
            assert self.identity is not None
            request = EndTxnRequest(self.transactional_id, *self.identity, committed)
            self._commit_sent = committed
            answer: EndTxnResponse = await self._ask(TRANSACTION, self.transactional_id, request, deadline)
            # Before version 5, the response has no identity, and the present one stays.
            if not answer.error_code and answer.producer_id >= 0:
                self.identity = answer.producer_id, answer.producer_epoch
            return answer.error_code

        if self.may_have_begun:
            try:
                await self._repeated("EndTxn", attempt, deadline)
            finally:
                self._commit_sent = self._commit_sent and self.state is ProducerState.COMMITTING
        self.state, self._commit_sent, self._error = ProducerState.READY, False, None

    async def _repeated(self, request: str, attempt: Callable[[], Awaitable[int]], deadline: Deadline) -> None:
        """Make attempts, each of which returns an error code, until one succeeds or fails for good, or the time is over."""
        while True:
            try:
                code = await attempt()
            except CoordinatorError:
                code = error_codes.REQUEST_TIMED_OUT
            if code == error_codes.NONE:
                return
            if not error_codes.is_retriable(code):
                raise KafkaException(self._failed(request, code, fatal=code not in _ABORTABLE[request]))
            if code in _MOVED:
                self._coordinators.clear()
            if deadline.passed:
                text = f"{request} of {self.transactional_id} got no final answer in time: call again"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text, retriable=True))
            await asyncio.sleep(self._retry_ms / 1000)

    async def _ask(self, key_type: int, key: str, request: Any, deadline: Deadline) -> Any:
        """Send a request to the coordinator of a key, which is looked up if it is not known."""
        cluster = self._cluster
        coordinator = self._coordinators.get((key_type, key))
        if coordinator is None:
            found = await cluster.request_any(find_coordinator(key, key_type), deadline, attempt_ms=self._request_ms)
            code, coordinator = coordinator_in(found, key, cluster.answers)
            if code:
                raise CoordinatorError(f"FindCoordinator for {key} was answered with {error_codes.error_name(code)}", code=code)
            self._coordinators[key_type, key] = coordinator
        patience_ms = max(1.0, deadline.within(self._request_ms))
        return await cluster.request(coordinator, request, timeout_ms=self._request_ms, patience_ms=patience_ms)
