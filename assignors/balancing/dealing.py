"""Distribute partitions without an owner to the members that need more.

The number of partitions for each member is already known; this module chooses the partitions. Each topic is spread over as many
members as possible, so that a busy topic does not load a single member. But a plan is sent in one SyncGroup request, in which
every (member, topic) pair repeats the topic's name. So beyond ``MOST_ENTRIES`` pairs, each member gets longer runs of a topic's
partitions. A run is contiguous, so it is a ``range`` object and needs no memory per partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

#: Approximate number of (member, topic) pairs in a plan above which topics are spread over fewer members.
MOST_ENTRIES = 40_000

Gains = MutableMapping[str, Sequence[int]]


def deal(partitions: Mapping[str, Sequence[int]], wanted: Sequence[tuple[int, int]], gains: Sequence[Gains]) -> None:
    """Distribute ``partitions`` (topic -> numbers) to members.

    ``wanted``: (member, number of partitions) pairs, whose numbers must add up to the number of all partitions. The partitions
    of member m are added to ``gains[m]``, topic -> numbers.
    """
    wanted = [(member, number) for member, number in wanted if number]
    if len(wanted) == 1:
        [(member, _)] = wanted
        for topic, numbers in partitions.items():
            if numbers:
                add(gains[member], topic, numbers)
        return
    total = sum([number for _, number in wanted])
    run = run_length(total)
    start_of = dict.fromkeys(partitions, 0)
    least = min([number for _, number in wanted], default=0)
    if wanted and max([number for _, number in wanted]) <= least + 1:
        dealt = _deal_blocks(partitions, [member for member, _ in wanted], run, least, start_of, gains)
        wanted = [(member, number - dealt) for member, number in wanted]
        if run == 1:
            wanted = _deal_singly(partitions, wanted, least - dealt, start_of, gains)
    _deal_in_turns(partitions, _turns(wanted, run), start_of, gains)


def run_length(total: int) -> int:
    """Return how many consecutive partitions of a topic a member gets at a time, if ``total`` partitions are distributed."""
    return max(1, -(-total // MOST_ENTRIES))


def _deal_in_turns(
    partitions: Mapping[str, Sequence[int]],
    turns: Iterator[tuple[int, int]],
    start_of: Mapping[str, int],
    gains: Sequence[Gains],
) -> None:
    """Assign the remaining partitions. ``turns`` yields each next member, with the number of partitions that it gets."""
    member, hand = -1, 0
    for topic, numbers in partitions.items():
        start, end = start_of[topic], len(numbers)
        while start < end:
            if not hand:
                member, hand = next(turns)
            stop = start + hand
            if stop > end:
                stop = end
            hand -= stop - start
            own = gains[member]
            if topic in own:
                add(own, topic, numbers[start:stop])
            else:
                own[topic] = numbers[start:stop]
            start = stop


def _deal_blocks(
    partitions: Mapping[str, Sequence[int]],
    takers: Sequence[int],
    run: int,
    most: int,
    start_of: dict[str, int],
    gains: Sequence[Gains],
) -> int:
    """Give every member a block of equal size from each large topic; return how many partitions each member got.

    ``start_of`` advances to the end of the assigned blocks.
    """
    dealt = 0
    owners = [gains[member] for member in takers]
    shared: dict[tuple[int, int], list[Sequence[int]]] = {}
    for topic, numbers in partitions.items():
        size = min(len(numbers) // len(takers), most - dealt)
        if size < run:
            continue
        end = size * len(takers)
        # Many topics have the same number of partitions, so equal ranges are created only once.
        key = (len(numbers), size) if isinstance(numbers, range) and numbers == range(len(numbers)) else None
        blocks = shared.get(key) if key else None
        if blocks is None:
            blocks = [numbers[start : start + size] for start in range(0, end, size)]
            if key:
                shared[key] = blocks
        for own, block in zip(owners, blocks, strict=True):
            if topic in own:
                add(own, topic, block)
            else:
                own[topic] = block
        start_of[topic] = end
        dealt += size
    return dealt


def _deal_singly(
    partitions: Mapping[str, Sequence[int]],
    wanted: Sequence[tuple[int, int]],
    rounds: int,
    start_of: dict[str, int],
    gains: Sequence[Gains],
) -> list[tuple[int, int]]:
    """Distribute remaining partitions one by one, in up to ``rounds`` rounds; return how many each member still needs."""
    ring = [gains[member] for member, _ in wanted] * 2
    dealt = 0
    singles: dict[tuple[int, int], list[Sequence[int]]] = {}
    for topic, numbers in partitions.items():
        start, end = start_of[topic], len(numbers)
        if end - start > len(wanted) or dealt + end - start > rounds * len(wanted):
            continue
        # Many topics have the same number of partitions, so equal ranges are created only once.
        key = (start, end) if isinstance(numbers, range) and numbers == range(end) else None
        ones = singles.get(key) if key else None
        if ones is None:
            ones = [numbers[place : place + 1] for place in range(start, end)]
            if key:
                singles[key] = ones
        first = dealt % len(wanted)
        for own, one in zip(ring[first : first + end - start], ones, strict=True):
            if topic in own:
                add(own, topic, one)
            else:
                own[topic] = one
        dealt += end - start
        start_of[topic] = end
    whole, rest = divmod(dealt, len(wanted))
    return [(member, number - whole - (place < rest)) for place, (member, number) in enumerate(wanted)]


def _turns(wanted: Sequence[tuple[int, int]], run: int) -> Iterator[tuple[int, int]]:
    """Yield (member, number) in the order of distribution: in each round, up to ``run`` partitions per member."""
    while wanted:
        left = []
        for member, number in wanted:
            if number > run:
                yield member, run
                left.append((member, number - run))
            elif number:
                yield member, number
        wanted = left


def add(own: Gains, topic: str, numbers: Sequence[int]) -> None:
    """Add partitions of a topic to a member's gains."""
    before = own.get(topic)
    if before is None:
        own[topic] = numbers
    else:
        own[topic] = one_range(before, numbers) or (*before, *numbers)


def one_range(first: Sequence[int], second: Sequence[int]) -> range | None:
    """Return one range for two sequences if both are ranges and the second range begins at the end of the first, else None."""
    if isinstance(first, range) and isinstance(second, range) and first.stop == second.start:
        return range(first.start, second.stop)
    return None


def level(sizes: Sequence[int], keep: int) -> tuple[int, int]:
    """Return the level ``h`` and the remainder ``r`` with which the reduced ``sizes`` add up to ``keep``.

    Of the larger sizes, ``r`` sizes are reduced to ``h + 1``, and all others to ``h``. ``keep`` is less than the sum of the
    sizes.
    """
    left = keep
    below = 0
    ascending = sorted(sizes)
    for place, size in enumerate(ascending):
        remaining = len(ascending) - place
        if (size - below) * remaining > left:
            more, rest = divmod(left, remaining)
            return below + more, rest
        left -= (size - below) * remaining
        below = size
    return below, 0
