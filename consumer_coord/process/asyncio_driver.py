"""``AsyncGroupConsumer.process``: a task for each record, on the loop of the consumer."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from consumer_coord.errors import ClosedError, CoordinatorError
from consumer_coord.log_text import get_logger
from consumer_coord.process.context import CURRENT, Context
from consumer_coord.process.dead_letters import Letter
from consumer_coord.process.offset_to_commit import Holding
from consumer_coord.process.processing import SHORT_WAIT_S, WAIT_S, Counts, Processing, ProcessSettings
from consumer_coord.process.spans import enter
from consumer_coord.process.work import Record
from consumer_coord.record_tracker import RecordTracker, Tracking
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

#: How long a leader may take to tell where a log ends, in seconds.
_LOG_END_S = 2.0
#: How long cancelled handlers may take to end, and how long the last commit may take, in seconds.
_CANCEL_S, _COMMIT_S = 5.0, 5.0

_NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()


class TracksRecords(Protocol):
    """The consumer."""

    async def track_records(self, tracker: RecordTracker) -> Tracking: ...
    def report_handlers(
        self, report: Callable[[], Mapping[TopicPartition, float]], figures: Callable[[], Mapping[str, float]] = ...
    ) -> None: ...


class AsyncProcess(Processing):
    """One ``process`` of an asyncio consumer."""

    def __init__(
        self,
        handle: Callable[[Any], Awaitable[object]],
        settings: ProcessSettings,
        group_id: str,
        stop: asyncio.Event | None,
    ) -> None:
        """Keep the arguments; raise :class:`TypeError` for a handler that is a plain function."""
        if not inspect.iscoroutinefunction(handle) and not inspect.iscoroutinefunction(type(handle).__call__):
            raise TypeError(f"process takes a coroutine function (async def handle(message): ...), not {handle!r}")
        self._loop = asyncio.get_running_loop()
        super().__init__(settings, group_id, self._loop.time)
        self._handle = handle
        self._stop = stop
        self._context = contextvars.copy_context()
        self._tracking: Tracking | None = None
        #: Timers of what waits for a time, and of letters to look for.
        self._timer: asyncio.TimerHandle | None = None
        self._letters_timer: asyncio.TimerHandle | None = None

    async def run(self, consumer: TracksRecords) -> Counts:
        """Handle records until ``stop`` is set; then return the counts. Raise if a handler fails for good, or if cancelled."""
        tracking = self._tracking = await consumer.track_records(self)
        await tracking.read_also(lambda topics: self.retry_topics(topics, tracking.wall_clock_ms))
        consumer.report_handlers(self.handling, self.figures)
        raised: BaseException | None = None
        try:
            while self.failure is None and not (self._stop is not None and self._stop.is_set()):
                await self._step(tracking, self.work.room())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised below, when the handlers have ended
            raised = error
        cancelled = await self._drain(tracking, polls=raised is None or isinstance(raised, asyncio.CancelledError))
        ending = asyncio.ensure_future(self._end(consumer, tracking))
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                cancelled = True
        for timer in (self._timer, self._letters_timer):
            if timer is not None:
                timer.cancel()
        failure = raised or self.failure or ending.exception()
        if failure is not None:
            raise failure
        if cancelled:
            raise asyncio.CancelledError
        return self.counts()

    async def _step(self, tracking: Tracking, room: frozenset[TopicPartition] | None, most_s: float = WAIT_S) -> None:
        """Take records once, and start what may start."""
        messages = await tracking.take(self.most(), min(most_s, self.wait_s()), room)
        # No await between the call and the delivery: every position that is committed is behind records that are known here.
        self.look_at(tracking)
        self.tell_of_progress()
        self.deliver(messages)
        self._fill()
        if wanted := self.to_check():
            self.know_log_ends(await tracking.log_ends(wanted, _LOG_END_S))
            self._fill()

    # -- handlers -------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        work, loop, now, timeout_s = self.work, self._loop, self._loop.time(), self.settings.timeout_s
        while (record := work.next(now)) is not None:
            attempt = record.earlier + record.attempt
            context = Context(attempt, None if timeout_s is None else now + timeout_s, asyncio.Event)
            variables = self._context.copy()
            variables.run(CURRENT.set, context)
            if (span := self.spans.begin(record)) is not None:
                context.span = span
                variables.run(enter, span)
            task = loop.create_task(self._call(self.argument(record)), context=variables)
            record.handler = task, context
            task.add_done_callback(functools.partial(self._ended, record))
        # A retry that is due and has no slot starts when a handler ends.
        if (due := work.next_due()) is not None and due > now:
            self._wake_at(due)

    async def _call(self, argument: Any) -> None:
        if self.settings.timeout_s is None:
            await self._handle(argument)
        else:
            async with asyncio.timeout(self.settings.timeout_s):
                await self._handle(argument)

    def _ended(self, record: Record, task: asyncio.Task[None]) -> None:
        """Record what a handler did, and start what may start now."""
        tracking = self._tracking
        assert tracking is not None
        self.look_at(tracking)
        error = task.exception() if not task.cancelled() else RuntimeError("the handler raised CancelledError")
        if (span := record.handler[1].span) is not None:
            self.spans.end(span, error)
        self.settle(record, error)
        self._look_after_letters()
        self.let_go(record, tracking)
        self._fill()

    def _wake_at(self, due: float) -> None:
        """Start what may start at the time ``due``."""
        timer, now = self._timer, self._loop.time()
        if timer is None or not now < timer.when() <= due:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(due, self._go_on)

    def _go_on(self) -> None:
        """Start what may start, at a time at which no call of the consumer has just returned."""
        assert self._tracking is not None
        self.look_at(self._tracking)
        self._fill()

    def letter_answered(self, letter: Letter, refused: Any) -> None:
        self._loop.call_soon_threadsafe(self._take_answer, letter, refused)

    def _take_answer(self, letter: Letter, refused: Any) -> None:
        assert self._tracking is not None
        self.take_answer(letter, refused, self._tracking)
        self._fill()

    def _look_after_letters(self) -> None:
        if self.letters.unanswered and self._letters_timer is None:
            self._letters_timer = self._loop.call_later(SHORT_WAIT_S, self._poll_producer)

    def _poll_producer(self) -> None:
        self._letters_timer = None
        self.poll_producers()
        self.letters.send_again()
        self._look_after_letters()

    def expect_end(self, holding: Holding, after_s: float) -> None:
        ends = self._loop.time() + after_s
        for record in self.work.running:
            if record.holding is holding and record.handler is not None:
                record.handler[1].limit(ends)
        self._loop.call_later(after_s, self._expire, holding)

    def _expire(self, holding: Holding) -> None:
        if holding.draining and not holding.ended:
            self.lose(self.work.expire(holding, "revoked"), at_once=True)
            assert self._tracking is not None
            self._tracking.look_again()

    def lose(self, records: Sequence[Record], *, at_once: bool) -> None:
        for record in records:
            task, context = record.handler
            context.lose(record.reason)
            if at_once:
                task.cancel()
            else:
                context.limit(self._loop.time() + self.settings.drain_timeout_s)
                self._loop.call_later(self.settings.drain_timeout_s, task.cancel)

    # -- the end --------------------------------------------------------------------------------------------------------

    async def _drain(self, tracking: Tracking, *, polls: bool) -> bool:
        """Let the running handlers finish in ``drain_timeout``, then cancel them; return whether this call was cancelled."""
        self.work.stopping = True
        cancelled = False
        ends = self._loop.time() + self.settings.drain_timeout_s
        for record in self.work.running:
            record.handler[1].limit(ends)
        while self.work.running and (left_s := ends - self._loop.time()) > 0 and not cancelled:
            try:
                if polls:
                    # The group is polled meanwhile, so that a long handler does not cost the membership.
                    await self._step(tracking, _NO_PARTITIONS, left_s)
                else:
                    await asyncio.sleep(min(left_s, SHORT_WAIT_S))
            except asyncio.CancelledError:
                cancelled = True
            except Exception as error:  # noqa: BLE001 - the handlers have their time nevertheless
                logger.warning("while the handlers finish, the group cannot be polled: %r", error)
                polls = False
        if self.work.running:
            # Handlers of an ownership that is over have lost their record, and are only cancelled.
            self.lose(self.work.disregard("stopping"), at_once=True)
            tasks = [task for record in self.work.running if not (task := record.handler[0]).done()]
            for task in tasks:
                task.cancel()
            try:
                left = (await asyncio.wait(tasks, timeout=_CANCEL_S))[1] if tasks else ()
                if left:
                    logger.warning(
                        "%d handlers did not end when they were cancelled; their records are not finished", len(left)
                    )
            except asyncio.CancelledError:
                cancelled = True
        return cancelled

    async def _end(self, consumer: TracksRecords, tracking: Tracking) -> None:
        """Commit what is finished, and let others read this consumer, from what is not finished on."""
        try:
            if not await tracking.commit(_COMMIT_S):
                logger.warning("the last commit had no response in %g s; it is repeated if the consumer is closed", _COMMIT_S)
            await tracking.stop(self.to_continue())
            consumer.report_handlers(dict)
        except ClosedError:
            logger.debug("the consumer was closed while its records were processed")
        except CoordinatorError as error:
            logger.warning("the last commit failed: %s", error)
