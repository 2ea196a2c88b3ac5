"""The checkers catch bugs: each of these is planted, and found; without it the same seeds keep every rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import pytest

from consumer_coord.broker.group_offsets import Commit, Committer, OffsetCoordinator
from consumer_coord.broker.group_store import GroupStore
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.shard import Shard, ShardState
from consumer_coord.consumer.commit_reports import CommitReports
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.engine_loop import EngineLoop
from consumer_coord.consumer.reading.reader import PartitionReading, Reader
from consumer_coord.group import error_steps as answers
from consumer_coord.group.application_polls import Application
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.classic_protocol import leader
from consumer_coord.group.classic_protocol.heartbeat import Heartbeat
from consumer_coord.group.classic_protocol.join_and_sync import ClassicProtocol
from consumer_coord.group.commits import CommitLane
from consumer_coord.group.error_steps import Step
from consumer_coord.group.failures import Failures
from consumer_coord.simulation import loop
from consumer_coord.simulation.drawing import draw_scenario
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import SyncGroupRequestAssignment
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from tests.support.simulation.planting import assert_found, former

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
    """A member is notified that the group rebalances, and ignores this."""
    patch.setitem(answers.HEARTBEAT, error_codes.REBALANCE_IN_PROGRESS, Step.CONTINUE)


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

    def elect(self: GroupStore, partition: int, log: PartitionLog, leader_epoch: int, loaded: Callable[[Shard], None]) -> None:
        self._shards[partition] = Shard(partition, log, leader_epoch, ShardState.ACTIVE)

    patch.setattr(GroupStore, "elect", elect)


def _forget_what_was_let_go(patch: Patch) -> None:
    """The simulation found this bug in the real code: a partition revoked during a join is never assigned again."""
    owned = ClassicProtocol._owned

    def forgetful(self: ClassicProtocol) -> Mapping[str, Sequence[int]]:
        named = owned(self)
        self._named = frozenset()
        return named

    patch.setattr(ClassicProtocol, "_owned", forgetful)
    # Or the leader mends it in the end.
    patch.setattr(leader, "withheld", lambda cluster, group, plan: 0)


def _resend_as_a_new_member(patch: Patch) -> None:
    """The client sends every commit without generation and member id, as a consumer outside of groups does."""
    request = CommitLane._request

    def simple(self: CommitLane, *args: Any) -> OffsetCommitRequest:
        built: OffsetCommitRequest = request(self, *args)
        return attrs.evolve(built, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None)

    patch.setattr(CommitLane, "_request", simple)


def _lose_what_waits_when_a_call_is_left(patch: Patch) -> None:
    """An exception or a cancellation in a poll costs what was fetched ahead."""
    gather = Engine.gather

    async def careless(self: Engine, least: int, most: int, timeout_s: float, **only: Any) -> bool:
        try:
            return await gather(self, least, most, timeout_s, **only)
        except BaseException:
            self.reader.ready.clear()
            raise

    patch.setattr(Engine, "gather", careless)


def _hand_out_twice(patch: Patch) -> None:
    """The last message of a batch stays in the queue."""

    def take(self: Engine, most: int) -> list[Any]:
        ready = self.reader.ready
        taken = [ready.popleft() for _ in range(min(most, len(ready)))]
        if len(taken) > 3:
            ready.appendleft(taken[-1])
        return taken

    patch.setattr(Engine, "take", take)


def _hand_out_past_the_lease(patch: Patch) -> None:
    """A member that was cut off or paused delivers the records that it has fetched."""
    patch.setattr(Engine, "suspended", property(lambda self: False))
    patch.setattr(Engine, "_may_deliver", lambda self, leased_until: True)


def _forget_commits_at_close(patch: Patch) -> None:
    """The outcomes of asynchronous commits that are in flight when the consumer closes are not reported."""

    async def finish(self: CommitReports, ends: float) -> None:
        self.unreported.clear()

    patch.setattr(CommitReports, "finish", finish)


def _wait_longer_than_asked(patch: Patch) -> None:
    """The wait for the group takes two seconds, even if less time is left."""
    ring = EngineLoop.ring

    async def patient(self: EngineLoop, timeout_s: float) -> None:
        await ring(self, max(timeout_s, 2.0))

    patch.setattr(EngineLoop, "ring", patient)


def _do_not_count_waiting_as_polling(patch: Patch) -> None:
    """Only the beginning of a poll counts."""
    wait = Engine._wait

    async def uncounted(self: Engine, most: int, left_s: float) -> None:
        await wait(self, most, left_s)
        self.core.application.polls -= 1

    patch.setattr(Engine, "_wait", uncounted)


def _resume_nothing(patch: Patch) -> None:
    """A partition that was paused, or about to be revoked and then kept, is never fetched again."""
    include = former(Reader, "_include")

    def once(self: Reader, partition: TopicPartition, reading: PartitionReading) -> None:
        if not reading.serial:
            include(self, partition, reading)

    patch.setattr(Reader, "_include", once)


def _keep_what_waits_of_a_revoked_partition(patch: Patch) -> None:
    """The fetched records of a partition outlive its revocation."""
    end = former(Reader, "_end")

    def forgetful(self: Reader, gone: Collection[TopicPartition]) -> None:
        ready = self.ready
        end(self, gone)
        self.at_hand.ready = ready

    patch.setattr(Reader, "_end", forgetful)


def _be_stuck_since_the_last_join(patch: Patch) -> None:
    """This bug was in the real code: a stable member raised an error at the first heartbeat without a response."""
    patch.setattr(Failures, "clear_obstacle", lambda self: None)


def _spin_until_the_commit_is_answered(patch: Patch) -> None:
    """The simulation found this bug in the real code: a poll was a busy loop during the commit before a revoke."""
    patch.setattr(loop, "MAX_STEPS_PER_MOMENT", 60_000)
    look = Application.look
    patch.setattr(Application, "look", lambda self: look(self) or not self._assignment.reconciled)


def _beat_again_at_once(patch: Patch) -> None:
    """A member sends its next heartbeat when the last one is answered."""
    beat = Heartbeat._beat

    async def again(self: Heartbeat) -> None:
        await beat(self)
        self._clock.next_at = 0.0

    patch.setattr(Heartbeat, "_beat", again)


PLANTED = {
    "beat again at once": (_beat_again_at_once, {"storms"}),
    "lose what waits when a call is left": (_lose_what_waits_when_a_call_is_left, {"skipped"}),
    "deliver twice": (_hand_out_twice, {"again"}),
    "deliver past the lease": (_hand_out_past_the_lease, {"lease"}),
    "forget commits at close": (_forget_commits_at_close, {"reported"}),
    "wait longer than asked": (_wait_longer_than_asked, {"late"}),
    "do not count waiting as polling": (_do_not_count_waiting_as_polling, {"polling"}),
    "resume nothing": (_resume_nothing, {"stranded"}),
    "keep what waits of a revoked partition": (_keep_what_waits_of_a_revoked_partition, {"callbacks", "again", "skipped"}),
    "be stuck since the last join": (_be_stuck_since_the_last_join, {"raised"}),
    "spin until the commit is answered": (_spin_until_the_commit_is_answered, {"liveness"}),
    "skip the revoke": (_skip_the_revoke, {"handover", "exclusive"}),
    "commit unfenced": (_commit_unfenced, {"fencing", "rewind"}),
    "ignore REBALANCE_IN_PROGRESS": (_ignore_rebalance_in_progress, {"liveness"}),
    "assign twice": (_assign_twice, {"exclusive", "handover"}),
    "forget to reload a group": (_forget_to_reload, {"generations", "durability", "twice", "rewind"}),
    "forget what was revoked": (_forget_what_was_let_go, {"liveness"}),
    "commit without membership": (_resend_as_a_new_member, {"agreement", "liveness"}),
}


#: Where a late finding was last: played first.  When the drawing changes, all seeds are played until one finds it.
_FOUND_BY = {
    "deliver past the lease": 35,
    "forget commits at close": 31,
    "commit unfenced": 10,
    "do not count waiting as polling": 13,
    "be stuck since the last join": 13,
    "spin until the commit is answered": 13,
    "forget what was revoked": 58,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_found(name, PLANTED[name], draw_scenario, SEEDS, _FOUND_BY.get(name), monkeypatch)
