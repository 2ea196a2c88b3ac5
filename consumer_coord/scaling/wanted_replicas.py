"""The formula for the wanted number of replicas; no I/O, no clock. ``docs/scaling.md`` explains it.

A reading of the lag needs ``ceil(lag / lag_per_replica)`` replicas, between ``least`` and ``most``, and no more than there are
partitions with lag, because a further replica would get none of them. One reading changes nothing: as with the stabilization
windows of Kubernetes' HorizontalPodAutoscaler, the number rises to the minimum that the readings of the last ``up_after_s``
needed, and falls to the maximum that those of the last ``down_after_s`` needed.

While the group rebalances, or the lag is unknown, the number stays, and afterwards both windows begin again.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Limits:
    """The bounds of the figure, in replicas, and its smoothing, in seconds.

    ``lag_per_replica`` is how many unread records one replica may have. ``members_per_replica`` is how many members of the
    group run in one replica.
    """

    lag_per_replica: int
    least: int = 1
    most: int = 100
    up_after_s: float = 60.0
    down_after_s: float = 300.0
    members_per_replica: int = 1


@attrs.frozen(kw_only=True)
class Reading:
    """What is known of a group at one moment.

    ``at`` is the time in seconds, on any clock that does not go back. ``lag`` is the sum of the known lags, in records;
    ``unknown`` counts the partitions whose lag no broker reported. ``settled`` is False while the group rebalances.
    ``shared`` is True for a share group, in which several members may read one partition.
    """

    at: float
    lag: int
    partitions_with_lag: int
    members: int
    unknown: int = 0
    settled: bool = True
    shared: bool = False


@attrs.frozen
class Turn:
    """Readings in a row that need more (``up``) or fewer replicas than the figure, since the first of them.

    ``replicas`` is what all of them agree on: the least that one of them needed if ``up``, otherwise the most.
    """

    up: bool
    since: float
    replicas: int


@attrs.frozen
class Wanted:
    """The figure. ``replicas`` is None before the first reading of a settled group.

    ``held`` is the reason why the last reading, or its absence, could not change the figure; None if it could.
    ``confirmed_at`` is the time of the last reading that could.
    """

    replicas: int | None = None
    held: str | None = "no reading so far"
    confirmed_at: float | None = None
    turn: Turn | None = None


def needed(reading: Reading, limits: Limits) -> int:
    """Return how many replicas one reading needs."""
    most = limits.most if reading.shared else min(limits.most, _ceil(reading.partitions_with_lag, limits.members_per_replica))
    return max(limits.least, min(most, _ceil(reading.lag, limits.lag_per_replica)))


def hold(wanted: Wanted, reason: str) -> Wanted:
    """Return the figure unchanged, because there is no reading that could change it."""
    return attrs.evolve(wanted, held=reason, turn=None)


def advance(wanted: Wanted, reading: Reading, limits: Limits) -> Wanted:
    """Return the figure after a reading.

    The first figure is the number of replicas that run, so a restart of the program that computes it scales nothing. A reading
    with partitions of unknown lag is a lower bound: it may raise the figure, but not lower it. A group without members has no
    rebalance to spare, so its figure rises at once.
    """
    if not reading.settled:
        return hold(wanted, "the group rebalances")
    running = _ceil(reading.members, limits.members_per_replica)
    figure = max(limits.least, min(limits.most, running)) if wanted.replicas is None else wanted.replicas
    need = needed(reading, limits)
    if reading.unknown and need <= figure:
        return Wanted(figure, f"the lag of {reading.unknown} partitions is unknown", wanted.confirmed_at)
    if need == figure:
        return Wanted(figure, None, reading.at)
    up, turn = need > figure, wanted.turn
    if turn is None or turn.up is not up:
        turn = Turn(up, reading.at, need)
    else:
        turn = attrs.evolve(turn, replicas=min(turn.replicas, need) if up else max(turn.replicas, need))
    wait_s = limits.down_after_s if not up else 0.0 if reading.members == 0 else limits.up_after_s
    if reading.at - turn.since < wait_s:
        return Wanted(figure, None, reading.at, turn)
    return Wanted(turn.replicas, None, reading.at)


def _ceil(count: int, per: int) -> int:
    return -(-count // per)
