"""Invariants of a group of the consumer protocol, for any actions of its members in any order."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer_coord.broker.consumer_group.group import TRANSITIONS, ConsumerGroup, ConsumerGroupState
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember, MemberState, Partitions, assigned_in
from consumer_coord.broker.consumer_group.reconciliation import Target, reconcile
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import embedded_protocol as membership
from tests.support.broker.bench import GROUP, Bench, pause
from tests.support.broker.consumer_bench import MODERN, Client

# -- one member's reconciliation

TOPICS = tuple(uuid.UUID(int=number) for number in (1, 2))
_NUMBERS = st.frozensets(st.integers(0, 4), max_size=4)
PARTITIONS: st.SearchStrategy[Partitions] = st.dictionaries(st.sampled_from(TOPICS), _NUMBERS.filter(bool), max_size=2)


@st.composite
def members(draw: st.DrawFn) -> ConsumerGroupMember:
    """A member in any state that a member can be in."""
    state = draw(st.sampled_from((MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS)))
    epoch = draw(st.integers(1, 5))
    assigned = draw(PARTITIONS)
    pending = draw(PARTITIONS) if state is MemberState.UNREVOKED_PARTITIONS else {}
    pending = {topic: numbers - assigned.get(topic, frozenset()) for topic, numbers in pending.items()}
    return ConsumerGroupMember(
        "a",
        member_epoch=epoch,
        previous_member_epoch=epoch - 1,
        state=state,
        assigned=assigned_in(assigned, epoch),
        pending_revocation=assigned_in({topic: numbers for topic, numbers in pending.items() if numbers}, epoch),
    )


def flat(partitions: Mapping[uuid.UUID, Any]) -> set[tuple[uuid.UUID, int]]:
    """All of them as pairs."""
    return {(topic, number) for topic, numbers in partitions.items() for number in numbers}


@pytest.mark.thorough
@given(members(), PARTITIONS, st.integers(5, 8), PARTITIONS, PARTITIONS, st.booleans(), st.sets(st.sampled_from(TOPICS)))
@settings(max_examples=300)
def test_a_reconciled_member_never_has_what_is_not_its_own(
    member: ConsumerGroupMember,
    target: Partitions,
    epoch: int,
    others: Partitions,
    owned: Partitions,
    changed: bool,
    subscribed: set[uuid.UUID],
) -> None:
    taken = flat(others) - flat(member.assigned) - flat(member.pending_revocation)

    def partition_epoch(topic: uuid.UUID, number: int) -> int:
        mine = (topic, number) in flat(member.assigned) | flat(member.pending_revocation)
        return member.member_epoch if mine else 4 if (topic, number) in taken else -1

    names = {topic: sorted(numbers) for topic, numbers in owned.items()}
    after = reconcile(member, Target(epoch, target), subscribed, partition_epoch, names, changed)
    has = flat(after.assigned)
    assert not has & taken, "a partition of another member"
    assert not has & flat(after.pending_revocation)
    assert has <= flat(target) | flat(member.assigned)
    assert after.member_epoch in (member.member_epoch, epoch), "its own epoch or the target's"
    still = (flat(member.assigned) | flat(member.pending_revocation)) - has
    if after.state is MemberState.UNREVOKED_PARTITIONS:
        assert after.member_epoch == member.member_epoch
        assert flat(after.pending_revocation), "there are partitions to revoke"
    elif after is not member:
        assert not still & flat(owned) or member.state is MemberState.UNREVOKED_PARTITIONS or not after.pending_revocation
    if after.is_reconciled_to(epoch) and member.state is not MemberState.STABLE:
        assert has == {(topic, number) for topic, number in flat(target) if topic in subscribed}
    # If the member owns no partition that it must revoke, and everything is free, one more step is enough.
    free = reconcile(after, Target(epoch, target), subscribed, lambda *_: -1, {}, False)
    if not free.is_reconciled_to(epoch):
        free = reconcile(free, Target(epoch, target), subscribed, lambda *_: -1, {}, False)
    assert free.is_reconciled_to(epoch)


# -- whole groups

#: (which of five members acts, the action, a detail): what may happen in a history.
_ACTIONS = st.sampled_from(
    (
        *("beat",) * 4,
        *("hold", "revoke", "join", "leave", "leave for a while", "subscribe", "classic", "grow", "time", "restart"),
    )
)
HISTORIES = st.lists(st.tuples(st.integers(0, 4), _ACTIONS, st.integers(0, 3)), min_size=5, max_size=60)
_SUBSCRIPTIONS = (("orders",), ("orders", "payments"), ("payments",), ())
_METADATA = {"range": membership.encode_subscription(membership.Subscription(("orders",)))}


@attrs.define
class Watcher:
    """Looks at the group after every action."""

    bench: Bench
    epoch: int = 0
    assignment_epoch: int = -1
    member_epochs: dict[str, int] = attrs.field(factory=dict)
    state: ConsumerGroupState | None = None
    group: ConsumerGroup | None = None

    def look(self) -> None:
        """The invariants."""
        group = self.bench.coordinator.consumer_group(GROUP)
        if group is None:
            self.group = None
            return
        if self.group is not group:  # a new one, or the same one as another coordinator reads it
            self.group, self.state, self.member_epochs = group, None, {}
            self.epoch, self.assignment_epoch = 0, -1
        assert group.epoch >= self.epoch, "the group epoch only grows"
        assert group.assignment_epoch >= self.assignment_epoch, "so does the target's"
        assert group.assignment_epoch <= group.epoch
        self.epoch, self.assignment_epoch = group.epoch, group.assignment_epoch
        owners = Counter(
            one for member in group.members.values() for one in flat(member.assigned) | flat(member.pending_revocation)
        )
        assert all(count == 1 for count in owners.values()), "no partition has two members"
        targets = Counter(one for target in group.target.values() for one in flat(target))
        assert all(count == 1 for count in targets.values()), "nor is it to have two"
        assert set(group.target) <= set(group.members)
        assert set(group.static_members.values()) <= set(group.members)
        for member_id, member in group.members.items():
            assert member.member_epoch <= group.assignment_epoch
            if member.member_epoch > 0:
                assert member.member_epoch >= self.member_epochs.get(member_id, 0), "a member's epoch only grows"
            self.member_epochs[member_id] = max(member.member_epoch, 0)
        assert self.state in (None, group.state) or (self.state, group.state) in TRANSITIONS, (self.state, group.state)
        self.state = group.state


async def history(actions: list[tuple[int, str, int]]) -> None:
    """Let it happen; then the members heartbeat undisturbed, and each reaches its target."""
    bench = Bench(MODERN)
    bench.elect()
    bench.add_topic("orders", 3)
    bench.add_topic("payments", 2)
    clients = [Client(bench, f"m{number}", instance_id="i" if number in (3, 4) else None) for number in range(5)]
    watcher = Watcher(bench)
    try:
        for who, action, detail in actions:
            await _act(bench, clients[who], action, detail)
            await pause()
            watcher.look()
        await _converge(bench, clients)
        watcher.look()
    finally:
        bench.close()
        await pause()


async def _act(bench: Bench, client: Client, action: str, detail: int) -> None:
    match action:
        case "beat":
            if (await client.beat()).error_code:
                await client.join()
        case "hold" | "revoke":
            client.holds_on = action == "hold"
        case "join":
            await client.join()
        case "leave" | "leave for a while":
            await client.leave(-1 if action == "leave" else -2)
            client.epoch, client.owned = 0, {}
        case "subscribe":
            client.topics = _SUBSCRIPTIONS[detail]
            if client.epoch:
                await client.beat(full=True)
        case "classic" if bench.coordinator.consumer_group(GROUP) is not None:
            await bench.join(f"classic-{client.member_id}", protocols=_METADATA)
        case _:
            await _happen(bench, action, detail)


async def _happen(bench: Bench, action: str, detail: int) -> None:
    """Perform an action that is not an action of a member."""
    match action:
        case "grow":
            bench.grow_topic("orders", len(bench.topics.by_name["orders"].partitions) + 1)
        case "time":
            await pause((1_000, 3_000, 6_000, 11_000)[detail])
        case "restart":
            bench.restart()


async def _converge(bench: Bench, clients: list[Client]) -> None:
    group = bench.coordinator.consumer_group(GROUP)
    if group is None:
        return
    for client in clients:
        client.holds_on = False
    for _ in range(12):
        for client in clients:
            if client.member_id in group.members and client.epoch and (await client.beat()).error_code:
                await client.join()
        await pause(2_000)
    group = bench.coordinator.consumer_group(GROUP)
    if group is None:
        return
    assert group.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY), group
    for client in clients:
        member = group.members.get(client.member_id)
        if member is not None:
            assert flat(client.owned) == flat(group.target_of(member.member_id)), "it has what it is to have"
    subscribed = group.subscribed_topics()
    wanted = {
        (topic.topic_id, number)
        for topic in bench.topics.by_name.values()
        if topic.name in subscribed
        for number in range(len(topic.partitions))
    }
    assert {one for target in group.target.values() for one in flat(target)} == wanted, "nothing is left without a member"


@given(HISTORIES)
@settings(max_examples=60, deadline=None)
def test_any_history_keeps_the_invariants_and_ends_in_peace(actions: list[tuple[int, str, int]]) -> None:
    virtual.run(history(actions), seed=1)


def test_the_table_of_transitions_has_every_state() -> None:
    assert {state for pair in TRANSITIONS for state in pair} == set(ConsumerGroupState)
    assert all(source is not target for source, target in TRANSITIONS)
