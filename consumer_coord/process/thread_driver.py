"""``GroupConsumer.process``: handlers in threads, or in the workers of an executor.

The caller's thread polls the group. A thread that has finished a record takes the next one itself, under the lock of
:class:`ThreadProcess`; a worker process gets each record by a call of its executor. The consumer's loop takes the same lock for
a moment when it delivers records and when it commits.

If a worker process dies, the executor fails every call that it had, and does not tell which worker had which. So the executor
is replaced, and each of these records is handled once more in a process of its own: a record with which this process dies, too,
has failed.
"""

from __future__ import annotations

import contextvars
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, Final, Protocol

from consumer_coord.errors import ClosedError, CoordinatorError
from consumer_coord.log_text import get_logger
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.process.context import CURRENT, Context
from consumer_coord.process.dead_letters import Letter
from consumer_coord.process.offset_to_commit import Holding
from consumer_coord.process.processing import SHORT_WAIT_S, WAIT_S, Counts, Processing, ProcessSettings
from consumer_coord.process.spans import enter
from consumer_coord.process.work import Record, State
from consumer_coord.record_tracker import BlockingTracking, RecordTracker
from consumer_coord.runtime.locks import Lock
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

#: How long a leader may take to tell where a log ends, in seconds.
_LOG_END_S = 2.0
#: How long the last commit may take, in seconds.
_COMMIT_S = 5.0

_NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()


class BlockingTracksRecords(Protocol):
    """The consumer."""

    def track_records(self, tracker: RecordTracker) -> BlockingTracking: ...
    def report_handlers(
        self, report: Callable[[], Mapping[TopicPartition, float]], figures: Callable[[], Mapping[str, float]] = ...
    ) -> None: ...


def slots(workers: int | Executor) -> int:
    """Return how many handlers may run at once."""
    if isinstance(workers, int):
        return workers
    # Every executor of the standard library has this attribute, and no public one that says the same.
    count = int(getattr(workers, "_max_workers", 1))
    # A worker process has its next record at hand when it has finished one.
    return 2 * count if isinstance(workers, ProcessPoolExecutor) else count


