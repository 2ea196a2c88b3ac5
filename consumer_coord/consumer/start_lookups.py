"""When the start of a partition is looked up, and what the result changes: pure functions of a consumer's table.

A partition in phase ``LOCATING`` without a start is looked up: by the group's commit, by the logical offset that the
application chose, or, if its last offset is not in the log, by ``auto.offset.reset``. ``start_offsets.py`` does this. After a
failure, the partition waits for the back-off, the only one of look-ups, and is looked up again.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.callback_types import Partitions
from consumer_coord.consumer.partitions import Origin, PartitionEvent, Phase, Retry, Table, applied, begun, last_serial
from consumer_coord.consumer.start_offsets import NONE, Start, Starts, TimeLimits, no_offset
from consumer_coord.errors import CoordinatorError, IncompleteResponseError, NoOffsetError, RetriableError
from consumer_coord.topic_partition import TopicPartition, listed

if TYPE_CHECKING:
    from consumer_coord.consumer.reading.chunks import OutOfRange

#: Time limit of the first look-up of log offsets, in milliseconds; each further look-up has twice the time.
_ROUND_MS = 1_000
#: How much earlier than its back-off ends a look-up may begin, in seconds, because a timer may fire a little early.
_EARLY_S = 0.001


@attrs.frozen
class Rules:
    """The settings that decide about starts."""

    #: ``auto.offset.reset``, in librdkafka's words.
    reset: str
    #: ``default.api.timeout.ms``.
    timeout_ms: float
    #: Returns the back-off after a number of earlier failures, in milliseconds.
    backoff_ms: Callable[[int], float]


class StartBy(enum.Enum):
    """What determines a start."""

    COMMIT = "the group's commit"
    RESET = "auto.offset.reset"
    LOGICAL = "a logical offset of the application"


@attrs.frozen(eq=False)
class LookUp:
    """Look up starts. The table's partitions that wait for this object take its result."""

    by: StartBy
    #: Partition -> why its offset is not in the log (``RESET``), or its logical offset (``LOGICAL``).
    wanted: Mapping[TopicPartition, Any]
    limits: TimeLimits


@attrs.frozen
class WakeAt:
    """At this loop time, look again, because the back-off of a partition ends."""

    moment: float


#: The result of each look-up that has ended; None if it was cancelled.
LookUpResults: TypeAlias = Mapping[LookUp, Starts | CoordinatorError | None]


def end_readings(
    table: Table,
    ended: Mapping[TopicPartition, tuple[OutOfRange, int]],
    rules: Rules,
    known: Partitions,
    serial: int,
    moment: float,
) -> tuple[Table, list[str]]:
    """Find new starts for partitions whose offset is out of range; also return what to log.

    ``ended``: the reason, and the serial number of the reading, of partitions whose last record was delivered. If the offset is
    the start that a look-up has just found in the log, the next look-up waits for the back-off, as after a failure.
    """
    texts = []
    for partition, (end, of) in ended.items():
        one = table.get(partition)
        if one is None or one.serial != of or one.phase is not Phase.READING:
            continue
        if end.resume_at is not None and rules.reset != NONE:
            texts.append(f"{partition} continues at offset {end.resume_at.offset}: {end.why}")
            table = begun(table, {partition: end.resume_at}, known, last_serial(table, serial))
            continue
        if rules.reset != NONE:
            texts.append(f"{partition} continues where auto.offset.reset={rules.reset} selects: {end.why}")
        again = one.origin in (Origin.RESET, Origin.FIRST) and one.start is not None and end.offset <= one.start.offset
        in_vain = one.resets_in_vain + 1 if again else 0
        changes: dict[str, Any] = {"start": None, "origin": None, "logical": None, "out_of_range": end.why}
        changes["resets_in_vain"] = in_vain
        if in_vain:
            changes["retry"] = Retry(in_vain, moment, moment + rules.backoff_ms(in_vain - 1) / 1000, RetriableError(end.why))
        table = applied(table, PartitionEvent.OUT_OF_RANGE, [partition], **changes)
    return table, texts


def take_results(
    table: Table, results: LookUpResults, rules: Rules, known: Partitions, serial: int, moment: float
) -> tuple[Table, list[str]]:
    """Begin the readings whose start was found, and note the failures of the others; also return what to log."""
    texts: list[str] = []
    serials = itertools.count(last_serial(table, serial) + 1)
    for look_up, result in results.items():
        asked = [partition for partition, one in table.items() if one.awaits is look_up]
        table = {**table, **{one: attrs.evolve(table[one], awaits=None) for one in asked}}
        if result is None:
            continue
        if isinstance(result, CoordinatorError):
            result = Starts({}, dict.fromkeys(asked, result))
        failed = {one: result.failed[one] for one in asked if one in result.failed}
        table, news = _failed(table, failed, rules, moment)
        texts += news
        for partition in asked:
            if partition not in failed:
                table = _located(table, partition, result.found[partition], known, next(serials))
    return table, texts


