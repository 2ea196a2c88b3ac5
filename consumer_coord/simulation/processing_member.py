"""A member whose application calls ``await consumer.process(handle, ...)``; the rules for it are in ``handlers.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import tenacity

from assignors.base import Assignor
from consumer_coord.errors import ClosedError, CoordinatorError, FencedError
from consumer_coord.offsets import partition_of_message
from consumer_coord.process import DeadLetters, FailurePolicy, context
from consumer_coord.process.failure_policy import DeadLetterError
from consumer_coord.simulation.application import MemberProcess, ProcessingError
from consumer_coord.simulation.calls import MOMENT_S
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.columns import identified
from consumer_coord.simulation.consumer import SimulatedConsumer
from consumer_coord.simulation.handlers import LETTERS, LETTERS_PRODUCER, Stay, deed_of
from consumer_coord.simulation.member_spec import MemberSpec
from consumer_coord.simulation.producer import SimulatedProducer
from consumer_coord.simulation.stage import Stage
from consumer_coord.topic_partition import TopicPartition

#: How many attempts a record has, and how long one attempt may take, in seconds.
_ATTEMPTS: Final = 3
_TIMEOUT_S: Final = 5.0
#: How long handlers may go on when a partition is revoked or the process stops, in seconds.
_DRAIN_S: Final = 3.0
#: How long a handler goes on that ignores its cancellation, and how long a failed application waits before it processes again.
_STUBBORN_S, _AGAIN_S = 0.4, 0.3


class ProcessingMember(MemberProcess):
    """One life of such a member."""

    def __init__(self, stage: Stage, spec: MemberSpec, assignors: Sequence[Assignor], life: int, random: Random) -> None:
        super().__init__(stage, spec, assignors, life, random)
        assert stage.handlers is not None
        self._rules = stage.handlers
        self._stays: dict[TopicPartition, Stay] = {}
        self._stop_event: asyncio.Event | None = None
        self._producer: SimulatedProducer | None = None
        #: Value -> the attempts of this process, for a policy that stops.
        self._tries: dict[bytes, int] = {}

    # -- called by the simulation -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop processing, and close the consumer."""
        super().stop()
        if self._stop_event is not None and self.alive:
            self.process.call_soon(self._stop_event.set)

    def close_now(self) -> None:
        """Stop processing at once, whatever the handlers do at this moment."""
        if self.alive and self.coordinator is not None and not self.closing:
            self.stop()

    def answered(self, api_key: int) -> None:
        """Note what the member knows of its group, because a ``process`` ends rarely."""
        super().answered(api_key)
        if self.coordinator is not None:
            self._calls.note_proof(self.coordinator)

    def kill(self) -> None:
        """Kill the process, with its handlers."""
        if self.alive:
            for stay in self._stays.values():
                stay.ended = "killed"
            self._rules.killed(self.name)
        super().kill()

    # -- the program --------------------------------------------------------------------------------------------------

    async def _turn(self, consumer: SimulatedConsumer) -> bool:
        """Process until this member stops, or a record or the group ends the processing."""
        self._stage.checkers.step()
        try:
            await self._process_once(consumer)
        except FencedError as error:
            self._failed(error, "process")
            return True
        except CoordinatorError as error:
            self._failed(error, "process")
            if not (self.closing and isinstance(error, ClosedError)):
                self._calls.judge(error, self._excuse(consumer, error))
        except (ProcessingError, DeadLetterError) as error:
            self._stage.history.note(self.name, f"process raised {error!r}")
        except RuntimeError as error:
            if str(error) != "the handler raised CancelledError":
                raise
            self._stage.history.note(self.name, f"process raised {error!r}")
        if not self._knows_all:
            # The next call may not learn in time where the logs end, and does not trust the metadata of the last commit then.
            for stay in self._stays.values():
                stay.doubtful = True
        if not self.closing:
            await asyncio.sleep(_AGAIN_S)
        return False

    async def _process_once(self, consumer: SimulatedConsumer) -> None:
        self._stop_event = stop = asyncio.Event()
        if self._producer is None and self.spec.on_failure == "letters":
            self._producer = SimulatedProducer(LETTERS_PRODUCER, consumer.engine.core.cluster, topics=(LETTERS,))
        call = consumer.process(
            self._handle,
            concurrency=self.spec.batch,
            order=self.spec.process,
            stop=stop,
            drain_timeout=_DRAIN_S,
            most_records=self.spec.batch * 20,
            on_failure=self._policy(),
        )
        self._stage.history.note(self.name, f"processed {await self._calls.polling(call)}")

    def _policy(self) -> FailurePolicy | None:
        if self.spec.on_failure == "stop":
            return None
        then: Any = "skip" if self._producer is None else DeadLetters(self._producer, LETTERS)
        return FailurePolicy(
            stop=tenacity.stop_after_attempt(_ATTEMPTS), wait=tenacity.wait_fixed(0.2), timeout=_TIMEOUT_S, then=then
        )

    async def _handle(self, message: Any) -> None:
        """Handle one record in virtual time; see :class:`~consumer_coord.simulation.handlers.Deed`."""
        here, value = context(), message.value()
        partition = TopicPartition(message.topic(), message.partition())
        stay = self._stays.get(partition)
        if stay is None:
            self._stage.fail(
                Violation("callbacks", f"{self.name} handles {value.decode()} of {partition}, but does not own it")
            )
            return
        deed, done = deed_of(value, rarely=self.spec.on_failure == "stop"), False
        try:
            self._check_identity(message)
            self._rules.starts(stay, message, here.attempt)
        except Violation as breach:
            self._stage.fail(breach)
        tries = self._tries[value] = self._tries.get(value, 0) + 1
        try:
            await asyncio.sleep(deed.seconds + (deed.slow_s if tries == 1 else 0.0) + self.slow_ms / 10_000)
            if (here.attempt if self.spec.on_failure != "stop" else tries) <= min(deed.failures, self._most_failures):
                if deed.cancels:
                    raise asyncio.CancelledError
                raise ProcessingError(f"{value.decode()} in attempt {here.attempt}")
            done = True
        except asyncio.CancelledError:
            if deed.stubborn:
                await asyncio.sleep(_STUBBORN_S)
            raise
        finally:
            if not self.process.dead:
                # The policy skips a record after its last attempt, whatever ended the attempt.
                done = done or (self.spec.on_failure == "skip" and here.attempt >= _ATTEMPTS)
                # Without a lease, the result does not count.
                assert self._consumer is not None
                counts = here.reason is None and not self._consumer.engine.suspended
                stay.doubtful |= not counts or self.process.frozen_s > 0
                self._rules.ends(stay, message, done=done, counts=counts)

    def _check_identity(self, message: Any) -> None:
        """Check that a record is the one that the log has at its offset."""
        row = (message.offset(), message.value())
        holding = self._reads(partition_of_message(message), row[0])
        if identified(self._stage.cluster, self.name, holding, [row]).version_of([row]) is None:
            raise Violation(
                "identity", f"{self.name} handles {row[1].decode()} of {holding.partition} at {row[0]}, where it is not"
            )

    @property
    def _raises_after_s(self) -> float:
        """``process`` lets running handlers end before it raises."""
        return _DRAIN_S + MOMENT_S

    @property
    def _most_failures(self) -> int:
        """How often a record may fail: with a policy that stops, not for ever."""
        return 2 if self.spec.on_failure == "stop" else 1_000

    @property
    def _knows_all(self) -> bool:
        """Whether no fault can keep this member from knowing where logs end, or from committing."""
        return self._undisturbed and not self._stage.cluster.wrong_answers

    # -- ownership ----------------------------------------------------------------------------------------------------

    async def _on_assign(self, consumer: Any, rows: Sequence[Any]) -> None:
        await super()._on_assign(consumer, rows)
        for partition in self._holdings:
            if partition not in self._stays:
                self._stays[partition] = self._rules.begin(self.name, partition, troubled=not self._knows_all)

    def _end_holding(self, partition: TopicPartition, how: str) -> None:
        stay = self._stays.pop(partition, None)
        if stay is not None:
            stay.ended, stay.clean = how, how == "revoked" and self._knows_all
        super()._end_holding(partition, how)

    async def _close(self, consumer: SimulatedConsumer, error: ProcessingError | None = None) -> None:
        if self._producer is not None:
            await self._producer.close()
        await super()._close(consumer, error)
