"""The lease: the time, on this member's clock, until which the coordinator cannot have removed this member.

The coordinator assigns a member's partitions to another member only after the first member was removed from the group. If a
member does not leave, the coordinator removes it for one of three reasons:

* the *session* expired: ``session.timeout.ms`` after the arrival of the last request that renewed the session. A Heartbeat that
  is answered with code 0 or REBALANCE_IN_PROGRESS renews the session, and so does the end of a join phase. SyncGroup and
  OffsetCommit renew the session only in some states of the group, so the lease does not count these requests;
* the member missed a *rebalance*: it did not join within the rebalance timeout after the join phase began. A heartbeat response
  without an error proves that no join phase had begun;
* the member joined and did not *sync* within the rebalance timeout after the end of the join phase. Heartbeats do not prevent
  this removal.

Each timeout starts after the *sending* of the request whose response proves that it started, so the lease counts from the
sending.

Who delivers compares it: ``Engine._may_deliver`` (``consumer/engine.py``), ``ThreadWaits._nothing_else``, and ``AtHand`` in
``columns/`` for each message of a poll.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

#: Fraction by which each timeout is shortened, because no two clocks run at exactly the same speed.
_DRIFT = 0.001


class Lease:
    """The lease of one member; all methods run on the member's loop.

    ``clock`` also counts the time while the machine is suspended, where possible; any thread may call the clock. If not
    ``enabled``, the lease never ends. ``on_suspended`` is called when the lease expires while ``in_use()``; ``on_resumed`` is
    called when a response renews an expired lease, with the duration of the suspension in seconds, or None if the lease was not
    in use. ``on_shortened`` is called when the lease will end earlier than :attr:`until` said before.
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
        on_shortened: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock = clock
        #: While ``clock()`` is below this time, in seconds, records of owned partitions may be delivered; any thread may read
        #: the time.
        self.until: float = math.inf
        self.enabled = enabled
        self._session_s = session_timeout_ms / 1000 * (1 - _DRIFT)
        self._rebalance_s = rebalance_timeout_ms / 1000 * (1 - _DRIFT)
        self._in_use = in_use
        self._on_suspended = on_suspended
        self._on_resumed = on_resumed
        self._on_shortened = on_shortened
        self._loop = asyncio.get_running_loop()
        #: When the latest request was sent whose response proves that the session was alive.
        self._session_from = -math.inf
        #: When the latest request was sent whose response proves that no rebalance had begun.
        self._stable_from = -math.inf
        #: Sending time of the first JoinGroup in the current generation, because the join phase may be over when a later
        #: JoinGroup arrives.
        self._join_from = math.inf
        #: True if this member received a SyncGroup response in the current generation.
        self._synced = False
        self._timer: asyncio.TimerHandle | None = None
        self._suspended_at: float | None = None
        self._suspended_s = 0.0

    @property
    def suspended_s(self) -> float:
        """Duration of all suspensions, including the current suspension, in seconds."""
        now = 0.0 if self._suspended_at is None else self.clock() - self._suspended_at
        return self._suspended_s + now

    def session_is(self, timeout_ms: float) -> None:
        """Set the session timeout, and recompute the end of the lease."""
        self._session_s = timeout_ms / 1000 * (1 - _DRIFT)
        if self._synced:
            self._renew()

    def heartbeat_answered(self, sent: float, *, rebalancing: bool) -> None:
        """Renew the lease after a Heartbeat sent at ``sent`` was answered with code 0, or with 27 (``rebalancing``)."""
        self._session_from = max(self._session_from, sent)
        if self._synced and not rebalancing:
            self._stable_from = max(self._stable_from, sent)
        self._renew()

    def joins(self) -> None:
        """Record that JoinGroup is being sent."""
        self._join_from = min(self._join_from, self.clock())

    def joined(self, *, new: bool) -> None:
        """Renew the lease after a successful JoinGroup; ``new`` means that a join phase ended and began another generation."""
        if new:
            self._session_from = max(self._session_from, self._join_from)
            # The join phase ended after all heartbeats of the previous generation were answered. So the time to sync began
            # after these heartbeats were sent.
            self._stable_from = max(self._stable_from, self._session_from)
            self._synced = False
        self._join_from = math.inf
        self._renew()

    def synced(self, sent: float) -> None:
        """Renew the lease after a successful SyncGroup, sent at ``sent``."""
        if not self._synced:
            self._stable_from = max(self._stable_from, sent)
        # A further SyncGroup in the same generation proves nothing: a group of the consumer protocol answers it, although the
        # member must still revoke partitions within the rebalance timeout.
        self._synced = True
        self._renew()

    @property
    def proven_s(self) -> float:
        """Seconds since the sending of the last request whose response proves that the session was alive."""
        return self.clock() - self._session_from

    @property
    def passed(self) -> bool:
        """True if the coordinator may have removed this member, regardless of whether leases are enabled."""
        return self.clock() >= self._proven_until

    @property
    def _proven_until(self) -> float:
        return min(self._session_from + self._session_s, self._stable_from + self._rebalance_s)

    def lost(self) -> None:
        """End the lease together with the generation, so that no record of the owned partitions is delivered any longer."""
        self._ends(-math.inf)

    def not_needed(self) -> None:
        """Disable the lease, because a member without a subscription owns no partitions of the group."""
        self._ends(math.inf)

    def close(self) -> None:
        """Stop the timer."""
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
            shorter, self.until = until < self.until, until
            if shorter:
                self._on_shortened()

    def _look_at(self, after_s: float) -> None:
        self._timer = self._loop.call_later(after_s, self._look)

    def _look(self) -> None:
        """Check the lease when the timer fires. If the lease was renewed in the meantime, set the timer again."""
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
