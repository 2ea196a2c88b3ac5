"""A kit for testing your own assignors, with pytest or without; requires hypothesis.

The shortest test is::

    def test_my_assignor():
        check_assignor(MyAssignor())

:func:`check_assignor` runs the assignor on groups and histories of every kind (no subscriptions, unknown topics, static
members, racks, members and topics that come and go). The check fails with a small example if a plan is invalid, differs between
two calls, or depends on the order of members, or if the assignor changes its input. The result is a :class:`Report` on balance,
stickiness and speed. Use the strategies for further tests: :func:`clusters`, :func:`groups` and :func:`histories`.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol
from assignors.sticky import StickyAssignor
from assignors.verification import violations
from consumer_coord import lazy_attrs as attrs

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st
except ImportError as _error:
    raise ImportError(f"{_error.name} is not installed: pip install 'consumer-coord[testing]'", name=_error.name) from _error

#: A cooperative assignor must make a group stable within this number of rounds.
MOST_ROUNDS = 10


@attrs.frozen
class Group:
    """The input of an assignor."""

    cluster: Cluster
    members: Mapping[str, Member]


@attrs.frozen
class Size:
    """The times of an assignor for a large group: at first, and after one member left and another member joined."""

    members: int
    partitions: int
    first_ms: float
    second_ms: float


@attrs.frozen
class Report:
    """The result of :func:`check_assignor`.

    ``unevenness``: the largest difference between the numbers of partitions of two members with equal subscriptions; ``moves``:
    partitions taken from remaining members, over all histories; ``least_moves``: the same number for the sticky assignor;
    ``sizes``: the times for large groups.
    """

    plans: int
    unevenness: int
    moves: int
    least_moves: int
    sizes: Sequence[Size]

    def __str__(self) -> str:
        lines = [
            f"{self.plans} plans, all valid",
            f"balance: partition counts of members with equal subscriptions differ by at most {self.unevenness}",
            f"stickiness: {self.moves} partitions moved, the sticky assignor moves {self.least_moves}",
        ]
        for size in self.sizes:
            lines.append(
                f"{size.members} members, {size.partitions} partitions: {size.first_ms:.1f} ms, "
                f"{size.second_ms:.1f} ms after a change"
            )
        return "\n".join(lines)


def clusters(
    *, max_topics: int = 5, max_partitions: int = 12, racks: bool = True, figures: bool = True
) -> st.SearchStrategy[Cluster]:
    """Generate clusters with a few topics, with or without replica racks, lag and weights."""
    names = st.lists(st.sampled_from(_TOPICS), max_size=max_topics, unique=True)
    counts = st.lists(st.integers(0, max_partitions), min_size=max_topics, max_size=max_topics)
    # Racks and figures of single partitions come from a seed. If hypothesis drew each value, this would take longer than the
    # assignment.
    seed = st.integers(1, 10**6)
    rack_seed = st.none() | seed if racks else st.none()
    figure_seed = st.none() | seed if figures else st.none()
    return st.builds(_cluster, names, counts, rack_seed, figure_seed)


def _cluster(names: Sequence[str], counts: Sequence[int], rack_seed: int | None, figure_seed: int | None) -> Cluster:
    partitions = dict(zip(names, counts, strict=False))
    racks: dict[str, list[frozenset[str]]] = {}
    lag: dict[str, list[int | None]] = {}
    weights: dict[str, list[float | None]] = {}
    for topic, count in partitions.items():
        if rack_seed is not None:
            rng = random.Random(f"{rack_seed}-{topic}")
            racks[topic] = [frozenset(rng.sample(_RACKS, rng.randint(0, 3))) for _ in range(count)]
        if figure_seed is not None:
            rng = random.Random(f"{figure_seed}-{topic}")
            lag[topic] = [rng.choice((None, 0, rng.randint(0, 10**6))) for _ in range(count)]
            weights[topic] = [rng.choice((None, 0.0, rng.uniform(0, 1e6))) for _ in range(count)]
    return Cluster(partitions, racks, lag, weights)


def members(*, max_members: int = 7, racks: bool = True) -> st.SearchStrategy[dict[str, Member]]:
    """Generate members without owned partitions: static members, members in racks, with unknown topics, or without topics."""
    subscriptions = st.lists(st.sampled_from((*_TOPICS, "unknown")), max_size=len(_TOPICS), unique=True)
    ids = st.sampled_from([f"member-{letter}" for letter in "abcdefghijklmnop"])
    own = st.tuples(st.none() | subscriptions, st.booleans(), st.none() | st.sampled_from(_RACKS) if racks else st.none())
    return st.builds(_members, subscriptions, st.dictionaries(ids, own, max_size=max_members))


def _members(usual: Sequence[str], own: Mapping[str, tuple[Sequence[str] | None, bool, str | None]]) -> dict[str, Member]:
    return {
        member_id: Member(
            tuple(usual if topics is None else topics),
            instance_id=f"instance-{member_id}" if static else None,
            rack=rack,
        )
        for member_id, (topics, static, rack) in own.items()
    }


def groups(*, racks: bool = True) -> st.SearchStrategy[Group]:
    """Generate groups, each with its cluster, whose members own no partitions."""
    return st.builds(Group, clusters(racks=racks), members(racks=racks))


def histories(*, max_length: int = 4, racks: bool = True) -> st.SearchStrategy[list[Group]]:
    """Generate the states of one group at several rebalances, between which members come and go, and topics change.

    Partitions have no owners in these groups, because ownership depends on the assignor (see :func:`rebalance`).
    """
    change = st.tuples(st.sampled_from(("topics", "one comes", "one goes")), groups(racks=racks))
    return st.builds(_history, groups(racks=racks), st.lists(change, max_size=max_length - 1))


def _history(first: Group, changes: Sequence[tuple[str, Group]]) -> list[Group]:
    history = [first]
    for kind, other in changes:
        last = history[-1]
        if kind == "topics":
            history.append(Group(other.cluster, last.members))
        elif kind == "one comes":
            history.append(Group(last.cluster, {**last.members, **dict(list(other.members.items())[:1])}))
        else:
            history.append(Group(last.cluster, dict(list(last.members.items())[1:])))
    return history


@attrs.frozen
class Rebalanced:
    """A stable group after a rebalance.

    ``members``: the members with their assignments as owned partitions; ``plans``: the plans of all rounds; ``moves``: the
    number of partitions that remaining members had to revoke.
    """

    members: Mapping[str, Member]
    plans: Sequence[Plan]
    moves: int


def rebalance(assignor: Assignor, group: Group, generation: int) -> Rebalanced:
    """Perform a rebalance in the assignor's best protocol; repeat rounds until no member has to revoke partitions.

    Raise AssertionError if a plan is invalid, or if the group does not become stable.
    """
    protocol = max(assignor.protocols)
    current = dict(group.members)
    plans: list[Plan] = []
    moves = 0
    while len(plans) < MOST_ROUNDS:
        plan = _checked(assignor, Group(group.cluster, current), protocol)
        plans.append(plan)
        revoked = sum(
            len(set(partitions) - set(plan[member_id].get(topic, ())))
            for member_id, member in current.items()
            for topic, partitions in member.owned.items()
        )
        moves += revoked
        current = {
            member_id: attrs.evolve(
                member, owned={topic: tuple(own) for topic, own in plan[member_id].items()}, generation=generation + len(plans)
            )
            for member_id, member in current.items()
        }
        if not revoked or protocol is RebalanceProtocol.EAGER:
            return Rebalanced(current, plans, moves)
    raise AssertionError(f"{assignor.name}: members must still revoke partitions after {MOST_ROUNDS} rounds: {group}")


def _check_usable(assignor: Assignor) -> None:
    """Raise AssertionError if no consumer accepts this assignor."""
    if isinstance(assignor, type):
        raise AssertionError(f"{assignor.__name__} is a class: give an object, {assignor.__name__}()")
    if not isinstance(getattr(assignor, "name", None), str) or not assignor.name:
        raise AssertionError(f"{type(assignor).__name__} has no name: set the class attribute `name`")
    try:
        assignor.check_needs()
    except ValueError as error:
        raise AssertionError(f"assignor {assignor.name!r}: {error}") from error


def check_assignor(
    assignor: Assignor,
    *,
    examples: int = 200,
    sizes: Sequence[tuple[int, int]] = ((100, 1_000), (500, 10_000)),
) -> Report:
    """Test an assignor; raise AssertionError with the smallest example found, or return a report.

    ``examples``: the number of histories; ``sizes``: (members, partitions) of the groups to time.
    """
    _check_usable(assignor)
    seen = {"plans": 0, "unevenness": 0, "moves": 0, "least": 0}
    failures: list[AssertionError] = []

    def follow(history: Sequence[Group]) -> None:
        before: Mapping[str, Member] = {}
        for step, group in enumerate(history):
            asked = _inherit(group, before)
            try:
                done = rebalance(assignor, asked, 10 * step)
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"{_raises(assignor, error)}: {asked}") from error
            seen["plans"] += len(done.plans)
            seen["moves"] += done.moves
            seen["least"] += rebalance(StickyAssignor(), asked, 10 * step).moves
            seen["unevenness"] = max(seen["unevenness"], _unevenness(group.members, done.plans[-1]))
            before = done.members

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(histories())
    def run(history: list[Group]) -> None:
        # Hypothesis would try to reproduce a failure. But if the assignor is not deterministic, the failure may not occur
        # again.
        try:
            follow(history)
        except AssertionError as error:
            failures.append(error)

    run()
    if failures:
        # Each message ends with its group, so the shortest message has the smallest group.
        raise min(failures, key=lambda failure: len(str(failure)))
    measured = [_time_at_size(assignor, *size) for size in sizes]
    return Report(seen["plans"], seen["unevenness"], seen["moves"], seen["least"], measured)


_TOPICS = ("audit", "clicks", "orders", "payments", "views")
_RACKS = ("rack-a", "rack-b", "rack-c")


def _raises(assignor: Assignor, error: Exception) -> str:
    return f"{assignor.name} raises {type(error).__name__}: {error}"


def _inherit(group: Group, before: Mapping[str, Member]) -> Group:
    """Return the group for the next round: each member owns the partitions that the last round assigned."""
    return Group(
        group.cluster,
        {
            member_id: attrs.evolve(member, owned=before[member_id].owned, generation=before[member_id].generation)
            if member_id in before
            else member
            for member_id, member in group.members.items()
        },
    )


def _checked(assignor: Assignor, group: Group, protocol: RebalanceProtocol) -> Plan:
    """Return the plan after checking all its properties."""
    given_cluster, given_members = copy.deepcopy((group.cluster, dict(group.members)))
    plan = assignor.assign(group.cluster, group.members)
    for problem in violations(group.cluster, group.members, plan, protocol):
        raise AssertionError(f"{assignor.name}: {problem}: {group}")
    if (group.cluster, dict(group.members)) != (given_cluster, given_members):
        raise AssertionError(f"{assignor.name} changes its input: {given_cluster}, {given_members}")
    content = _content(plan)
    if _content(assignor.assign(group.cluster, group.members)) != content:
        raise AssertionError(f"{assignor.name} returns another plan for the same input: {group}")
    backwards = dict(reversed(list(group.members.items())))
    if _content(assignor.assign(group.cluster, backwards)) != content:
        raise AssertionError(f"{assignor.name}'s plan depends on the order in which members are listed: {group}")
    return plan


def _content(plan: Plan) -> dict[str, Any]:
    """Return the content of a plan, independent of its types."""
    return {
        member_id: {topic: sorted(partitions) for topic, partitions in topics.items() if len(partitions)}
        for member_id, topics in plan.items()
    }


def _unevenness(group: Mapping[str, Member], plan: Plan) -> int:
    loads: dict[frozenset[str], list[int]] = {}
    for member_id, member in group.items():
        loads.setdefault(frozenset(member.topics), []).append(sum(map(len, plan[member_id].values())))
    return max((max(alike) - min(alike) for alike in loads.values()), default=0)


def _time_at_size(assignor: Assignor, member_count: int, partition_count: int) -> Size:
    topics = [f"topic-{number:02d}" for number in range(10)]
    cluster = Cluster(dict.fromkeys(topics, partition_count // len(topics)))
    group = {f"member-{number:05d}": Member(topics) for number in range(member_count)}
    start = time.perf_counter()
    try:
        plan = assignor.assign(cluster, group)
    except Exception as error:
        raise AssertionError(f"{_raises(assignor, error)}: {member_count} members, {partition_count} partitions") from error
    first = time.perf_counter() - start
    later = {member_id: attrs.evolve(member, owned=plan[member_id], generation=1) for member_id, member in group.items()}
    del later["member-00000"]
    later["member-new"] = Member(topics)
    start = time.perf_counter()
    assignor.assign(cluster, later)
    return Size(member_count, partition_count, first * 1000, (time.perf_counter() - start) * 1000)
