"""Changes of a stable group that happen alone: no later fault may mend what a change breaks.

During the faults of a run, one rebalance follows the other, so that a member which misses the signal for one of them is
called by the next. Here the group must become stable again after each change, within a time that is computed from the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import attrs

from consumer_coord.simulation.faults import KINDS
from consumer_coord.simulation.member_spec import BOUNDED_S, METADATA_MAX_AGE_MS, MemberSpec, settings_of
from consumer_coord.simulation.scenario import Fault, Fetching, Scenario


@attrs.frozen(kw_only=True)
class Alone:
    """How long a change of one kind may delay the group, beside the rebalance itself."""

    #: The change lasts for one of these times, in milliseconds.
    lasts_ms: tuple[int, ...] = (0,)
    #: Whether the group waits for the end of a session.
    ends_session: bool = False
    #: Whether members notice the change in their metadata.
    in_metadata: bool = False
    #: Whether requests get no answer, so that their time limits must pass.
    unanswered: bool = False


#: Kind of fault -> how it delays a group that is otherwise undisturbed.
ALONE: Final = {
    "start": Alone(),
    "stop": Alone(),
    "enforce": Alone(),
    "subscribe": Alone(),
    "reset": Alone(),
    "kill": Alone(ends_session=True),
    "restart": Alone(lasts_ms=(500, 4_000), ends_session=True),
    "grow": Alone(in_metadata=True),
    "create": Alone(in_metadata=True),
    "move": Alone(),
    "hang": Alone(lasts_ms=(1_000, 3_000)),
    "broker-stop": Alone(lasts_ms=(1_000, 4_000), unanswered=True),
    "broker-pause": Alone(lasts_ms=(1_000, 4_000), unanswered=True),
    "deaf": Alone(lasts_ms=(1_000, 3_000), unanswered=True),
    "mute": Alone(lasts_ms=(1_000, 3_000), unanswered=True),
}
assert ALONE.keys() <= KINDS.keys()

#: The number of rounds in which partitions move, of polls until all records are read, and of commits.
_ROUNDS = 2
#: What all requests, look-ups and back-offs take together, in seconds.
_SLACK_S = 5.0


def with_changes_alone(scenario: Scenario) -> Scenario:
    """Return the same simulation run; in two thirds of the seeds, one or two changes follow the last fault.

    In the others, the group becomes idle.
    """
    random = Random(f"{scenario.seed}-alone")
    transactional = any(spec.transactions for spec in scenario.members)
    # A program with transactions reads its topics as long as it runs.
    kinds = sorted(kind for kind in ALONE if not (transactional and kind == "subscribe"))
    changes = []
    for _ in range(random.choice((0, 1, 2))):
        kind = random.choice(kinds)
        changes.append(Fault(0, kind, random.randrange(1_000), random.randrange(1_000), random.choice(ALONE[kind].lasts_ms)))
    return attrs.evolve(scenario, alone=tuple(changes), idle=not changes)


def overcome_within_s(change: Fault, specs: Sequence[MemberSpec], scenario: Scenario) -> float | None:
    """Return within which time the members ``specs`` must have overcome a change, and have read and committed everything.

    None if other things than the change may delay them: handlers, transactions, a change of the assignor or of the protocol.
    """
    kind, fetching = ALONE[change.kind], scenario.fetching
    if scenario.later_protocol is not None or any(spec.process or spec.transactions for spec in specs):
        return None
    if {spec.assignors for spec in specs} != {scenario.later_assignors}:
        return None
    fetches_s = (fetching or Fetching()).fetch_wait_max_ms / 1000
    bound_s = _SLACK_S + change.for_ms / 1000 + max(map(_rebalanced_within_s, specs)) + fetches_s
    if kind.ends_session or any(spec.instance_id for spec in specs):
        bound_s += max(spec.session_s for spec in specs)
    settings = settings_of(specs[0], "", (), "")
    if kind.in_metadata:
        bound_s += METADATA_MAX_AGE_MS / 1000
    if kind.unanswered or scenario.has_dead_connections:
        bound_s += 2 * settings["socket.timeout.ms"] / 1000
    return bound_s


def _rebalanced_within_s(spec: MemberSpec) -> float:
    """Return how long a member's part in all rounds of a rebalance, its reading and its commits take."""
    reads_s = (spec.poll_every_ms + spec.commit_every_ms) / 1000 + (BOUNDED_S if spec.bounded else 0.0)
    return _ROUNDS * (spec.heartbeat_interval_s + spec.rebalances_within_s + reads_s)
