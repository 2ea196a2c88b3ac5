"""Plan a bounded read (``spark.read``): look up the start and the end of each partition once.

Planning does not join a group, and commits nothing. Each partition has a start and an end, or an error that names the
partition: a partition whose offsets are unknown is never left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.assignor_loading import load_assignors
from consumer_coord.config import Config
from consumer_coord.errors import ConfigurationError, NoOffsetError, RetriableError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline, retrying
from consumer_coord.spark.errors import DataLossError, MissingTopicError
from consumer_coord.spark.ledger import NONE, Ledger
from consumer_coord.spark.options import BoundedOptions
from consumer_coord.spark.packing import Range
from consumer_coord.spark.start_lookups import StartLookups, beyond_the_end, no_record_since, offsets_at
from consumer_coord.spark.start_offsets import AFTER_THE_GROUP, Start
from consumer_coord.spark.starting_offsets_option import OffsetLimit
from consumer_coord.spark.subscribed_topics import View, fresh_view
from consumer_coord.spark.topic_check import AGAIN_S, missing_topics
from consumer_coord.threads.background import Runtime
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)

#: Time for closing the look-ups' coordinator, in milliseconds. It is no member, so there is nothing to wait for.
_CLOSE_MS = 1_000.0


def plan_ranges(options: BoundedOptions) -> list[Range]:
    """Return the offsets to read of each partition that has any, from look-ups that begin now.

    Raise ``MissingTopicError`` if a topic or an assigned partition does not exist, ``NoOffsetError`` or ``ConfigurationError``
    for limits that cannot be satisfied, ``DataLossError`` if records of the range are gone (with ``failOnDataLoss``), and
    ``RetriableError`` with the last reason if brokers do not answer within ``default.api.timeout.ms``.
    """
    config, runtime = options.config(), Runtime.shared()
    limit_ms = config.coordinator.default_api_timeout_ms

    async def plan() -> list[Range]:
        cluster = runtime.clusters.acquire(config.client)
        try:
            watch = cluster.watch(frozenset(options.topics) if options.pattern is None else None, lambda _: None)
            try:
                return await _Plan(cluster, options, config, Deadline.after(limit_ms)).ranges()
            finally:
                cluster.unwatch(watch)
        finally:
            await runtime.clusters.release(config.client)

    try:
        return runtime.call(plan, timeout_ms=limit_ms + _CLOSE_MS)
    except RetriableError as error:
        raise type(error)(
            f"{options.subscription()} could not be read within {limit_ms} ms: {error}; are the brokers of"
            f" kafka.bootstrap.servers={options.bootstrap_servers!r} up?",
            code=error.code,
        ) from error


@attrs.frozen
class _Plan:
    """The look-ups of one bounded read."""

    cluster: ClusterClient
    options: BoundedOptions
    config: Config
    deadline: Deadline

    async def ranges(self) -> list[Range]:
        """Return the ranges with at least one offset."""
        view = await self._view()
        partitions = self._partitions(view)
        # Starts come first, so a log that grows meanwhile does not end before its start.
        starts = await self._starts(partitions)
        ends = await self._with_latest(await self._positions(self.options.ending, partitions))
        log_ends = await self._log_ends(partitions)
        self._check_limits(starts, ends, log_ends)
        found = [
            Range(
                one.topic, one.partition, starts[one], min(ends[one], log_ends.get(one, ends[one])), view.topics[one.topic].id
            )
            for one in partitions
        ]
        logger.info(
            "bounded read of %s: %s",
            self.options.subscription(),
            ", ".join(f"{one.topic_partition} from {one.start} to {one.end}" for one in found) or "no partition",
        )
        return [one for one in found if one.start < one.end]

    # -- partitions -------------------------------------------------------------------------------------------------

    async def _view(self) -> View:
        """Return the topics to read; raise ``MissingTopicError`` if two looks do not find one of them."""
        options = self.options
        view = await self._look_at_topics()
        if missing_topics(view, options.topics):
            # A broker that has just started may not know a topic yet.
            await asyncio.sleep(AGAIN_S)
            view = await self._look_at_topics()
        missing = sorted(missing_topics(view, options.topics))
        if missing:
            name = "subscribe" if options.assigned is None else "assign"
            raise MissingTopicError(
                f"{', '.join(missing)}: the topic does not exist; correct the option {name}, or create the topic"
            )
        if not view.topics:
            logger.warning("%s matches no topic, so there is nothing to read", options.subscription())
        return view

    async def _look_at_topics(self) -> View:
        cluster, options = self.cluster, self.options
        async for attempt in retrying(cluster.backoff, self.deadline, what=f"metadata of {options.subscription()}"):
            with attempt:
                return await fresh_view(cluster, options.topics, options.pattern, self.deadline)
        raise AssertionError("unreachable: the retry loop returns or raises")

    def _partitions(self, view: View) -> list[TopicPartition]:
        wanted = self.options.assigned
        if wanted is None:
            return sorted(view.partitions)
        if wanted - view.partitions:
            raise MissingTopicError(f"assign names {listed(wanted - view.partitions)}, which the topic does not have")
        return sorted(wanted)

    # -- starts and ends --------------------------------------------------------------------------------------------

    async def _starts(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        starting = self.options.starting
        if starting.at_commits:
            return await self._commits(partitions)
        found = await self._positions(starting, partitions)
        unmatched = [one for one, position in found.items() if position < 0]
        if unmatched and not starting.latest_after_the_end:
            raise no_record_since(starting, unmatched)
        return await self._with_latest(found)

    async def _commits(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's commits, as a stream of a group that has begun starts: new partitions at the earliest offset."""
        options = self.options
        # The coordinator never subscribes, so it is no member of the group.
        core = ConsumerCoordinator(self.config.coordinator, self.cluster, load_assignors(self.config.strategy))
        try:
            starts = await self._group_starts(StartLookups(core, options.starting, self.config.read_committed), partitions)
        finally:
            await core.close(_CLOSE_MS, leave_group=False)
        if starts and all(start.committed == NONE and start.reason == AFTER_THE_GROUP for start in starts.values()):
            raise NoOffsetError(
                f"startingOffsets='group': group.id={options.group!r} has no commit for {options.subscription()}; correct"
                " group.id, or set startingOffsets=earliest"
            )
        gone = frozenset(partitions) - starts.keys()
        if gone:
            raise MissingTopicError(f"{listed(gone)}: the topic was deleted while its commits were looked up")
        return {one: start.position for one, start in starts.items() if start.position is not None}

    async def _group_starts(
        self, lookups: StartLookups, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, Start]:
        group = self.options.group
        async for attempt in retrying(self.cluster.backoff, self.deadline, what=f"commits of group {group!r}"):
            with attempt:
                return await lookups.starts(partitions, Ledger(group), None, max(1.0, self.deadline.remaining_ms))
        raise AssertionError("unreachable: the retry loop returns or raises")

    async def _positions(self, limit: OffsetLimit, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition at the limit, or -1 if no record is as young as its time."""
        positions: dict[TopicPartition, int] = {}
        asked: dict[TopicPartition, int] = {}
        _check_named(limit, partitions)
        for one in partitions:
            stamp = limit.timestamp_of(one)
            if stamp is not None:
                asked[one] = stamp
            elif limit.of(one) < 0:
                asked[one] = limit.of(one)
            else:
                positions[one] = limit.of(one)
        found = await offsets_at(self.cluster, asked, self.deadline, read_committed=self.config.read_committed)
        return {**positions, **found}

    async def _with_latest(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Replace each -1 by the latest offset."""
        wanted = {one: LATEST for one, position in positions.items() if position < 0}
        latest = await offsets_at(self.cluster, wanted, self.deadline, read_committed=self.config.read_committed)
        return {**positions, **latest}

    # -- checks -----------------------------------------------------------------------------------------------------

    async def _log_ends(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the ends of the logs if a limit has offsets that no broker reported just now, and nothing otherwise.

        With ``read_committed``, such an offset may be in an open transaction, after the last stable offset.
        """
        starting, ending = self.options.starting, self.options.ending
        if starting.offsets is None and ending.offsets is None and not starting.at_commits:
            return {}
        return await offsets_at(self.cluster, dict.fromkeys(partitions, LATEST), self.deadline)

    def _check_limits(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        log_ends: Mapping[TopicPartition, int],
    ) -> None:
        """Raise an error for limits beyond the logs, and for a start after its end."""
        starting, ending = self.options.starting, self.options.ending
        beyond = {one: end for one, end in log_ends.items() if starts[one] > end}
        if beyond and starting.at_commits:
            for one, end in beyond.items():
                self._lose(f"{one}: its log was truncated at offset {end}, although the group has committed {starts[one]}")
        elif beyond:
            raise beyond_the_end(starting.option, starts, beyond)
        if short := {one: end for one, end in log_ends.items() if ends[one] > end}:
            error = beyond_the_end(ending.option, ends, short)
            if self.options.fail_on_data_loss:
                raise error
            logger.warning("%s; reading up to the end, because failOnDataLoss=false", error)
        for one, start in starts.items():
            if start <= ends[one] or starting.at_commits:
                continue
            what = f"{one} starts at offset {start} ({starting.option}), after its end at {ends[one]} ({ending.option})"
            if starting.timestamp_of(one) is not None or starting.of(one) != EARLIEST:
                raise ConfigurationError(f"{what}: choose a later end, or an earlier start")
            self._lose(f"{what}: the records before the first offset were deleted")

    def _lose(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(f"data loss in {what}. To read the remaining records, set failOnDataLoss=false")
        logger.warning("data loss in %s; continuing, because failOnDataLoss=false", what)


def _check_named(limit: OffsetLimit, partitions: Iterable[TopicPartition]) -> None:
    """Raise ``ConfigurationError`` unless JSON names exactly the partitions to read, as Spark's own source requires."""
    if limit.by_partition is None:
        return
    named, wanted = frozenset(limit.named()), frozenset(partitions)
    if wanted - named:
        raise ConfigurationError(f"{limit.option} leaves out {listed(wanted - named)}: name every partition to read")
    if named - wanted:
        raise ConfigurationError(f"{limit.option} names {listed(named - wanted)}, which this read does not contain")
