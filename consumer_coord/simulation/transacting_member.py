"""A member whose application reads, processes and writes in transactions; the rules for it are in ``exactly_once.py``.

The application is that of ``examples/exactly_once.py``, in asyncio. After any failure it goes back to the group's commits. Its
transactional id is the member's name in every life, so a new process fences the former one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final

import attrs

from assignors.base import Assignor
from consumer_coord.confluent.topic_partitions import native, partition_of
from consumer_coord.confluent.types import OFFSET_BEGINNING, OFFSET_INVALID, KafkaError, KafkaException
from consumer_coord.confluent.types import TopicPartition as Row
from consumer_coord.errors import ClosedError, CoordinatorError, FencedError
from consumer_coord.offsets import partition_of_message
from consumer_coord.simulation.application import MemberProcess, ProcessingError
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.consumer import SimulatedConsumer
from consumer_coord.simulation.exactly_once import OUTPUTS, RELAY, Txn
from consumer_coord.simulation.member_spec import MemberSpec
from consumer_coord.simulation.producer import SimulatedProducer
from consumer_coord.simulation.stage import Stage
from consumer_coord.topic_partition import TopicPartition

#: Time limit of each call of the producer, in seconds, and how often a call is repeated after a retriable error.
_CALL_S: Final = 4.0
_ATTEMPTS: Final = 3
#: Time limit of the look-up of the group's commits, in seconds.
_COMMITTED_S: Final = 4.0
#: The share of transactions whose processing fails, so that the program aborts them.
_FAILURES: Final = 0.08
#: The steps of a transaction before which a process may be suspended.
STEPS: Final = ("read", "send offsets", "commit", "abort", "go back")


@attrs.frozen
class Suspension:
    """A pause of the process before its next step of this name."""

    step: str
    seconds: float


class TransactingMember(MemberProcess):
    """One life of such a member."""

    def __init__(self, stage: Stage, spec: MemberSpec, assignors: Sequence[Assignor], life: int, random: Random) -> None:
        super().__init__(stage, spec, assignors, life, random)
        assert stage.exactly_once is not None
        self._rules = stage.exactly_once
        self._producer: SimulatedProducer | None = None
        self._transaction: Txn | None = None
        #: Whether the positions may be behind records that are not processed.
        self._is_ahead = False
        #: The next pause, or None.
        self.suspension: Suspension | None = None
        #: The API key of the request whose next answer is lost, or None.
        self.loses: int | None = None

    # -- called by the simulation -------------------------------------------------------------------------------------

    def close_now(self) -> None:
        """Close the consumer after the transaction, because another task could not tell which records are processed."""
        self.stop()

    def commit_now(self) -> None:
        """Do nothing: this application commits in transactions only."""

    def answered(self, api_key: int) -> None:
        """React to a broker's response: it may get lost, because the connections of this process break."""
        super().answered(api_key)
        if self.loses != api_key or not self.alive or self._stage.calm:
            return
        self.loses = None
        network, brokers = self._stage.network, [node.host for node in self._stage.cluster.kafka.nodes]
        self._stage.history.note(self.name, f"loses the answer of API {api_key}")
        for broker in brokers:
            network.block(broker, self.name)

        def over() -> None:
            network.disconnect(self.name)
            for broker in brokers:
                network.unblock(broker, self.name)

        self._stage.loop.call_later(0.05, over)

    # -- the program --------------------------------------------------------------------------------------------------

    async def _turn(self, consumer: SimulatedConsumer) -> bool:
        """Make one transaction, if there is anything to read; return True if the member was fenced and must end."""
        self._stage.checkers.step()
        try:
            if self._producer is None:
                await self._initialize(consumer)
            if self._is_ahead:
                await self._go_back(consumer)
            if not self.closing:
                await self._process_some(consumer)
        except FencedError:
            return True
        except CoordinatorError as error:
            if not (self.closing and isinstance(error, ClosedError)):
                self._failed(error, "a call")
        except KafkaException as error:
            await self._failed_in_producer(error)
        pause_s = 0.0 if self._stage.calm else self.spec.poll_every_ms / 1000 * self._random.uniform(0.2, 1.0)
        await self._calls.away(max(pause_s, self.absent_until - self._stage.loop.time(), 0.05))
        return False

    async def _initialize(self, consumer: SimulatedConsumer) -> None:
        settings = {
            "transactional.id": self.spec.name,
            "transaction.timeout.ms": self.spec.transaction_timeout_ms,
            "request.timeout.ms": 2_000,
            "retry.backoff.ms": 100,
        }
        self._producer = producer = SimulatedProducer(settings, consumer.engine.core.cluster)
        self._is_ahead = self._is_ahead or bool(self._holdings)
        await self._repeated(lambda: producer.init_transactions(_CALL_S))

    async def _process_some(self, consumer: SimulatedConsumer) -> None:
        """Read, process and write in one transaction, which is aborted after an error that is not fatal."""
        producer = self._producer
        assert producer is not None
        try:
            await self._read_and_write(consumer, producer)
            if self._transaction is not None:
                await self._end(consumer, producer, self._transaction)
        except FencedError:
            raise
        except CoordinatorError as error:
            # The consumer raised it, for example because the member is no longer in the group.
            if self._transaction is None:
                raise
            self._failed(error, "a call in a transaction")
            await self._abort(producer, self._transaction)
        except KafkaException as error:
            if self._transaction is None or error.args[0].fatal():
                raise
            self._note(error)
            # If EndTxn was sent, the producer refuses: only another producer learns how the transaction ended.
            await self._abort(producer, self._transaction)
        finally:
            self._transaction = None

    async def _read_and_write(self, consumer: SimulatedConsumer, producer: SimulatedProducer) -> None:
        for _ in range(self._random.randint(1, self.spec.transactions)):
            messages = await self._poll(consumer, cancelled=False)
            if self.closing or (self._transaction is None and not messages):
                return
            if self._transaction is None:
                self._transaction = self._rules.begin(self.spec.name, self.name)
                self._is_ahead = True
                producer.begin_transaction()
            await self._before("read")
            self._take(producer, self._transaction, messages)
            await self._calls.away((1 + self.slow_ms) / 1000 + self._random.choice((0.0, 0.0, 0.02, 0.3)))

    def _take(self, producer: SimulatedProducer, transaction: Txn, messages: Sequence[Any]) -> None:
        """Send one record for each record that was read."""
        for message in messages:
            if message.error() is not None:
                raise Violation("raised", f"{self.name} received the error {message.error()}")
            partition, offset, value = partition_of_message(message), message.offset(), message.value()
            self._reads(partition, offset)
            self._rules.reads(transaction, partition, offset, value)
            to, record = self._rules.sends(transaction, value, OUTPUTS if partition.topic == RELAY else RELAY)
            producer.produce(to.topic, record, partition=to.partition)

    async def _end(self, consumer: SimulatedConsumer, producer: SimulatedProducer, transaction: Txn) -> None:
        """Commit the transaction with the offsets of what it read; abort it if a partition is gone, or processing failed."""
        await self._before("send offsets")
        failed = not self._stage.calm and self._random.random() < _FAILURES
        if transaction.doomed or failed:
            why = "its processing failed" if failed else "a partition is gone"
            self._stage.history.note(self.name, f"aborts {transaction.tag}: {why}")
            await self._abort(producer, transaction)
            return
        member = await consumer.consumer_group_metadata()
        rows = [
            Row(partition.topic, partition.partition, offset + 1, metadata=transaction.tag)
            for partition, offset in sorted(transaction.last_read().items())
        ]
        await self._repeated(lambda: producer.send_offsets_to_transaction(rows, member, _CALL_S))
        await self._before("commit")
        await self._repeated(lambda: producer.commit_transaction(_CALL_S))
        self._told(transaction, committed=True)
        self._is_ahead = False

    async def _abort(self, producer: SimulatedProducer, transaction: Txn) -> None:
        await self._before("abort")
        await self._repeated(lambda: producer.abort_transaction(_CALL_S))
        self._told(transaction, committed=False)

    def _told(self, transaction: Txn, *, committed: bool) -> None:
        self._stage.history.note(self.name, f"{'committed' if committed else 'aborted'} {transaction.tag}")
        self._rules.told(transaction, committed=committed)

    async def _go_back(self, consumer: SimulatedConsumer) -> None:
        """Seek to the group's commits in all partitions."""
        await self._before("go back")
        held = sorted(one for one in self._holdings if self.holds(one))
        for row in await consumer.committed([native(one) for one in held], timeout=_COMMITTED_S) if held else ():
            if row.error is not None:
                raise KafkaException(row.error)
            if row.offset == OFFSET_INVALID:
                row.offset = OFFSET_BEGINNING
            if self.holds(partition_of(row)):
                await consumer.seek(row)
        self._is_ahead = False

    async def _repeated(self, call: Callable[[], Awaitable[None]]) -> None:
        """Make a call, and repeat it a few times after a retriable error."""
        for attempt in range(_ATTEMPTS):
            try:
                await call()
            except CoordinatorError:
                raise
            except KafkaException as error:
                if not error.args[0].retriable() or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    async def _failed_in_producer(self, error: KafkaException) -> None:
        """Go on with another producer; a process whose member has a newer one ends."""
        self._note(error)
        self._transaction = None
        await self._drop_producer()
        if error.args[0].code() == KafkaError._FENCED and self.replaced:
            self._stage.history.note(self.name, "ends, because a newer process has its transactional id")
            self.closing = True

    def _note(self, error: KafkaException) -> None:
        kind = "fatal" if error.args[0].fatal() else "abortable" if error.args[0].txn_requires_abort() else "other"
        self._stage.history.note(self.name, f"{kind} error of the producer: {error.args[0].str()}")

    async def _drop_producer(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await producer.close()

    async def _before(self, step: str) -> None:
        """Pause the process, if a pause before this step is planned."""
        pause = self.suspension
        if pause is None or pause.step != step or self._stage.calm:
            return
        self.suspension = None
        left_s = self._stage.scenario.faults_end_ms / 1000 - self._stage.loop.time()
        self._stage.history.note(self.name, f"is suspended before the step {step!r}")
        self.process.freeze()
        self._stage.loop.call_later(max(0.0, min(pause.seconds, left_s)), self.process.thaw)
        await asyncio.sleep(0.001)

    # -- ownership ----------------------------------------------------------------------------------------------------

    def _end_holding(self, partition: TopicPartition, how: str) -> None:
        if self._transaction is not None and partition in self._transaction.last_read():
            self._transaction.doomed = True
        super()._end_holding(partition, how)

    async def _close(self, consumer: SimulatedConsumer, error: ProcessingError | None = None) -> None:
        await self._drop_producer()
        await super()._close(consumer)
