"""The offset calls of a blocking consumer: commits, positions, seeks, pauses and look-ups."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack

from consumer_coord.config import Config
from consumer_coord.confluent.arguments import FormerKeywords, checked_rows, commit_keywords
from consumer_coord.confluent.kafka_exceptions import drop_in_exceptions
from consumer_coord.confluent.rows import (
    GivenRows,
    Row,
    Rows,
    commit_reports,
    milliseconds,
    native,
    nothing_to_commit,
    partition_of,
    position_of,
    raise_if_any_failed,
    rows,
    to_commit,
    to_native,
    to_rows,
    to_store,
)
from consumer_coord.confluent.types import Message
from consumer_coord.confluent.types import TopicPartition as NativePartition
from consumer_coord.consumer.arrow_arguments import entries_of
from consumer_coord.consumer.engine import GRACE_S, Engine
from consumer_coord.consumer.librdkafka.plane import Librdkafka
from consumer_coord.consumer.turns import T, Turns
from consumer_coord.errors import RequestTimedOutError
from consumer_coord.group.commits import Entry
from consumer_coord.lag.member_lag import member_lag
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST
from consumer_coord.offsets import CommitResult
from consumer_coord.printable import get_logger
from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.runtime.locks import Bell
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.columns import ArrowColumns
    from consumer_coord.consumer.arrow_reads import ArrowReads
    from consumer_coord.consumer.look_ups import LookUps
    from consumer_coord.consumer.message_plane import MessagePlane
    from consumer_coord.consumer.reports import Reports
    from consumer_coord.health import Health
    from consumer_coord.lag.partition_lag import PartitionLag

logger: Final = get_logger(__name__)


#: How long the loop may take to say how healthy a consumer is, in milliseconds. With librdkafka it asks the leaders.
_HEALTH_MS: Final = 5_000


class OffsetCalls(Turns):
    """The methods of a blocking consumer for offsets and commits."""

    _settings: Config
    _engine: Engine
    _librdkafka: Librdkafka
    _on_commit: Callable[[Any, Rows], object] | None
    #: What fetches messages, as the application's thread uses it.
    _source: Librdkafka | MessagePlane
    #: The state of consume_arrow; None before its first call.
    _arrow: ArrowReads | None = None
    #: Look-ups without librdkafka; None while librdkafka fetches the records.
    _look_ups: LookUps | None = None
    #: What this package's own Fetch of messages reports to callbacks; None if librdkafka reports.
    _reports: Reports | None = None

    @property
    def _handle(self) -> Any:
        return self._librdkafka.handle

    def commit(
        self,
        message: Message | ArrowColumns | None = None,
        offsets: GivenRows | None = None,
        asynchronous: bool = True,
        **deprecated: Unpack[FormerKeywords],
    ) -> Rows | None:
        """Commit a message's offset + 1, a batch of columns, given offsets, or all delivered records.

        Automatic commits count the records before a committed offset as finished.

        With ``asynchronous``, return None at once, and report the outcome to ``on_commit`` inside a later poll. Otherwise
        return a list of TopicPartition, or raise an error if any offset could not be committed; the other offsets are
        committed.
        """
        self._check_open()
        if deprecated:
            asynchronous = commit_keywords(asynchronous, deprecated)
        with drop_in_exceptions():
            self._coordinator.check_process()
            engine, entries = self._engine, entries_of(message)
            if entries is None:
                wanted = to_commit(message, offsets)
                if wanted is None:
                    wanted = self._at_present(engine.finished)
                if not wanted:
                    if asynchronous or offsets == []:
                        return None
                    raise nothing_to_commit()
            elif not entries:
                return None if asynchronous else []
            if asynchronous and engine.commits.full:
                self._run(engine.commits.make_room)
            entries = entries or engine.entries(wanted or {})
            if asynchronous:
                engine.commit_later(entries)
                return None
            result = self._committed(entries)
            raise_if_any_failed(result)
            return to_rows(entries, result)

    def _committed(self, entries: Mapping[TopicPartition, Entry]) -> CommitResult:
        """Commit and wait for the response; this also works while another thread polls."""
        bell = Bell()
        ticket = self._engine.ticket(entries, None, bell.set)
        self._engine.submit(ticket)
        # The commit ends at its time limit. The additional time is for the case that the loop is blocked.
        if not bell.wait(self._settings.coordinator.default_api_timeout_ms / 1000 + GRACE_S):
            return dict.fromkeys(entries, RequestTimedOutError("the commit had no response in time"))
        return ticket.answers

    async def _report_commits(self) -> None:
        """Report the outcomes of asynchronous commits to ``on_commit``, all in one call on the application's thread."""
        if self._engine.commits.news or self._engine.commits.due:
            await BlockingCall.on_caller(self._report_all)

    def _report_all(self) -> None:
        on_commit = self._on_commit
        for error, rows_of_it in commit_reports(self._engine.commits.take(), wanted=on_commit is not None):
            assert on_commit is not None
            self._call_out(on_commit, error, rows_of_it)

    def store_offsets(self, message: Message | None = None, offsets: GivenRows | None = None) -> None:
        """Store finished positions for the next ``commit()`` without offsets; needs ``enable.auto.offset.store=false``."""
        self._check_open()
        with drop_in_exceptions():
            wanted = to_store(message, offsets)
            self._coordinator.check_process()
            self._engine.store(wanted)

    def committed(self, partitions: GivenRows, timeout: float | None = None) -> Rows:
        """Return the group's committed offsets; ``OFFSET_INVALID`` for a partition without a committed offset."""
        self._check_open()
        wanted = [partition_of(row) for row in checked_rows(partitions)]
        with drop_in_exceptions():
            found = self._coordinator.committed(wanted, milliseconds(timeout))
            return [native(partition, found[partition]) for partition in wanted]

    def position(self, partitions: GivenRows) -> Rows:
        """Return the positions after the last delivered messages; ``OFFSET_INVALID`` before the first message."""
        self._check_open()
        wanted = [partition_of(row) for row in checked_rows(partitions)]
        found = self._at_present(lambda: self._engine.positions(wanted))
        return [native(partition, found.get(partition)) for partition in wanted]

    def _at_present(self, work: Callable[[], T]) -> T:
        """Call ``work`` as :meth:`_use` does, after :meth:`Engine.catch_up`, but without the time of a step on the loop."""

        def caught_up() -> T:
            worker = self._engine.worker
            if self._arrow is None and worker.assigned and not worker.busy:
                worker.passed(self._source.positions_now(worker.assigned))
            return work()

        return self._use(caught_up)

    def seek(self, partition: Row) -> None:
        """Continue at another offset of an assigned partition; inside on_assign, begin there."""
        self._check_open()
        (row,) = checked_rows([partition])
        self._run(lambda: self._engine.seek(partition_of(row), position_of(row)))

    def pause(self, partitions: GivenRows) -> None:
        """Stop delivering messages of these partitions until :meth:`resume`, even after rebalances that keep the partitions."""
        wanted = self._named(partitions)
        self._run(lambda: self._engine.pause(wanted))

    def resume(self, partitions: GivenRows) -> None:
        """Deliver messages of these partitions again."""
        wanted = self._named(partitions)
        self._run(lambda: self._engine.resume(wanted))

    def paused(self) -> frozenset[NativePartition]:
        """Return the paused partitions."""
        return frozenset(rows(self._use(lambda: self._engine.paused)))

    def _named(self, partitions: GivenRows) -> set[TopicPartition]:
        self._check_open()
        return {partition_of(row) for row in checked_rows(partitions)}

    def get_watermark_offsets(
        self, partition: Row, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int] | None:
        """Return (first offset, end offset) of a partition; with ``cached``, from memory, without a request to a broker."""
        if (look_ups := self._look_ups) is not None:
            (one,) = checked_rows([partition])
            return self._looked_up(lambda: look_ups.watermarks(one, timeout, cached))
        limit = {} if timeout is None else {"timeout": timeout}

        def ask() -> tuple[int, int] | None:
            (row,) = checked_rows([partition])
            found: tuple[int, int] | None = self._handle.get_watermark_offsets(to_native(row), cached=cached, **limit)
            return found

        return self._in_turn(ask)

    def _looked_up(self, look_up: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a look-up on the loop; this also works while another thread polls."""
        self._check_open()
        with drop_in_exceptions():
            return self._coordinator.call(look_up)

    def offsets_for_times(self, partitions: GivenRows, timeout: float | None = None) -> Rows:
        """For each row, return the first offset at or after the time in the row's ``offset`` (in ms since 1970)."""
        if (look_ups := self._look_ups) is not None:
            wanted = checked_rows(partitions)
            return self._looked_up(lambda: look_ups.offsets_for_times(wanted, timeout))

        def ask() -> Rows:
            asked = [to_native(row) for row in checked_rows(partitions)]
            found: Rows = self._handle.offsets_for_times(asked, *([] if timeout is None else [timeout]))
            return found

        return self._in_turn(ask)

    def beginning_offsets(self, partitions: Iterable[Row]) -> dict[Row, int]:
        """Return the offset of the first record of each partition."""
        return self._offsets(partitions, EARLIEST)

    def end_offsets(self, partitions: Iterable[Row]) -> dict[Row, int]:
        """Return the offset after the last record of each partition; with ``read_committed``, the last stable offset."""
        return self._offsets(partitions, LATEST)

    def lag(self, timeout: float | None = None, *, seconds: bool = True) -> Mapping[TopicPartition, PartitionLag]:
        """Return how far the group is behind in each assigned partition.

        ``records`` and ``seconds`` of a :class:`~consumer_coord.lag.partition_lag.PartitionLag` count from the committed
        offset: ``seconds`` is the age of the first record after it, and needs a small Fetch to each leader. Either is None if a
        broker does not answer; ``unknown`` and ``seconds_unknown`` then say why. ``timeout`` is in seconds (default:
        ``default.api.timeout.ms``). This also works while another thread polls.
        """
        engine, limit_ms = self._engine, milliseconds(timeout)

        def look_up() -> Coroutine[Any, Any, Mapping[TopicPartition, PartitionLag]]:
            committed = engine.read_committed
            return member_lag(engine.core, engine.assigned, read_committed=committed, seconds=seconds, timeout_ms=limit_ms)

        return self._looked_up(look_up)

    def health(self, limit: float = 60.0) -> Health:
        """Return whether this consumer receives what its partitions have: the answer for probes and alerts.

        ``limit`` is in seconds: the consumer is healthy while no partition has owed records for longer, or has been unknown for
        longer, without a reason of the application's. A time counts from the first call that saw it, so call this method every
        few seconds. Nothing is asked of brokers, except with librdkafka. This also works while another thread polls.
        """
        # Imported here, because most consumers are never asked.
        from consumer_coord.health.watch import watch_of

        self._check_open()
        with drop_in_exceptions():
            return self._coordinator.call(lambda: watch_of(self._engine).look(limit), _HEALTH_MS)

    def report_handlers(
        self, report: Callable[[], Mapping[TopicPartition, float]], figures: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        """Let :meth:`health` know of handlers that run while this consumer polls, and :meth:`metrics` of their ``figures``.

        ``report`` returns the partitions whose records are in handlers, and for how long the oldest handler has worked, in
        seconds. It is called on another thread and must not wait. A paused partition with handlers counts as paused for them:
        they have ``max.poll.interval.ms``.
        """
        self._check_open()
        self._engine.handling, self._engine.figures = report, figures

    def seek_to_beginning(self, *partitions: Row) -> None:
        """Continue at the first record of these partitions, or of all assigned partitions."""
        self._seek_by_time(partitions, EARLIEST, "seek_to_beginning")

    def seek_to_end(self, *partitions: Row) -> None:
        """Continue after the last record of these partitions, or of all assigned partitions."""
        self._seek_by_time(partitions, LATEST, "seek_to_end")

    def _offsets(self, partitions: Iterable[Row], timestamp: int) -> dict[Row, int]:
        self._check_open()
        keys = {partition_of(row): row for row in checked_rows(list(partitions))}
        with drop_in_exceptions():
            found = self._coordinator.call(lambda: self._engine.listed(keys, timestamp))
        return {key: found[partition].offset for partition, key in keys.items()}

    def _seek_by_time(self, partitions: Iterable[Row], timestamp: int, what: str) -> None:
        named = self._named(list(partitions))

        async def seek() -> None:
            self._engine.must_hold(named, what)
            # Unlike librdkafka's logical offsets, numeric offsets change the position at once and can be committed.
            found = await self._engine.listed(named or self._engine.assigned, timestamp)
            for partition, position in sorted(found.items()):
                await self._engine.seek(partition, position)

        self._run(seek)
