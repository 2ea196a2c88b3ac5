"""``simulate --lag``: what an autoscaler with some limits would have done to a group, from a file of its past lags.

The formula of ``serve-metrics`` reads the lags of the file in the order of time, and a real group (production members and
brokers, in virtual time) is scaled to each figure. The group's own rebalances hold the formula, as they would in reality. Two
things are simplified:

* The lag is that of the file. It does not shrink because the simulated group is larger, nor grow because it is smaller: the
  file does not tell how fast a member is.
* Time in which the group is stable and nothing happens is skipped: it has neither rebalances nor unowned partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from consumer_coord.errors import ConfigurationError
from consumer_coord.scaling.flags import add_limits, limits_of
from consumer_coord.scaling.lag_csv import PastLags, parse_lags
from consumer_coord.scaling.wanted_replicas import Limits, Wanted, advance, hold, needed
from consumer_coord.simulation.deployment import ChurnedGroup, Deployment, Phase, deployment_of, play_deployment

#: How long a group must be stable before time is skipped, in virtual seconds: longer than any delay after a rebalance.
_QUIET_S = 10.0
_STEP_S = 0.25

#: The flags of one group under churn that also describe the group of ``--lag``.
OF_THE_GROUP = frozenset(
    {"assignor", "static", "racks", "session_timeout_ms", "heartbeat_interval_ms", "poll_every_ms", "callback_ms", "json"}
)


@attrs.frozen
class Scaling:
    """What the limits would have done.

    ``replicas`` has (seconds since 1970, replicas) for the beginning and each change. ``held`` counts the readings that could
    not change the figure, by the reason. ``phase`` has the figures of the group between the first and the last reading.
    """

    lags: PastLags
    limits: Limits
    replicas: tuple[tuple[float, int], ...]
    held: Mapping[str, int]
    phase: Phase

    @property
    def ups(self) -> int:
        """How often replicas were added."""
        return sum(after > before for before, after in self._steps())

    @property
    def downs(self) -> int:
        """How often replicas were removed."""
        return sum(after < before for before, after in self._steps())

    @property
    def average(self) -> float:
        """The average number of replicas over the time of the file."""
        last = self.lags.times[-1]
        ends = [at for at, _ in self.replicas[1:]] + [last]
        total = sum((end - at) * count for (at, count), end in zip(self.replicas, ends, strict=True))
        first = self.replicas[0][0]
        return total / (last - first) if last > first else self.replicas[-1][1]

    def _steps(self) -> Iterator[tuple[int, int]]:
        counts = [count for _, count in self.replicas]
        return itertools.pairwise(counts)

    def figures(self) -> dict[str, object]:
        """Return the contents of the JSON file."""
        return {
            "group": self.lags.group,
            "topics": self.lags.topics,
            "readings": len(self.lags.readings),
            "limits": attrs.asdict(self.limits),
            "replicas": [{"at": at, "replicas": count} for at, count in self.replicas],
            "ups": self.ups,
            "downs": self.downs,
            "average_replicas": round(self.average, 2),
            "held": dict(self.held),
            "rebalances": self.phase.rebalances,
            "moved": self.phase.moved,
            "unowned_partition_s": round(self.phase.unowned_partition_s, 3),
            "longest_unowned_s": round(self.phase.longest_unowned_s, 3),
        }


def replay_lags(lags: PastLags, limits: Limits, deployment: Deployment) -> Scaling:
    """Replay a file of lags.

    Raise :class:`~consumer_coord.simulation.loop.SimulationError` if the group never becomes stable.
    """
    replayed = _Replay(lags, limits)
    members = replayed.first * limits.members_per_replica
    described = attrs.evolve(
        deployment, members=members, topics=lags.topics, members_per_process=limits.members_per_replica, churn="none"
    )
    result = play_deployment(described, replayed.play)
    return Scaling(lags, limits, tuple(replayed.replicas), replayed.held, result.phases[-1])


class _Replay:
    """The course of a group that is scaled by past lags."""

    def __init__(self, lags: PastLags, limits: Limits) -> None:
        self._lags = lags
        self._limits = limits
        known = next((reading for reading in lags.readings if reading is not None), None)
        assert known is not None, "parse_lags refuses a file without a reading"
        running = -(-known.members // limits.members_per_replica) or needed(known, limits)
        #: The number of replicas at the beginning.
        self.first = max(limits.least, min(limits.most, running))
        self.replicas = [(lags.times[0], self.first)]
        self.held: dict[str, int] = {}
        self._quiet_s = 0.0

    async def play(self, group: ChurnedGroup) -> None:
        """Form the group, and follow the readings."""
        await group.start()
        await group.phase("lag", self._follow(group))

    async def _follow(self, group: ChurnedGroup) -> None:
        wanted, before = Wanted(self.first), self._lags.times[0]
        for at, reading in zip(self._lags.times, self._lags.readings, strict=True):
            await self._pass(group, at - before)
            before = at
            if reading is None:
                wanted = hold(wanted, "no answer")
            else:
                members = self.replicas[-1][1] * self._limits.members_per_replica
                settled = reading.settled and group.stable
                wanted = advance(wanted, attrs.evolve(reading, members=members, settled=settled), self._limits)
            if wanted.held is not None:
                reason = "unknown lag" if "unknown" in wanted.held else wanted.held
                self.held[reason] = self.held.get(reason, 0) + 1
            assert wanted.replicas is not None
            if wanted.replicas != self.replicas[-1][1]:
                self.replicas.append((at, wanted.replicas))
                group.scale_to(wanted.replicas)
                self._quiet_s = 0.0

    async def _pass(self, group: ChurnedGroup, gap_s: float) -> None:
        """Let time pass; skip the rest of the gap when the group is quiet."""
        while gap_s > 0 and self._quiet_s < _QUIET_S:
            step_s = min(_STEP_S, gap_s)
            await asyncio.sleep(step_s)
            gap_s -= step_s
            self._quiet_s = self._quiet_s + step_s if group.stable else 0.0


# -- the command ----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> frozenset[str]:
    """Add the flags; return the names of those that need ``--lag``. An omitted flag creates no attribute."""
    group = parser.add_argument_group("scaling by past lags", argument_default=argparse.SUPPRESS)
    group.add_argument(
        "--lag", type=Path, metavar="FILE.csv", help="file of lag --export; simulates a group that is scaled by its past lag"
    )
    return frozenset(action.dest for action in add_limits(group))


def run_replay(flags: Mapping[str, Any]) -> Scaling:
    """Read the file and replay it; raise :class:`ConfigurationError` for invalid flags, or a file that cannot be read."""
    limits = limits_of(flags)
    if limits.least < 1:
        raise ConfigurationError(
            "--replicas must begin with 1 or more: a replay cannot scale to zero, because nobody would read the group's lag"
        )
    path: Path = flags["lag"]
    try:
        # Spreadsheets begin a file with a byte order mark.
        lags = parse_lags(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--lag {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"--lag {path}: {error}") from None
    given = {name: flags[name] for name in (*OF_THE_GROUP, "seed") if name in flags}
    return replay_lags(lags, limits, deployment_of({**given, "members": 1, "topics": "topic:1"}))


def describe(scaling: Scaling) -> str:
    """Return a few lines for the terminal."""
    limits, lags, phase = scaling.limits, scaling.lags, scaling.phase
    counts = [count for _, count in scaling.replicas]
    held = ", ".join(f"{count} {reason}" for reason, count in sorted(scaling.held.items())) or "none"
    return "\n".join(
        (
            f"{lags.group}: {len(lags.readings)} readings in {(lags.times[-1] - lags.times[0]) / 3600:.1f} hours,"
            f" {sum(lags.topics.values())} partitions; {limits.least}..{limits.most} replicas, {limits.lag_per_replica} records"
            f" a replica, up after {limits.up_after_s:g} s, down after {limits.down_after_s:g} s",
            f"  scaled up {scaling.ups} times and down {scaling.downs} times; {min(counts)} to {max(counts)} replicas,"
            f" {scaling.average:.1f} on average; readings held: {held}",
            f"  {phase.rebalances} rebalances, {phase.moved} partitions moved, unowned {phase.unowned_partition_s:.1f}"
            f" partition-seconds (longest {phase.longest_unowned_s:.1f} s)",
            "  The lag is that of the file: it does not shrink with more replicas, nor grow with fewer.",
        )
    )
