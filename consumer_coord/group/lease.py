"""The lease: until when the coordinator must still count this member, by this member's own clock.

The coordinator gives a member's partitions to another one only after it dropped the member, and it drops a member that did
not leave for one of three reasons:

* its *session* ended: ``session.timeout.ms`` after the arrival of the last request that renewed it (a Heartbeat answered
  without an error or with REBALANCE_IN_PROGRESS, the end of a join phase).  SyncGroup and OffsetCommit do not renew it
  in every state of the group, so they do not count here;
* it missed a *rebalance*: the rebalance timeout after the join phase began.  A heartbeat that is answered without an error
  says that none had begun;
* it joined and did not *sync*: the rebalance timeout after the end of the join phase, whatever its heartbeats say.

Every one of those moments lies after the *sending* of the answered request that proves it, and that is what is counted
from here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

#: The part of a timeout that is given up, because no two clocks run at exactly one speed.
_DRIFT = 0.001


class Lease:
    """The lease of one member; everything on its loop.

    ``clock`` counts suspension of the machine, where it can; any thread may call it.  Unless ``enabled`` the lease never ends.
    ``on_suspended`` is called when the lease passes while ``in_use()``; ``on_resumed`` when a request was answered after it had
    passed, with the seconds of the suspension, None when it was not in use.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        enabled: bool,
        session_timeout_ms: float,
        rebalance_timeout_ms: float,
        in_use: Callable[[], bool],
        on_suspended: Callable[[], None],
        on_resumed: Callable[[float | None], None],
    ) -> None:
        self.clock = clock
        #: Records of held partitions may be handed out while ``clock()`` is below this, in seconds; any thread may read it.
        self.until = math.inf
        self.enabled = enabled
        self._session_s = session_timeout_ms / 1000 * (1 - _DRIFT)
        self._rebalance_s = rebalance_timeout_ms / 1000 * (1 - _DRIFT)
        self._in_use = in_use
        self._on_suspended = on_suspended
        self._on_resumed = on_resumed
        self._loop = asyncio.get_running_loop()
        #: Requests sent then were answered in a way that proves the session, and that no rebalance had begun.
        self._session_from = -math.inf
        self._stable_from = -math.inf
        #: When the first JoinGroup since the present generation was sent: a later one may find the join phase over.
        self._join_from = math.inf
        #: Whether the present generation was synced.
        self._synced = False
        self._timer: asyncio.TimerHandle | None = None
        self._suspended_at: float | None = None
        self._suspended_s = 0.0

    @property
    def suspended_s(self) -> float:
        """Seconds of all suspensions, the present one included."""
        now = 0.0 if self._suspended_at is None else self.clock() - self._suspended_at
        return self._suspended_s + now

    def session_is(self, timeout_ms: float) -> None:
        """The session timeout is known, or another one: what was proved before counts with it."""
        self._session_s = timeout_ms / 1000 * (1 - _DRIFT)
        if self._synced:
            self._renew()

    def heartbeat_answered(self, sent: float, *, rebalancing: bool) -> None:
        """A Heartbeat of the present generation that was sent at ``sent`` was answered with 0, or with 27 (``rebalancing``)."""
        self._session_from = max(self._session_from, sent)
        if self._synced and not rebalancing:
            self._stable_from = max(self._stable_from, sent)
        self._renew()

    def joins(self) -> None:
        """JoinGroup is being sent."""
        self._join_from = min(self._join_from, self.clock())

    def joined(self, *, anew: bool) -> None:
        """JoinGroup was answered well; ``anew`` with another generation than the one before, so that a join phase ended."""
        if anew:
            self._session_from = max(self._session_from, self._join_from)
            # The heartbeats of the generation before were answered before that phase ended.
            self._stable_from = max(self._stable_from, self._session_from)
            self._synced = False
        self._join_from = math.inf
        self._renew()

    def synced(self, sent: float) -> None:
        """SyncGroup was answered well."""
        self._stable_from = max(self._stable_from, sent)
        self._synced = True
        self._renew()

    @property
    def proven_s(self) -> float:
        """Seconds since the sending of the last request that proves the session."""
        return self.clock() - self._session_from

    @property
    def passed(self) -> bool:
        """True when the coordinator may have dropped this member, whether leases are enabled or not."""
        return self.clock() >= self._proven_until

    @property
    def _proven_until(self) -> float:
        return min(self._session_from + self._session_s, self._stable_from + self._rebalance_s)

    def lost(self) -> None:
        """The generation is gone: nothing that was held under it may be handed out."""
        self._ends(-math.inf)

    def not_needed(self) -> None:
        """There is no subscription, so nothing is held by the group's leave."""
        self._ends(math.inf)

    def close(self) -> None:
        """No timer remains."""
        self._stop_timer()

    def _ends(self, until: float) -> None:
        self._stop_timer()
        self._end_suspension()
        self._session_from = self._stable_from = -math.inf
        self._join_from = math.inf
        self._synced = False
        self._set(until)

    def _renew(self) -> None:
        if not self.enabled:
            return
        before, moment = self.until, self.clock()
        self._set(self._proven_until)
        if moment >= self.until:
            return
        if before <= moment:
            self._on_resumed(self._end_suspension())
        if self._timer is None:
            self._look_at(self.until - moment)

    def _set(self, until: float) -> None:
        if self.enabled:
            self.until = until

    def _look_at(self, after_s: float) -> None:
        self._timer = self._loop.call_later(after_s, self._look)

    def _look(self) -> None:
        """The time of the lease that was is over; most often it was renewed meanwhile."""
        self._timer = None
        left_s = self.until - self.clock()
        if left_s > 0:
            self._look_at(left_s)
        elif self._in_use() and self._suspended_at is None:
            self._suspended_at = self.clock()
            self._on_suspended()

    def _end_suspension(self) -> float | None:
        if self._suspended_at is None:
            return None
        lasted_s = self.clock() - self._suspended_at
        self._suspended_at = None
        self._suspended_s += lasted_s
        return lasted_s

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
