"""Buffer of fetched records that the caller has not taken yet, in order of arrival, with their size in bytes."""

from __future__ import annotations

from collections import deque

from consumer_coord import lazy_attrs as attrs
from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.fetch.values import FetchedRecords, Stopped


@attrs.define(eq=False)
class _Item:
    state: FetchState
    value: FetchedRecords | Stopped
    size: int
    count: int
    #: The leader epoch of the fetch position before these records.
    epoch_before: int


class Buffer:
    """One queue for all partitions. The bytes of records remain in use until the caller has advanced past the records."""

    def __init__(self) -> None:
        self._ready: deque[_Item] = deque()
        #: State of the partition -> (next offset, size in bytes) of the records that the caller has taken but not yet advanced
        #: past.
        self._taken: dict[FetchState, deque[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._ready)

    def add(self, state: FetchState, value: FetchedRecords | Stopped, size: int, count: int) -> None:
        """Append ``count`` records of ``size`` bytes, or a :class:`Stopped`, the report that a partition stopped."""
        state.untaken += size
        state.untaken_records += count
        state.held += size
        self._ready.append(_Item(state, value, size, count, state.leader_epoch))

    def take(self, max_bytes: int) -> list[FetchedRecords | Stopped]:
        """Remove and return the oldest items: up to ``max_bytes`` of records, but at least one item if there is one."""
        found: list[FetchedRecords | Stopped] = []
        total = 0
        while self._ready and (not found or total + self._ready[0].size <= max_bytes):
            item = self._ready.popleft()
            found.append(item.value)
            total += item.size
            item.state.untaken -= item.size
            item.state.untaken_records -= item.count
            if isinstance(item.value, FetchedRecords):
                self._taken.setdefault(item.state, deque()).append((item.value.next_offset, item.size))
        return found

    def advance(self, state: FetchState, next_offset: int) -> None:
        """Free the bytes of taken records before ``next_offset``."""
        taken = self._taken.get(state)
        freed = 0
        while taken and taken[0][0] <= next_offset:
            freed += taken.popleft()[1]
        if taken is not None and not taken:
            del self._taken[state]
        state.held -= freed

    def rewind(self, state: FetchState) -> None:
        """Drop the records of a partition that were not taken. The next Fetch fetches these records again."""
        dropped = [item for item in self._ready if item.state is state]
        if not dropped:
            return
        first = dropped[0]
        state.offset, state.leader_epoch = first.value.offset, first.epoch_before
        state.stopped = False
        self._ready = deque(item for item in self._ready if item.state is not state)
        state.held -= state.untaken
        state.untaken = state.untaken_records = 0

    def forget(self, state: FetchState) -> None:
        """Drop all records of a partition that is no longer fetched."""
        self._ready = deque(item for item in self._ready if item.state is not state)
        self._taken.pop(state, None)
        state.untaken = state.untaken_records = state.held = 0
