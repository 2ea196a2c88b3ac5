"""The judge of the proofs: which member received which records, and why some were delivered twice.

Records are identified by partition and offset.  A *delivery* is a range of one partition in one effect: a finished run of a
batch's sink, or a poll of a plain consumer.  No record may be missing, and each duplicate must have one of the causes in
docs/spark.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

import attrs

UNEXPLAINED = "unexplained"


@attrs.frozen(order=True)
class Delivery:
    """Offsets ``first`` to ``last`` (both included) reached ``member`` in its process ``run``; ``batch`` is None for a poll.

    ``at_ms``: when the poll returned or the batch's sink *began*, by the monotonic clock, which all processes share.  (A
    sink may outlive the membership in which it was planned; the earlier begin is the earlier read.)
    """

    at_ms: int
    member: str
    run: int
    batch: int | None
    partition: int
    first: int
    last: int


@attrs.frozen
class Run:
    """A run of a member.

    ``cause``: its end, a stop or the killed process.  ``lost``: the run lost its membership.  ``replays``: the batch that was
    unfinished in its checkpoint when it started, and the cause for which the previous run left the batch unfinished.
    """

    cause: str | None = None
    lost: bool = False
    replays: tuple[int, str] | None = None


@attrs.frozen
class Verdict:
    """``delivered``: distinct records.  ``lost``: partition -> ranges not delivered.  ``duplicates``: cause -> records."""

    delivered: int
    lost: Mapping[int, Sequence[tuple[int, int]]]
    duplicates: Mapping[str, int]
    unexplained: Sequence[tuple[Delivery, Delivery]]


def judge(deliveries: Iterable[Delivery], ends: Mapping[int, int], runs: Mapping[tuple[str, int], Run]) -> Verdict:
    """Judge the deliveries of partitions with the offsets 0 to ``ends`` (not included)."""
    by_partition: dict[int, list[Delivery]] = {partition: [] for partition in ends}
    last_batches: dict[tuple[str, int], int] = {}
    for one in sorted(deliveries):
        by_partition[one.partition].append(one)
        if one.batch is not None:
            key = (one.member, one.run)
            last_batches[key] = max(one.batch, last_batches.get(key, -1))
    lost: dict[int, Sequence[tuple[int, int]]] = {}
    duplicates: Counter[str] = Counter()
    unexplained = []
    delivered = 0
    for partition, found in by_partition.items():
        # Ranges that do not overlap, in order, with the first delivery of each.
        covered: list[tuple[int, int, Delivery]] = []
        for one in found:
            fresh = [(one.first, one.last)]
            for first, last, earlier in _overlapping(covered, one.first, one.last):
                low, high = max(first, one.first), min(last, one.last)
                cause = _cause(earlier, one, last_batches, runs)
                duplicates[cause] += high - low + 1
                if cause == UNEXPLAINED:
                    unexplained.append((earlier, one))
                fresh = [piece for whole in fresh for piece in _without(whole, (low, high))]
            for first, last in fresh:
                insort(covered, (first, last, one))
        delivered += sum(last - first + 1 for first, last, _ in covered)
        missing = _gaps(covered, ends[partition])
        if missing:
            lost[partition] = missing
    return Verdict(delivered, lost, dict(duplicates), unexplained)


def _gaps(covered: Sequence[tuple[int, int, Delivery]], end: int) -> Sequence[tuple[int, int]]:
    """Return the ranges before ``end`` that no piece covers."""
    missing = []
    expected = 0
    for first, last, _ in covered:
        if first > expected:
            missing.append((expected, first - 1))
        expected = last + 1
    if expected < end:
        missing.append((expected, end - 1))
    return missing


def _overlapping(covered: Sequence[tuple[int, int, Delivery]], first: int, last: int) -> Sequence[tuple[int, int, Delivery]]:
    low = bisect_left(covered, first, key=itemgetter(1))
    return covered[low : bisect_right(covered, last, key=itemgetter(0))]


def _cause(
    earlier: Delivery,
    later: Delivery,
    last_batches: Mapping[tuple[str, int], int],
    runs: Mapping[tuple[str, int], Run],
) -> str:
    before, after = runs.get((earlier.member, earlier.run), Run()), runs.get((later.member, later.run), Run())
    # A query that is restarted at once may replay a batch before the new owners of the partitions have read the same records.
    for one, run in ((later, after), (earlier, before)):
        if run.replays is not None and one.batch == run.replays[0]:
            return f"replayed batch ({run.replays[1]})"
    if (
        earlier.batch is not None
        and earlier.member != later.member  # a member's own checkpoint has its finished batches
        and before.cause is not None
        and earlier.batch >= last_batches[earlier.member, earlier.run] - 1
    ):
        return f"finished, not confirmed ({before.cause})"
    return "lost membership" if before.lost else UNEXPLAINED


def _without(whole: tuple[int, int], cut: tuple[int, int]) -> list[tuple[int, int]]:
    (first, last), (low, high) = whole, cut
    if high < first or low > last:
        return [whole]
    return [piece for piece in ((first, low - 1), (high + 1, last)) if piece[0] <= piece[1]]
