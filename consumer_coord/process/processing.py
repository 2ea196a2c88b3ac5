"""What the drivers of ``process`` have in common: the tracker of the consumer's records, over the state in ``work.py``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypedDict

from consumer_coord import lazy_attrs as attrs
from consumer_coord.confluent.types import KafkaError, KafkaException
from consumer_coord.errors import IllegalStateError
from consumer_coord.finished_offsets_text import UnusableMetadataError, decode
from consumer_coord.log_text import get_logger
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.process.dead_letters import Letter, LetterSender, Origin
from consumer_coord.process.failure_policy import DeadLetters, FailurePolicy, RetryTopic, RetryTopics, letter_producers
from consumer_coord.process.offset_to_commit import Holding
from consumer_coord.process.spans import Spans
from consumer_coord.process.work import Order, Record, State, Work
from consumer_coord.record_tracker import BlockingTracking, TrackedReading, Tracking
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

#: How long a call waits for records, in seconds: usually, and at least while a partition waits for room.
WAIT_S: Final = 0.1
SHORT_WAIT_S: Final = 0.01
#: The most records that are taken from the consumer at once.
_BATCH: Final = 500
#: The time between two reports in the log, and how long a record may be handled before they name it, in seconds.
_TELL_S: Final = 60.0
#: For how long to ask where a log ends, and the pause between two questions, in seconds.
_UNCHECKED_S: Final = 60.0
_CHECK_AGAIN_S: Final = 1.0
#: Larger than any offset.
_NO_END: Final = 1 << 62


@attrs.frozen
class Counts:
    """What became of the records that one ``process`` received."""

    #: Records whose handler returned.
    handled: int
    #: Records whose handler failed for good.
    failed: int
    #: Attempts after the first.
    retried: int
    #: Records that were not finished when their partition was given up; another member handles them.
    given_up: int
    #: Records that a former owner of the partition had finished.
    found_finished: int
    #: Failed records that were produced to a dead-letter topic or a retry topic.
    letters: int = 0


@attrs.frozen
class Batches:
    """Handlers of ``process`` that take a list of messages.

    A call gets up to ``most`` records: of one key with ``order="key"``, otherwise of one partition. The first of them waits up
    to ``wait`` seconds for the others. They are finished, fail, and are retried together.
    """

    most: int
    wait: float = 0.0

    def __attrs_post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most must be at least 1, not {self.most!r}")
        if not 0 <= self.wait < math.inf:
            raise ValueError(f"wait must be a number of seconds, not {self.wait!r}")


class ProcessOptions(TypedDict, total=False):
    """The keyword arguments of ``process`` that both consumers have."""

    #: ``"key"`` (default): records of one key are handled one after another, in the order of their offsets, and records without
    #: a key in any order. ``"partition"``: the same for those of one partition. ``"none"``: all in any order.
    order: str
    #: For how many seconds running handlers may finish when their partition is revoked, and at the end; 25 by default.
    drain_timeout: float
    #: The most unfinished records in memory, divided among the partitions; 10,000 by default.
    most_records: int
    #: The most bytes of unfinished records in memory, divided among the partitions; 64 MiB by default.
    most_bytes: int
    #: The most characters of a commit's metadata (the brokers' ``offset.metadata.max.bytes``); 4,096 by default.
    metadata_max_bytes: int
    #: What to do with a record whose handler raises; None (default): ``process`` raises, too.
    on_failure: FailurePolicy | None
    #: Let handlers take lists of messages; None (default): one message.
    batches: Batches | None


@attrs.frozen(kw_only=True)
class ProcessSettings:
    """The arguments of ``process`` beside the handler, checked."""

    concurrency: int
    order: Order
    drain_timeout_s: float
    most_records: int
    most_bytes: int
    metadata_max_bytes: int
    #: None: a failure stops the process.
    on_failure: FailurePolicy | None
    #: None: a handler takes one message.
    batches: Batches | None

    @classmethod
    def checked(
        cls,
        *,
        concurrency: int,
        order: str = "key",
        drain_timeout: float = 25.0,
        most_records: int = 10_000,
        most_bytes: int = 64 << 20,
        metadata_max_bytes: int = 4096,
        on_failure: FailurePolicy | None = None,
        batches: Batches | None = None,
    ) -> ProcessSettings:
        """Return the settings of :class:`ProcessOptions`; raise :class:`ValueError` for an invalid value."""
        for name, value, least in (
            ("concurrency", concurrency, 1),
            ("most_records", most_records, 1),
            ("most_bytes", most_bytes, 1),
            ("metadata_max_bytes", metadata_max_bytes, 0),
            ("drain_timeout", drain_timeout, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value!r}")
        try:
            by = Order(order)
        except ValueError:
            raise ValueError(f'order must be "key", "partition" or "none", not {order!r}') from None
        return cls(
            concurrency=concurrency,
            order=by,
            drain_timeout_s=drain_timeout,
            most_records=max(most_records, concurrency),
            most_bytes=most_bytes,
            metadata_max_bytes=metadata_max_bytes,
            on_failure=on_failure,
            batches=batches,
        )

    @property
    def timeout_s(self) -> float | None:
        """The time of one attempt."""
        return None if self.on_failure is None else self.on_failure.timeout


class Processing(ABC):
    """The records of one ``process``, as the consumer and a driver use them. A driver with threads guards it by a lock."""

    def __init__(self, settings: ProcessSettings, group_id: str, clock: Callable[[], float]) -> None:
        self.settings: ProcessSettings = settings
        self.clock: Callable[[], float] = clock
        self.work: Work = Work(
            settings.order,
            concurrency=settings.concurrency,
            most_records=settings.most_records,
            most_bytes=settings.most_bytes,
            metadata_bytes=settings.metadata_max_bytes,
            retry_share=1.0 if settings.on_failure is None else settings.on_failure.retry_share,
            most_together=1 if settings.batches is None else settings.batches.most,
            fill_s=0.0 if settings.batches is None else settings.batches.wait,
        )
        #: The exception that ends the process.
        self.failure: BaseException | None = None
        self.letters: LetterSender = LetterSender(
            letter_producers(settings.on_failure),
            group_id,
            on_answer=self.letter_answered,
            skip=self.work.skip,
            stop=self._stop_with,
        )
        #: The retry topics that this consumer reads.
        self._retry_topics: Mapping[str, RetryTopic] = {}
        self._wall_clock_ms: Callable[[], int] = int
        self._group_id = group_id
        self._tells_at = clock() + _TELL_S
        #: When :meth:`wait_s` was called last, and how many records had been handled then.
        self._rated: tuple[float, int] = (clock(), 0)
        self.spans: Spans = Spans(group_id)
        #: Holdings whose commit names finished offsets, while the end of the log is not known -> until when to ask for it.
        self._unchecked: dict[Holding, float] = {}
        #: When to ask for it next.
        self._check_at = 0.0
        self._readings: Mapping[TopicPartition, TrackedReading] = {}

    # -- for the consumer: see RecordTracker ----------------------------------------------------------------------------

    def finished(self, partition: TopicPartition, reading: int, position: OffsetAndMetadata) -> OffsetAndMetadata | None:
        """Return the position to commit."""
        holding = self.work.held(partition, reading)
        if holding is None:
            return None
        at = self.work.to_commit(holding)
        return position if at is None else at

    def may_release(self, partition: TopicPartition, reading: int) -> bool:
        """Begin to drain the partition; return whether no handler runs whose result counts."""
        holding = self.work.held(partition, reading)
        if holding is None:
            return True
        if not holding.draining:
            self.work.drain(holding)
            if self.work.busy(holding):
                self.expect_end(holding, self.settings.drain_timeout_s)
        return not self.work.busy(holding)

    def metadata_rejected(self, partition: TopicPartition, length: int) -> None:
        """Keep the metadata of later commits shorter."""
        logger.warning(
            "the broker rejected %d characters of metadata in the commit of %s, so its offset was committed alone;"
            " later commits have at most half as many. Set metadata_max_bytes to the brokers' offset.metadata.max.bytes",
            *(length, partition),
        )
        self.work.lower_metadata(length)

    def handling(self) -> Mapping[TopicPartition, float]:
        """Return for how long the oldest handler of each partition has been running, in seconds; for ``consumer.health()``."""
        now, found = self.clock(), dict[TopicPartition, float]()
        for record in self.work.running:
            partition = record.holding.partition
            found[partition] = max(found.get(partition, 0.0), now - record.started)
        for partition, holding in self.work.holdings.items():
            # What waits for its time is in good hands, as in a handler that has only begun.
            if holding.asleep:
                found.setdefault(partition, 0.0)
        return found

    # -- for the driver -------------------------------------------------------------------------------------------------

    @abstractmethod
    def expect_end(self, holding: Holding, after_s: float) -> None:
        """After ``after_s`` seconds, lose the running handlers of a holding (:meth:`lose`) if it still drains."""

    @abstractmethod
    def lose(self, records: Sequence[Record], *, at_once: bool) -> None:
        """Tell the handlers of these records that their results no longer count.

        End those that do not end by themselves: at once, or after ``drain_timeout``.
        """

    @abstractmethod
    def letter_answered(self, letter: Letter, refused: Any) -> None:
        """Call :meth:`take_answer` where the state may be used; called in any thread that polls the producer."""

    def retry_topics(self, subscribed: Collection[str], wall_clock_ms: Callable[[], int]) -> frozenset[str]:
        """Return the topics to read besides those that the application has subscribed to.

        Raise :class:`IllegalStateError` if it has subscribed to none by its name, and a policy has retry topics.
        """
        self._wall_clock_ms = wall_clock_ms
        steps = self._retries
        if steps is not None:
            if not subscribed:
                raise IllegalStateError("RetryTopics needs a subscription to topics by their names: call subscribe() first")
            found = [topic for one in subscribed for topic in steps.topics(one, self._group_id)]
            self._retry_topics = {topic.name: topic for topic in found}
        return frozenset(self._retry_topics)

    def argument(self, record: Record) -> Any:
        """Return what the handler of a call gets: the message, or the list of messages."""
        return record.message if self.settings.batches is None else [one.message for one in (record, *record.rest)]

    def settle(self, record: Record, error: BaseException | None) -> None:
        """Record how an attempt ended, and decide what happens to a record whose handler failed."""
        if error is None or record.reason is not None:
            self.work.finish(record)
            return
        policy = self.settings.on_failure
        if policy is None or not isinstance(error, Exception):
            self._stop_before(record, error)
            return
        now = self.clock()
        try:
            delay_s = policy.delay_s(record, error, now)
        except Exception as raised:  # noqa: BLE001 - a bug in the application's policy, which ends the process
            self._stop_before(record, raised)
            return
        if delay_s is not None:
            record.idle_s += delay_s
            self.work.retry(record, now + delay_s)
        else:
            self.give_up(record, error)

    def give_up(self, record: Record, error: BaseException) -> None:
        """Take the last step for the records of a call that is not made again."""
        policy = self.settings.on_failure
        then = "stop" if policy is None else policy.then
        if isinstance(then, RetryTopics):
            here = self._retry_topics.get(record.holding.partition.topic)
            topics = then.topics(record.holding.partition.topic if here is None else here.of, self._group_id)
            place = 0 if here is None else here.place + 1
            if place < len(topics):
                due_ms = self._wall_clock_ms() + round(then.delays[place] * 1000)
                self.letters.send(record, error, then.producer, topics[place].name, due_ms)
                return
            then = then.then
        if isinstance(then, DeadLetters):
            self.letters.send(record, error, then.producer, then.topic, None)
        elif then == "skip":
            logger.warning(
                "the record of %s is skipped, because its handler failed in attempt %d: %r",
                *(_where(record), record.earlier + record.attempt, error),
            )
            self.work.skip(record)
        else:
            self._stop_before(record, error)

    def _stop_before(self, record: Record, error: BaseException) -> None:
        where = _where(record)
        logger.error("the handler failed for the record of %s, so processing stops before it: %r", where, error)
        error.add_note(f"raised by the handler of process() for the record of {where}")
        self._stop_with(record, error)

    def _stop_with(self, record: Record, failure: BaseException) -> None:
        if self.work.fail(record):
            self.work.stopping = True
            self.failure = self.failure or failure

    @property
    def _retries(self) -> RetryTopics | None:
        policy = self.settings.on_failure
        return policy.then if policy is not None and isinstance(policy.then, RetryTopics) else None

    def take_answer(self, letter: Letter, refused: Any, tracking: Tracking | BlockingTracking) -> None:
        """Take the broker's answer to a letter: ``refused`` is None, or why there is no letter."""
        self.look_at(tracking)
        self.letters.take_answer(letter, refused)
        self.let_go(letter.record, tracking)

    def let_go(self, record: Record, tracking: Tracking | BlockingTracking) -> None:
        """Let the consumer release a draining partition if a call that has just ended was its last one."""
        if record.holding.draining and not self.work.busy(record.holding):
            tracking.look_again()

    def poll_producers(self) -> None:
        """Let the producers report what became of letters; they call :meth:`letter_answered`."""
        self.failure = self.failure or self.letters.poll()

    def tell_of_progress(self) -> None:
        """Once a minute, log the figures, and name the record that commits or a slot have waited for longest."""
        now = self.clock()
        if now < self._tells_at:
            return
        self._tells_at = now + _TELL_S
        figures = self.figures()
        if any(figures.values()):
            logger.info(
                "process: %s", ", ".join(f"{name.removeprefix('process-')} {value:.9g}" for name, value in figures.items())
            )
        stuck = self.work.stuck(now, _TELL_S)
        if stuck is None:
            return
        attempt, key = stuck.earlier + stuck.attempt, stuck.message.key()
        if stuck.state is State.RETRYING:
            logger.warning(
                "the record of %s, with the key %r, has failed in %d attempts for %.0f s, and waits for the next;"
                " the commits of the partition wait for it",
                *(_where(stuck), key, attempt, now - stuck.since),
            )
        else:
            logger.warning(
                "the handler of the record of %s, with the key %r, has been running for %.0f s, in attempt %d;"
                " %d other handlers run, and the commits of the partition wait for it",
                *(_where(stuck), key, now - stuck.started, attempt, len(self.work.running) - 1),
            )

    def figures(self) -> Mapping[str, float]:
        """Return what ``process`` adds to the consumer's metrics: see ``monitoring/process_figures.py``."""
        return {**self.work.figures(self.clock()), "process-letters-total": self.letters.sent}

    def look_at(self, tracking: Tracking | BlockingTracking) -> None:
        """Take note of what the group has changed; call it before anything starts or counts."""
        self.look_at_readings(tracking.readings())
        self.look_at_lease(leased=tracking.leased)

    def look_at_lease(self, *, leased: bool) -> None:
        """Start nothing without a lease, and disregard what ran when it ended."""
        if leased is self.work.suspended:
            self.work.suspended = not leased
            if not leased:
                self.lose(self.work.disregard("timeout"), at_once=False)

    def look_at_readings(self, readings: Mapping[TopicPartition, TrackedReading]) -> None:
        """Begin and end the holdings of partitions that came and went."""
        if readings is self._readings:
            return
        self._readings = readings
        for partition, holding in list(self.work.holdings.items()):
            reading = readings.get(partition)
            if reading is None or reading.number != holding.number:
                reason = "revoked" if holding.draining or reading is not None else "lost"
                self.lose(self.work.end(partition, reason), at_once=holding.draining)
            elif holding.draining and not reading.releasing:
                self.work.resume(holding)
        for partition, reading in readings.items():
            if partition not in self.work.holdings and not reading.releasing:
                self._begin(partition, reading)

    def _begin(self, partition: TopicPartition, reading: TrackedReading) -> None:
        start = reading.start
        names_finished = False
        if start.metadata:
            try:
                names_finished = bool(decode(start.metadata, start.offset, _NO_END))
            except UnusableMetadataError as error:
                _warn(partition, start, str(error))
        holding = self.work.begin(
            *(partition, reading.number, start.offset, start if names_finished else None),
            again=partition.topic in self._retry_topics,
        )
        if names_finished:
            self._unchecked[holding], self._check_at = self.clock() + _UNCHECKED_S, 0.0

    def to_check(self) -> frozenset[TopicPartition]:
        """Return the partitions whose leaders to ask now where the log ends; their records wait for the answer."""
        if not self._unchecked or self.clock() < self._check_at:
            return frozenset()
        return frozenset(holding.partition for holding in self._unchecked)

    def know_log_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Let the records of :meth:`to_check` start, without those that a former owner has finished.

        A leader that does not answer is asked again, for a minute. Only then are the records handled again.
        """
        now = self.clock()
        self._check_at = now + _CHECK_AGAIN_S
        for holding, until in list(self._unchecked.items()):
            if holding.partition not in ends and now < until and not holding.ended:
                continue
            del self._unchecked[holding]
            at = holding.committed
            if at is None or holding.ended:
                continue
            try:
                if holding.partition not in ends:
                    raise UnusableMetadataError(f"for {_UNCHECKED_S:g} s, no leader told where the log ends")
                self.work.know_finished(holding, decode(at.metadata, at.offset, ends[holding.partition]))
            except UnusableMetadataError as error:
                _warn(holding.partition, at, str(error))
                self.work.know_finished(holding, ())

    def most(self) -> int:
        """Return how many records to take from the consumer at once."""
        return _BATCH

    def wait_s(self) -> float:
        """Return how long to wait for records, in seconds.

        A partition that was paused for lack of room is read again only by the next call. So wait half of the time in which the
        handlers, at their present rate, make room; but not less than ``SHORT_WAIT_S``, because each call has a cost.
        """
        (since, before), now, handled = self._rated, self.clock(), self.work.handled
        self._rated = now, handled
        if not self.work.crowded:
            return WAIT_S
        finished, needed = handled - before, self.work.until_room()
        half_s = needed * (now - since) / (2 * finished) if finished else WAIT_S * bool(needed)
        return min(WAIT_S, max(SHORT_WAIT_S, half_s))

    def deliver(self, messages: Sequence[Any]) -> None:
        """Add the messages of one call; then raise KafkaException if one of them reports an error."""
        begin, count, failure, now = 0, len(messages), None, self.clock()
        while begin < count:
            first = messages[begin]
            error = first.error()
            end = begin + 1
            if error is not None:
                begin = end
                if error.code() != KafkaError._PARTITION_EOF:
                    failure = failure or error
                continue
            topic, number = first.topic(), first.partition()
            while end < count and _follows(messages[end], topic, number):
                end += 1
            holding = self.work.holdings[TopicPartition(topic, number)]
            self.work.deliver(holding, messages[begin:end], now, self._schedule(topic) if holding.again else None)
            begin = end
        if failure is not None:
            # Only now, because the consumer's position is behind all of these records.
            raise KafkaException(failure)

    def _schedule(self, topic: str) -> Callable[[Any], tuple[float, int]]:
        """Return when a record of a retry topic may be handled, and how many attempts it has had."""
        steps, now, now_ms = self._retries, self.clock(), self._wall_clock_ms()
        assert steps is not None
        delay_s = steps.delays[self._retry_topics[topic].place]

        def due(message: Any) -> tuple[float, int]:
            origin = Origin.of(message, retried=True)
            return now + min(delay_s, (origin.due_ms - now_ms) / 1000), origin.attempts

        return due

    def to_continue(self) -> Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]:
        """Return where another reader of this consumer must continue each reading, so that it receives what is not finished.

        A partition whose records are all finished continues behind them: another ``process`` would begin at the start of the
        reading, which is before them.
        """
        found = {}
        for partition, holding in self.work.holdings.items():
            reading, at = self._readings.get(partition), self.work.to_commit(holding)
            if at is not None:
                found[partition] = holding.number, at
            elif reading is not None and reading.start.offset < holding.position:
                found[partition] = holding.number, OffsetAndMetadata(holding.position)
        return found

    def counts(self) -> Counts:
        """Return the counts so far."""
        work = self.work
        return Counts(work.handled, work.failed, work.retried, work.given_up, work.found_finished, self.letters.sent)


def _where(record: Record) -> str:
    """Return the place of a call's records, for log lines and errors."""
    more = f" and {len(record.rest)} more" if record.rest else ""
    return f"{record.holding.partition} at offset {record.offset}{more}"


def _follows(message: Any, topic: str, number: int) -> bool:
    return bool(message.partition() == number and message.error() is None and message.topic() == topic)


def _warn(partition: TopicPartition, at: OffsetAndMetadata, why: str) -> None:
    logger.warning(
        "%s starts at the committed offset %d, and records that were finished behind it are handled again: the metadata of the"
        " commit cannot be used, because %s",
        *(partition, at.offset, why),
    )
