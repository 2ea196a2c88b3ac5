"""The timers of members of consumer groups (``CoordinatorTimer``): sessions and deadlines."""

from __future__ import annotations

import enum
from collections.abc import Callable

from consumer_coord.broker.purgatory import Purgatory
from consumer_coord.broker.shard import Shard


class TimerKind(enum.Enum):
    """The kind of a timer."""

    #: The member sent no heartbeat.
    SESSION = "session"
    #: The member did not revoke its partitions.
    REBALANCE = "rebalance"
    #: The classic member had to rejoin, and did not.
    JOIN = "join"
    #: The classic member joined, and sent no SyncGroup.
    SYNC = "sync"


class Timers:
    """At most one timer of each kind for each member, found by name; the timer of a removed member does nothing."""

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory

    def schedule(
        self,
        shard: Shard,
        kind: TimerKind,
        group_id: str,
        member_id: str,
        delay_ms: int,
        callback: Callable[[], None],
        *,
        if_absent: bool = False,
    ) -> None:
        """Call ``callback`` after ``delay_ms``; replace an earlier timer of the same name.

        With ``if_absent`` keep the earlier timer. A session timer is postponed, which is cheap: its callback is always the
        same.
        """
        name = (kind.value, group_id, member_id)
        present = shard.timers.get(name)
        if present is not None and present.pending:
            if if_absent:
                return
            if kind is TimerKind.SESSION:
                self._purgatory.put_off(present, delay_ms)
                return
            self._purgatory.cancel(present)

        def happen() -> None:
            shard.timers.pop(name, None)
            callback()

        shard.timers[name] = self._purgatory.schedule(delay_ms, happen)

    def cancel(self, shard: Shard, kind: TimerKind, group_id: str, member_id: str) -> None:
        """Cancel a timer."""
        self._purgatory.cancel(shard.timers.pop((kind.value, group_id, member_id), None))

    def cancel_all(self, shard: Shard, group_id: str, member_id: str) -> None:
        """Cancel all timers of a member."""
        for kind in TimerKind:
            self.cancel(shard, kind, group_id, member_id)

    def close(self, shard: Shard) -> None:
        """Cancel all timers of a partition that another broker leads now."""
        for operation in shard.timers.values():
            self._purgatory.cancel(operation)
        shard.timers.clear()
