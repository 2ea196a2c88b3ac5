"""Plan the next batch of a query: a pure function of the ledger, the membership and the look-ups. No I/O, no clock.

Planning has three answers. A :class:`Batch` has records, or records a change of the owned partitions in the checkpoint.
:class:`NothingNew` is certain: all of the query's partitions, and their ends after the call began, are known. Spark ends a
trigger or a run at this answer, so everything else that gives no batch is :class:`Unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.spark.checkpoint import Offsets, Span, TopicSpans
from consumer_coord.spark.ledger import Key, Ledger, PlannedBatch
from consumer_coord.topic_partition import TopicPartition, listed


@attrs.frozen
class Limits:
    """Limits of a batch in records; None means no limit. ``max_delay_ms`` limits the wait for ``min_offsets``.

    ``complete``: the batch must have everything that the query may read, as with Trigger.Once, which has only one batch.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 0
    complete: bool = False


@attrs.frozen
class Ends:
    """End offsets up to which a batch may read, and why some are missing. ``current``: looked up after the call began.

    The end offsets include every readable record that was written before their look-up began.
    """

    found: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    current: bool = True
    problem: object = None


@attrs.frozen
class Member:
    """The query as a member of its group. ``waiting``: why more partitions may still come to this query, or None."""

    generation: int = -1
    cluster: str = ""
    waiting: str | None = None


@attrs.frozen
class Batch:
    """The next batch ends at ``end``; ``ledger`` is the ledger after it was planned."""

    end: Offsets
    ledger: Ledger


@attrs.frozen
class NothingNew:
    """Every record that existed when the call began is planned, and the owned partitions are in the checkpoint."""


@attrs.frozen
class Unknown:
    """Whether there are new records is not known yet, because of ``why``; after ``limit_s`` seconds this is an error.

    None for ``limit_s`` means ``default.api.timeout.ms``.
    """

    why: str
    limit_s: float | None = None


Answer: TypeAlias = Batch | NothingNew | Unknown


def plan(ledger: Ledger, start: Offsets, ends: Ends, limits: Limits, member: Member, now_ms: float) -> Answer:
    """Return the answer to a planning call; ``start`` is the end of the last batch that Spark finished."""
    ready = ledger.ready
    names = {(partition.topic, holding.topic_id) for partition, holding in ready.items()}
    if len(names) > len({topic for topic, _ in names}):
        return Unknown("the query owns partitions of two topics of the same name, one of which was deleted")
    # A run reads no record that was written after it began, and nothing of partitions that did not exist then.
    targets = ledger.targets if ledger.bounded else None
    sizes = {}
    for partition, holding in sorted(ready.items()):
        end = ends.found.get(partition, holding.position)
        sizes[partition] = max(0, (end if targets is None else min(end, targets.get(partition, 0))) - holding.position)
    takes, turn = _admit(ledger, sizes, limits, now_ms)
    why = member.waiting or _unknown_ends(ledger, ends)
    if why is not None and (limits.complete or not any(takes.values())):
        return Unknown(why)
    if not any(takes.values()) and _is_final(ledger, start):
        return NothingNew()
    return _batch(ledger, takes, turn, member, now_ms)


def _unknown_ends(ledger: Ledger, ends: Ends) -> str | None:
    if ledger.bounded:
        # The targets existed, so an end below a target is out of date, or the log was truncated.
        unknown = {one for one in ledger.unread if ends.found.get(one, -1) < ledger.targets[one]}
    else:
        unknown = {one for one in ledger.ready if one not in ends.found or not ends.current}
    if not unknown:
        return None
    return f"the end offsets of {listed(unknown)} are not known: {ends.problem or 'their leaders have not answered'}"


def _is_final(ledger: Ledger, start: Offsets) -> bool:
    """Return whether a batch would add nothing, because ``start`` names the owned partitions at their positions."""
    before = {Key(partition, start.topics[partition.topic].id): span.end for partition, span in start.spans()}
    return before == {Key(partition, one.topic_id): one.position for partition, one in ledger.ready.items()}


def _batch(ledger: Ledger, takes: Mapping[TopicPartition, int], turn: int, member: Member, now_ms: float) -> Batch:
    topics: dict[str, dict[int, Span]] = {}
    ready = ledger.ready
    positions: dict[TopicPartition, int] = {}
    for partition, size in takes.items():
        position = ready[partition].position
        positions[partition] = position + size
        span = Span(position, position + size, member.generation)
        topics.setdefault(partition.topic, {})[partition.partition] = span
    ids = {partition.topic: holding.topic_id for partition, holding in ready.items()}
    end = Offsets(ledger.group, member.cluster, {topic: TopicSpans(ids[topic], spans) for topic, spans in topics.items()})
    planned = PlannedBatch(end, {partition: holding.ownership for partition, holding in ready.items()})
    last_ms = now_ms if any(takes.values()) else ledger.last_batch_ms
    return Batch(end, attrs.evolve(ledger.moved_to(positions), batch=planned, turn=turn, last_batch_ms=last_ms))


def _admit(
    ledger: Ledger, sizes: Mapping[TopicPartition, int], limits: Limits, now_ms: float
) -> tuple[Mapping[TopicPartition, int], int]:
    """Return the number of offsets to take from each partition, and the next ``turn``."""
    total, last_ms = sum(sizes.values()), ledger.last_batch_ms
    # The last records of a run may be fewer than the minimum.
    minimum = None if ledger.bounded else limits.min_offsets
    if minimum is not None and total < minimum and last_ms is not None and now_ms - last_ms < limits.max_delay_ms:
        return dict.fromkeys(sizes, 0), ledger.turn
    if limits.max_offsets is None or total <= limits.max_offsets:
        return sizes, ledger.turn
    takes = {partition: limits.max_offsets * size // total for partition, size in sizes.items()}
    left = limits.max_offsets - sum(takes.values())
    # Rounding leaves some records undistributed. Distribute these records in turn, so that a small partition next to a large
    # partition makes progress.
    waiting = [partition for partition, size in sizes.items() if size > takes[partition]]
    for step in range(left):
        takes[waiting[(ledger.turn + step) % len(waiting)]] += 1
    return takes, ledger.turn + left
