"""The delayed operations of members of consumer groups (``CoordinatorTimer``): sessions, and what must be done in time."""

from __future__ import annotations

import enum
from collections.abc import Callable

from consumer_coord.broker.group_store import Shard
from consumer_coord.broker.purgatory import Purgatory


class TimerKind(enum.Enum):
    """What ends."""

    #: A member sent no heartbeat.
    SESSION = "session"
    #: A member did not give its partitions up.
    REBALANCE = "rebalance"
    #: A classic member was told to join again, and did not.
    JOIN = "join"
    #: A classic member joined, and sent no SyncGroup.
    SYNC = "sync"


class Timers:
    """At most one operation of each kind for each member. They are found by names: one whose member is gone does nothing."""

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
        """Call ``callback`` after ``delay_ms``; what was scheduled under these names before is cancelled.

        With ``if_absent`` what was scheduled before stays. A session is put off, which is cheap: its callback is always
        the same one.
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
        """It is not to happen."""
        self._purgatory.cancel(shard.timers.pop((kind.value, group_id, member_id), None))

    def cancel_all(self, shard: Shard, group_id: str, member_id: str) -> None:
        """A member is gone."""
        for kind in TimerKind:
            self.cancel(shard, kind, group_id, member_id)

    def close(self, shard: Shard) -> None:
        """Another broker leads this partition now."""
        for operation in shard.timers.values():
            self._purgatory.cancel(operation)
        shard.timers.clear()
