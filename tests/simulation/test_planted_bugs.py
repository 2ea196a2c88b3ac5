"""The checkers catch bugs: each of these is planted, and found; without it the same seeds keep every rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pytest

from consumer_coord import answers, leader
from consumer_coord.answers import Step
from consumer_coord.broker.group_offsets import Commit, Committer, OffsetCoordinator
from consumer_coord.broker.group_store import GroupStore, Shard, ShardState
from consumer_coord.broker.log import PartitionLog
from consumer_coord.coordinator import ConsumerCoordinator
from consumer_coord.offsets import Offsets
from consumer_coord.rebalance import AssignmentState
from consumer_coord.simulation.scenario import Outcome, draw_scenario, play
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import SyncGroupRequestAssignment
from consumer_coord.wire.messages.offsets import OffsetCommitRequest

SEEDS = range(60)

Patch = pytest.MonkeyPatch


def _skip_the_revoke(patch: Patch) -> None:
    """A member names in JoinGroup only what it is to keep, and not what it holds until it is revoked."""

    def owned(self: AssignmentState) -> frozenset[TopicPartition]:
        return self.target.partitions

    patch.setattr(AssignmentState, "owned", owned)


def _commit_unfenced(patch: Patch) -> None:
    """The broker takes any commit, and so a zombie's."""
    fenced = OffsetCoordinator.commit

    async def commit(self: OffsetCoordinator, api_version: int, committer: Committer, commits: Sequence[Commit]) -> Any:
        _, shard = self._store.shard_of(committer.group_id)
        group = None if shard is None else shard.groups.get(committer.group_id)
        if shard is None or group is None:
            return await fenced(self, api_version, committer, commits)
        return await self._append(shard, committer, commits)

    patch.setattr(OffsetCoordinator, "commit", commit)


def _ignore_rebalance_in_progress(patch: Patch) -> None:
    """A member hears that the group rebalances, and goes on."""
    patch.setitem(answers.HEARTBEAT, error_codes.REBALANCE_IN_PROGRESS, Step.GO_ON)


def _assign_twice(patch: Patch) -> None:
    """The leader gives the first partition of the first member to the last one, too, after the plan was checked."""
    encode_plan = leader.encode_plan

    def twice(plan: Mapping[str, Mapping[str, Sequence[int]]]) -> tuple[SyncGroupRequestAssignment, ...]:
        with_something = [member for member, topics in plan.items() if any(len(numbers) for numbers in topics.values())]
        if len(with_something) > 1:
            first, last = with_something[0], with_something[-1]
            topic = next(topic for topic, numbers in plan[first].items() if len(numbers))
            stolen = {**plan[last], topic: sorted({*plan[last].get(topic, ()), plan[first][topic][0]})}
            plan = {**plan, last: stolen}
        return encode_plan(plan)

    patch.setattr(leader, "encode_plan", twice)


def _forget_to_reload(patch: Patch) -> None:
    """A broker that becomes coordinator begins with no groups and no offsets."""

    def elect(
        self: GroupStore, partition: int, log: PartitionLog, leader_epoch: int, loaded: Callable[[Shard], None]
    ) -> None:
        self._shards[partition] = Shard(partition, log, leader_epoch, ShardState.ACTIVE)

    patch.setattr(GroupStore, "elect", elect)


def _forget_what_was_let_go(patch: Patch) -> None:
    """What this simulation once found: a partition let go of while a join is under way is offered to nobody."""
    owned = ConsumerCoordinator._owned

    def forgetful(self: ConsumerCoordinator) -> Mapping[str, Sequence[int]]:
        named = owned(self)
        self._named = frozenset()
        return named

    patch.setattr(ConsumerCoordinator, "_owned", forgetful)


def _resend_as_a_new_member(patch: Patch) -> None:
    """The client sends every commit without generation and member id, as a consumer outside of groups does."""
    request = Offsets._request

    def simple(self: Offsets, *args: Any) -> OffsetCommitRequest:
        built: OffsetCommitRequest = request(self, *args)
        return attrs.evolve(built, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None)

    patch.setattr(Offsets, "_request", simple)


PLANTED = {
    "skip the revoke": (_skip_the_revoke, {"handover", "exclusive"}),
    "commit unfenced": (_commit_unfenced, {"fencing", "rewind"}),
    "ignore REBALANCE_IN_PROGRESS": (_ignore_rebalance_in_progress, {"liveness"}),
    "assign twice": (_assign_twice, {"exclusive", "handover"}),
    "forget to reload a group": (_forget_to_reload, {"generations", "durability", "twice", "rewind"}),
    "forget what was let go": (_forget_what_was_let_go, {"liveness"}),
    "commit without membership": (_resend_as_a_new_member, {"agreement", "liveness"}),
}


def _first_finding(seeds: Sequence[int]) -> Outcome | None:
    for seed in seeds:
        outcome = play(draw_scenario(seed))
        if outcome.violation is not None:
            return outcome
    return None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, rules = PLANTED[name]
    plant(monkeypatch)
    found = _first_finding(SEEDS)
    assert found is not None, f"{name} went unnoticed in {len(SEEDS)} histories"
    assert found.violation is not None
    assert found.violation.rule in rules, f"seed {found.seed}: {found.violation}\n{found.history.tail(40)}"
    monkeypatch.undo()
    assert play(found.scenario).violation is None, "the same history keeps every rule without the bug"