def _located(table: Table, partition: TopicPartition, start: Start, known: Partitions, serial: int) -> Table:
    changes: dict[str, Any] = {"serial": serial, "start": start.at, "origin": start.origin, "out_of_range": None}
    if start.origin is Origin.COMMIT:
        changes["committed"] = start.at
    if start.origin is Origin.RESET or partition in known:
        # ``auto.offset.reset`` chose a position in the current topic, not in the deleted topic.
        changes["former_topic_id"] = None
    return applied(table, PartitionEvent.LOCATED, [partition], **changes)


def _failed(
    table: Table, errors: Mapping[TopicPartition, CoordinatorError], rules: Rules, moment: float
) -> tuple[Table, list[str]]:
    """Look up these starts again after the back-off; decide what the application hears.

    An error that a retry alone does not resolve reaches the application in a poll; the other partitions go on. Any other
    error is logged when its text changes, because brokers may be away for hours. But if brokers do answer, without a usable
    row, for ``default.api.timeout.ms``, this is raised as well.
    """
    news: dict[str, list[TopicPartition]] = {}
    # Partitions that failed together are looked up together.
    waits_s: dict[int, float] = {}
    for partition, error in errors.items():
        before = table[partition].retry
        failures, since = (0, moment) if before is None else (before.failures, before.since)
        if failures not in waits_s:
            waits_s[failures] = rules.backoff_ms(failures) / 1000
        raises = not isinstance(error, RetriableError)
        if isinstance(error, IncompleteResponseError) and moment - since >= rules.timeout_ms / 1000:
            raises, since = True, moment
        if not isinstance(error, NoOffsetError) and (before is None or str(before.error) != str(error)):
            news.setdefault(str(error), []).append(partition)
        retry = Retry(failures + 1, since, moment + waits_s[failures], error)
        if raises:
            table = applied(table, PartitionEvent.UNLOCATED, [partition], retry=retry)
        else:
            table = {**table, partition: attrs.evolve(table[partition], retry=retry)}
    return table, [f"the start of {listed(partitions)} is not known yet: {text}" for text, partitions in news.items()]


def begin_readings(table: Table) -> Table:
    """Read the partitions whose start is known."""
    known = [one for one, value in table.items() if value.phase is Phase.LOCATING and value.start and not value.declined]
    return applied(table, PartitionEvent.LOCATED, known, out_of_range=None)


def next_look_up(table: Table, rules: Rules, moment: float, timer: float) -> tuple[Table, LookUp | WakeAt | None]:
    """Return the look-up that must begin now, for which its partitions wait; None: none. ``timer`` is the last ``WakeAt``."""
    needed = {one: value for one, value in table.items() if value.needs_look_up}
    later = {one: value.retry.at for one, value in needed.items() if value.retry is not None}
    waiting = {one: at for one, at in later.items() if at - moment > _EARLY_S}
    if waiting and (first := min(waiting.values())) != timer:
        return table, WakeAt(first)
    due = {one: value for one, value in needed.items() if one not in waiting}
    lapsed = {one: value.out_of_range for one, value in due.items() if value.out_of_range is not None}
    logical = {one: value.logical for one, value in due.items() if one not in lapsed and value.logical is not None}
    by_commit = {one: None for one in due if one not in lapsed and one not in logical}
    wanted: Mapping[TopicPartition, Any]
    for by, wanted in ((StartBy.COMMIT, by_commit), (StartBy.RESET, lapsed), (StartBy.LOGICAL, logical)):
        if wanted:
            rounds = min(retry.failures if (retry := table[one].retry) is not None else 0 for one in wanted)
            limits = TimeLimits(rules.timeout_ms, min(rules.timeout_ms, _ROUND_MS * 2.0 ** min(rounds, 30)))
            look_up = LookUp(by, wanted, limits)
            return {**table, **{one: attrs.evolve(table[one], awaits=look_up) for one in wanted}}, look_up
    return table, None


def error_to_raise(table: Table) -> tuple[CoordinatorError, Partitions] | None:
    """Return the error of partitions that have no position, and these partitions; None if no error is due."""
    retries = {one: value.retry for one, value in table.items() if value.phase is Phase.UNLOCATED}
    errors = {partition: retry.error for partition, retry in retries.items() if retry is not None}
    if without := {partition: error for partition, error in errors.items() if isinstance(error, NoOffsetError)}:
        return no_offset(without), frozenset(without)
    for error in errors.values():
        return error, frozenset(partition for partition, other in errors.items() if str(other) == str(error))
    return None
