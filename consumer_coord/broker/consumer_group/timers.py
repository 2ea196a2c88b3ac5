"""The timers of members of consumer groups (``CoordinatorTimer``): sessions and deadlines."""

from __future__ import annotations

import enum
from collections.abc import Callable

from consumer_coord.broker.purgatory import Purgatory
from consumer_coord.broker.shard import Shard


class TimerKind(enum.Enum):
    """The kinds of timers, by the event that they wait for."""

    #: The member must send a heartbeat.
    SESSION = "session"
    #: The member must revoke partitions.
    REBALANCE = "rebalance"
    #: The classic member must rejoin.
    JOIN = "join"
    #: The classic member has joined, and must send SyncGroup.
    SYNC = "sync"


class Timers:
    """Starts and cancels timers: one of each kind per member, found by (kind, group id, member id)."""

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
        """Call ``callback`` after ``delay_ms``; replace an earlier timer of the same kind and member.

        With ``if_absent``, keep an earlier timer. Otherwise, an earlier session timer is only postponed, which is cheaper than
        a new timer. This is possible because all session timers of a member have the same callback.
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