class ThreadProcess(Processing):
    """One ``process`` of a consumer for threads."""

    def __init__(
        self,
        handle: Callable[[Any], object],
        workers: int | Executor,
        settings: ProcessSettings,
        group_id: str,
        stop: threading.Event | None,
    ) -> None:
        """Keep the arguments; raise :class:`TypeError` for a handler that cannot be called."""
        if not callable(handle):
            raise TypeError(f"process takes a function, not {handle!r}")
        super().__init__(settings, group_id, time.monotonic)
        self._handle = handle
        self._stop = stop
        #: Executors that this object has created.
        self._own: list[Executor] = []
        if isinstance(workers, int):
            workers = self._created(ThreadPoolExecutor(workers, "process"))
        self._executor: Executor = workers
        self._in_threads = isinstance(workers, ThreadPoolExecutor)
        self._lock = Lock()
        #: Records that were in a worker process when one of them died, before they are handled alone; and whether one is.
        self._suspects: set[Record] = set()
        self._alone: deque[Record] = deque()
        self._is_alone = False
        #: Whether this thread is inside :meth:`_fill`.
        self._filling = threading.local()
        self._tracking: BlockingTracking | None = None
        #: Answers to letters, with the reason why there is none.
        self._answers: deque[tuple[Letter, Any]] = deque()
        #: When the handlers of holdings that drain lose their records.
        self._ends: dict[Holding, float] = {}

    def _created(self, executor: Executor) -> Executor:
        self._own.append(executor)
        return executor

    def run(self, consumer: BlockingTracksRecords) -> Counts:
        """Process records until it is stopped or a handler fails; then return the counts, or raise."""
        try:
            tracking = self._tracking = consumer.track_records(self)
            tracking.read_also(lambda topics: self.retry_topics(topics, tracking.wall_clock_ms))
            consumer.report_handlers(self.handling, self.figures)
            raised: BaseException | None = None
            try:
                while self.failure is None and not (self._stop is not None and self._stop.is_set()):
                    self._step(tracking, self._room())
            except BaseException as error:  # noqa: BLE001 - raised below, when the handlers have ended
                raised = error
            try:
                self._drain(tracking, polls=raised is None or not isinstance(raised, Exception))
            finally:
                self._end(consumer, tracking)
        finally:
            for executor in self._own:
                executor.shutdown(wait=False, cancel_futures=True)
        failure = raised or self.failure
        if failure is not None:
            raise failure
        return self.counts()

    def _room(self) -> frozenset[TopicPartition] | None:
        with self._lock:
            return self.work.room()

    def _step(self, tracking: BlockingTracking, room: frozenset[TopicPartition] | None, most_s: float = WAIT_S) -> None:
        """Take records once, and start what may start."""
        with self._lock:
            wait_s = min(most_s, self.wait_s())
        tracking.take(self.most(), wait_s, room, self._arrived)
        self._serve_letters()
        with self._lock:
            self._expire()
            wanted = self.to_check()
        if wanted:
            ends = tracking.log_ends(wanted, _LOG_END_S)
            with self._lock:
                self.know_log_ends(ends)
        self._fill()

    def wait_s(self) -> float:
        """See :class:`Processing`; here also until a retry is due, and shortly while letters are under way."""
        usual_s, due = super().wait_s(), self.work.next_due()
        if self.letters.unanswered:
            return SHORT_WAIT_S
        return usual_s if due is None else min(usual_s, max(SHORT_WAIT_S, due - self.clock()))

    def _serve_letters(self) -> None:
        """Let the producer report what became of letters, without the lock, and take its answers under it."""
        if self.letters.unanswered:
            self.poll_producers()
            with self._lock:
                self.letters.send_again()
        while self._answers:
            letter, refused = self._answers.popleft()
            with self._lock:
                assert self._tracking is not None
                self.take_answer(letter, refused, self._tracking)

    def letter_answered(self, letter: Letter, refused: Any) -> None:
        self._answers.append((letter, refused))

    def _arrived(self, messages: Sequence[Any]) -> None:
        """Take over messages, on the loop."""
        tracking = self._tracking
        assert tracking is not None
        with self._lock:
            self.look_at(tracking)
            self.tell_of_progress()
            self.deliver(messages)

    # -- for the consumer, on its loop ----------------------------------------------------------------------------------

    def finished(self, partition: TopicPartition, reading: int, position: OffsetAndMetadata) -> OffsetAndMetadata | None:
        with self._lock:
            return super().finished(partition, reading, position)

    def may_release(self, partition: TopicPartition, reading: int) -> bool:
        with self._lock:
            return super().may_release(partition, reading)

    def metadata_rejected(self, partition: TopicPartition, length: int) -> None:
        with self._lock:
            super().metadata_rejected(partition, length)

    def handling(self) -> Mapping[TopicPartition, float]:
        with self._lock:
            return super().handling()

    def figures(self) -> Mapping[str, float]:
        """See :class:`Processing`; callable from any thread."""
        with self._lock:
            return super().figures()

    # -- handlers -------------------------------------------------------------------------------------------------------

    def _next(self) -> Record | None:
        """Return the next record to handle, with its context; call it under the lock."""
        now, timeout_s = self.clock(), self.settings.timeout_s
        record = self.work.next(now)
        if record is not None:
            attempt = record.earlier + record.attempt
            record.handler = Context(attempt, None if timeout_s is None else now + timeout_s, threading.Event)
            record.handler.span = self.spans.begin(record)
        return record

    def _fill(self) -> None:
        """Start what may start."""
        if getattr(self._filling, "now", False):
            # The call of a worker process ended before :meth:`_submit` returned; the loop below goes on.
            return
        self._filling.now = True
        try:
            while True:
                with self._lock:
                    record = self._next()
                if record is None:
                    return
                if self._in_threads:
                    self._executor.submit(self._work_on, record)
                elif record in self._suspects:
                    self._alone.append(record)
                    self._start_alone()
                else:
                    self._submit(self._executor, record)
        finally:
            self._filling.now = False

    def _work_on(self, record: Record | None) -> None:
        """Handle a record, and then others as long as there are any; in a worker thread."""
        while record is not None:
            error: BaseException | None = None
            try:
                contextvars.copy_context().run(self._call, record)
            except BaseException as raised:  # noqa: BLE001 - ends the process, in the caller's thread
                error = raised
            with self._lock:
                self._ended(record, error)
                record = self._next()

    def _submit(self, executor: Executor, record: Record) -> None:
        """Handle a record in a worker process."""
        try:
            context = record.handler
            future = executor.submit(_call_in_process, self._handle, self.argument(record), context.attempt, context.deadline)
        except BrokenExecutor as error:
            self._crashed(executor, record, error)
        else:
            future.add_done_callback(functools.partial(self._done, executor, record))

    def _done(self, executor: Executor, record: Record, future: Future[None]) -> None:
        """Record what a worker process did; in a thread of the executor."""
        error = RuntimeError("the executor was shut down") if future.cancelled() else future.exception()
        if isinstance(error, BrokenExecutor):
            self._crashed(executor, record, error)
        else:
            with self._lock:
                self._ended(record, error)
                self._is_alone = self._is_alone and record not in self._suspects
                self._suspects.discard(record)
        self._start_alone()
        self._fill()

    def _crashed(self, executor: Executor, record: Record, error: BaseException) -> None:
        """Replace a broken executor; handle the record alone, or, if it was alone already, fail it."""
        with self._lock:
            if executor is self._executor and not isinstance(executor, ProcessPoolExecutor):
                self._ended(record, error)
                return
            if executor is self._executor:
                logger.warning("a worker process died: the executor is replaced, and its records are handled once more, alone")
                self._executor = self._created(_copy(executor))
            if record not in self._suspects:
                self._suspects.add(record)
                self.work.retry(record, self.clock())
            elif record.state is State.RUNNING:
                self._is_alone = False
                self._suspects.discard(record)
                self.give_up(record, error)

    def _start_alone(self) -> None:
        """Handle the next suspect in a process of its own, if none is handled now."""
        with self._lock:
            while self._alone and self._alone[0].reason is not None:
                # Its partition was lost while it waited.
                self._ended(self._alone.popleft(), None)
            if self._is_alone or not self._alone:
                return
            self._is_alone = True
            record = self._alone.popleft()
            executor = self._created(_copy(self._executor, 1))
        self._submit(executor, record)
        executor.shutdown(wait=False)

    def _call(self, record: Record) -> None:
        CURRENT.set(record.handler)
        if record.handler.span is not None:
            enter(record.handler.span)
        self._handle(self.argument(record))

    def _ended(self, record: Record, error: BaseException | None) -> None:
        """Record what a handler did; call it under the lock."""
        tracking = self._tracking
        assert tracking is not None
        self.look_at(tracking)
        deadline = record.handler.times_out_at
        if error is None and deadline is not None and self.clock() > deadline:
            error = TimeoutError(f"the handler took longer than {self.settings.timeout_s:g} s")
        if record.handler.span is not None:
            self.spans.end(record.handler.span, error)
        self.settle(record, error)
        self.let_go(record, tracking)

    def expect_end(self, holding: Holding, after_s: float) -> None:
        """See :class:`Processing`; called under the lock."""
        ends = self._ends[holding] = self.clock() + after_s
        for record in self.work.running:
            if record.holding is holding:
                record.handler.limit(ends)

    def _expire(self) -> None:
        now = self.clock()
        for holding in [one for one, ends in self._ends.items() if ends <= now or one.ended or not one.draining]:
            ends = self._ends.pop(holding)
            if ends <= now and holding.draining and not holding.ended:
                self.lose(self.work.expire(holding, "revoked"), at_once=True)
                assert self._tracking is not None
                self._tracking.look_again()

    def lose(self, records: Sequence[Record], *, at_once: bool) -> None:
        """See :class:`Processing`; a thread ends by itself. Called under the lock."""
        for record in records:
            record.handler.lose(record.reason)

    # -- the end --------------------------------------------------------------------------------------------------------

    def _drain(self, tracking: BlockingTracking, *, polls: bool) -> None:
        """Let the running handlers finish in ``drain_timeout``, then disregard them."""
        ends = self.clock() + self.settings.drain_timeout_s
        with self._lock:
            self.work.stopping = True
            for record in self.work.running:
                record.handler.limit(ends)
        try:
            while self.work.running and (left_s := ends - self.clock()) > 0:
                if polls:
                    # The group is polled meanwhile, so that a long handler does not cost the membership.
                    try:
                        self._step(tracking, _NO_PARTITIONS, left_s)
                    except Exception as error:  # noqa: BLE001 - the handlers have their time nevertheless
                        logger.warning("while the handlers finish, the group cannot be polled: %r", error)
                        polls = False
                else:
                    time.sleep(min(left_s, SHORT_WAIT_S))
                    self._serve_letters()
        finally:
            with self._lock:
                self.lose(self.work.disregard("stopping"), at_once=True)

    def _end(self, consumer: BlockingTracksRecords, tracking: BlockingTracking) -> None:
        """Commit what is finished, and let others read this consumer, from what is not finished on."""
        try:
            if not tracking.commit(_COMMIT_S):
                logger.warning("the last commit had no response in %g s; it is repeated if the consumer is closed", _COMMIT_S)
            with self._lock:
                positions = self.to_continue()
            tracking.stop(positions)
            consumer.report_handlers(dict)
        except ClosedError:
            logger.debug("the consumer was closed while its records were processed")
        except CoordinatorError as error:
            logger.warning("the last commit failed: %s", error)


def _call_in_process(handle: Callable[[Any], object], argument: Any, attempt: int, deadline: float | None) -> None:
    """Call the handler in a worker process, where nothing can tell it that its result no longer counts."""
    CURRENT.set(Context(attempt, deadline, threading.Event))
    handle(argument)


def _copy(executor: Executor, workers: int | None = None) -> ProcessPoolExecutor:
    """Return a new executor like a broken one. It has no public attributes that tell how it was created."""
    made: Any = executor
    return ProcessPoolExecutor(
        made._max_workers if workers is None else workers,
        mp_context=made._mp_context,
        initializer=made._initializer,
        initargs=made._initargs,
    )
