"""Bugs planted in the consumer protocol (KIP-848), in the client and in the broker, are caught, each by a small history.

Without its bug each history keeps every rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from consumer_coord.broker import group_offsets
from consumer_coord.broker.classic_group import GroupMetadata
from consumer_coord.broker.committed import GroupOffsets
from consumer_coord.broker.consumer_group import conversion, membership, records
from consumer_coord.broker.consumer_group.classic_members import ClassicMembers
from consumer_coord.broker.consumer_group.fencing import Fencing
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember
from consumer_coord.broker.consumer_group.topics_image import MetadataImage
from consumer_coord.broker.shard import Shard
from consumer_coord.group.consumer_protocol.heartbeats import ConsumerMember
from consumer_coord.group.consumer_protocol.reconciliation import Holdings
from consumer_coord.group.consumer_protocol.states import State
from consumer_coord.group.consumer_protocol.target_assignment import TargetAssignment, owned_by_id
from consumer_coord.group.lease import Lease
from consumer_coord.group.max_poll_interval import PollWatch
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Fault, Scenario
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import HeartbeatRequest, HeartbeatResponse
from tests.support.simulation.small_history import history

Patch = pytest.MonkeyPatch

# -- the client


def _acknowledge_before_revoking(patch: Patch) -> None:
    """A heartbeat reports that a partition is revoked while the application still reads the partition."""

    def look(self: Holdings) -> None:
        wanted = self._with.assignment.target.partitions
        self.owned = owned_by_id((one for one in wanted if one.topic in self._ids), self._ids)

    patch.setattr(Holdings, "look", look)


def _keep_what_was_held_after_fencing(patch: Patch) -> None:
    """A member that was fenced joins again, but its application receives no callback."""

    def lost(self: Holdings) -> bool:
        self._target = TargetAssignment()
        return False

    patch.setattr(Holdings, "lost", lost)


def _stay_away_after_a_late_poll(patch: Patch) -> None:
    """A member that left by max.poll.interval.ms does not notice that its application polls again."""
    comes_back = ConsumerMember._comes_back

    def never(self: ConsumerMember) -> bool:
        return self._state is not State.STALE and comes_back(self)

    patch.setattr(ConsumerMember, "_comes_back", never)


def _forget_topic_ids(patch: Patch) -> None:
    """The id of a topic that the group wants back is forgotten, although partitions of it are held."""
    resolve = Holdings.resolve

    def forgetful(self: Holdings, epoch: int, *, new: bool = False) -> bool:
        changed = resolve(self, epoch, new=new)
        wanted = {partition.topic for partition in self._with.assignment.target.partitions}
        self._ids = {topic: topic_id for topic, topic_id in self._ids.items() if topic in wanted}
        self.look()
        return changed

    patch.setattr(Holdings, "resolve", forgetful)


def _do_not_leave_when_nobody_polls(patch: Patch) -> None:
    """max.poll.interval.ms passes, and the member stays."""
    patch.setattr(PollWatch, "expired", property(lambda self: False))


def _believe_that_a_join_proves_the_membership(patch: Patch) -> None:
    """The simulation found this bug in the real code: a removed classic member joins with its id, and keeps its partitions."""
    patch.setattr(Lease, "passed", property(lambda self: False))


# -- the broker


def _assign_what_is_not_released(patch: Patch) -> None:
    """A newcomer is given partitions that their owner has still to revoke."""
    patch.setattr(ConsumerGroup, "partition_epoch", lambda self, topic_id, partition: -1)


def _never_end_a_session(patch: Patch) -> None:
    """A member that was killed stays in its group."""
    patch.setattr(Fencing, "schedule_session", lambda self, *args: None)


def _take_any_commit(patch: Patch) -> None:
    """Commits are not fenced by the member epoch."""
    patch.setattr(group_offsets, "check_commit", lambda *args, **keywords: error_codes.NONE)


def _overlook_that_a_topic_grew(patch: Patch) -> None:
    """The group epoch does not rise with the number of partitions."""
    patch.setattr(MetadataImage, "group_hash", lambda self, names: len(tuple(names)))


def _reset_the_target_of_a_static_member_that_returns(patch: Patch) -> None:
    """A static member that comes back within its session has no target, and there is no reason to compute one."""
    join = membership.join_static

    def forgetful(
        group: ConsumerGroup, member_id: str, instance_id: str, classic: bool, made: list[records.Record]
    ) -> ConsumerGroupMember:
        former = group.static_member(instance_id)
        if former is not None:
            group.target[former.member_id] = {}
        return attrs.evolve(join(group, member_id, instance_id, classic, made), assigned={})

    patch.setattr(membership, "join_static", forgetful)


def _forget_what_classic_members_have(patch: Patch) -> None:
    """A classic group that becomes one of the consumer protocol forgets what its members hold."""
    convert = conversion._converted

    def forgetful(group: GroupMetadata, image: MetadataImage) -> ConsumerGroup:
        converted = convert(group, image)
        for member in tuple(converted.members.values()):
            converted.update_member(attrs.evolve(member, assigned={}))
        return converted

    patch.setattr(conversion, "_converted", forgetful)


def _do_not_tell_classic_members(patch: Patch) -> None:
    """A classic member in a consumer group is never notified of partitions to revoke or to add."""

    async def heartbeat(
        self: ClassicMembers, shard: Shard, group: ConsumerGroup, request: HeartbeatRequest
    ) -> HeartbeatResponse:
        member = group.members.get(request.member_id)
        if member is None or member.classic is None:
            return HeartbeatResponse(error_code=error_codes.UNKNOWN_MEMBER_ID)
        self._fencing.schedule_session(shard, group.group_id, member.member_id, member.classic.session_timeout_ms)
        return HeartbeatResponse()

    patch.setattr(ClassicMembers, "heartbeat", heartbeat)


def _begin_generations_anew(patch: Patch) -> None:
    """A consumer group that becomes classic begins with generation 0."""
    classic = conversion._classic

    def anew(*args: Any) -> GroupMetadata:
        made = classic(*args)
        made.generation_id = 0
        return made

    patch.setattr(conversion, "_classic", anew)


def _lose_the_offsets(patch: Patch) -> None:
    """A consumer group that becomes classic forgets what was committed."""
    classic = conversion._classic

    def forgetful(*args: Any) -> GroupMetadata:
        made = classic(*args)
        made.offsets = GroupOffsets()
        return made

    patch.setattr(conversion, "_classic", forgetful)


def _downgrade_without_a_rebalance(patch: Patch) -> None:
    """The last member of the consumer protocol leaves; the classic group is stable at once, without the member's partitions."""
    to_classic = conversion.to_classic

    def stable(*args: Any, rebalance: str | None = None, **keywords: Any) -> None:
        to_classic(*args, **keywords)

    patch.setattr(conversion, "to_classic", stable)


#: name -> the bug, the history that finds it, the rules that may be broken.
PLANTED: dict[str, tuple[Callable[[Patch], None], Scenario, set[str]]] = {
    "acknowledge before revoking": (
        _acknowledge_before_revoking,
        history(Fault(4_000, "start", 0, 0), members=1, callback_ms=3_000),
        {"handover", "exclusive", "fencing", "lease"},
    ),
    "keep what was held after fencing": (
        _keep_what_was_held_after_fencing,
        history(Fault(4_000, "hang", 0, 0, 13_000)),
        {"handover", "exclusive", "lease", "fencing"},
    ),
    "stay away after a late poll": (
        _stay_away_after_a_late_poll,
        history(Fault(3_000, "absent", 0, 0, 6_000), max_poll_interval_ms=4_000),
        {"liveness"},
    ),
    "do not leave at max.poll.interval.ms": (
        _do_not_leave_when_nobody_polls,
        history(Fault(3_000, "absent", 0, 0, 30_000), max_poll_interval_ms=4_000),
        {"polling"},
    ),
    "forget topic ids": (
        _forget_topic_ids,
        history(Fault(4_000, "start", 0, 0), members=1, topics=(1, 1), callback_ms=3_000),
        {"handover", "exclusive", "lease"},
    ),
    "believe that a join proves the membership": (
        _believe_that_a_join_proves_the_membership,
        attrs.evolve(
            history(
                Fault(3_000, "start", 0, 0),
                Fault(5_285, "hang", 0, 0, 13_599),
                Fault(16_058, "enforce", 0, 0),
                protocol="classic",
                later="consumer",
                lease=False,
                poll_every_ms=1_000,
            ),
            seed=3,
        ),
        {"exclusive", "handover", "fencing", "lease"},
    ),
    "assign what is not released": (
        _assign_what_is_not_released,
        history(Fault(4_000, "start", 0, 0), members=1, callback_ms=3_000),
        {"handover", "exclusive"},
    ),
    "never end a session": (_never_end_a_session, history(Fault(4_000, "kill", 0, 0)), {"liveness"}),
    "take any commit": (
        _take_any_commit,
        history(Fault(4_000, "mute", 0, 2, 16_000), brokers=3, lease=False, commit_every_ms=200),
        {"fencing", "rewind"},
    ),
    "overlook that a topic grew": (
        _overlook_that_a_topic_grew,
        history(Fault(4_000, "grow", 0, 0)),
        {"liveness"},
    ),
    "reset the target of a static member that returns": (
        _reset_the_target_of_a_static_member_that_returns,
        history(Fault(3_000, "absent", 0, 0, 6_000), max_poll_interval_ms=4_000, instance_id="static"),
        {"liveness"},
    ),
    "forget what classic members have": (
        _forget_what_classic_members_have,
        history(Fault(4_000, "start", 0, 0), protocol="classic", later="consumer", poll_every_ms=1_000),
        {"handover", "exclusive"},
    ),
    "do not notify classic members": (
        _do_not_tell_classic_members,
        history(Fault(4_000, "start", 0, 0), protocol="classic", later="consumer"),
        {"liveness"},
    ),
    "begin generations again": (
        _begin_generations_anew,
        history(Fault(4_000, "start", 0, 0), Fault(7_000, "stop", 2, 0), protocol="classic", later="consumer"),
        {"generations"},
    ),
    "lose the offsets": (
        _lose_the_offsets,
        history(Fault(3_000, "start", 0, 0), Fault(7_000, "stop", 0, 0), members=1, later="classic"),
        {"durability", "rewind", "twice"},
    ),
    "downgrade without a rebalance": (
        _downgrade_without_a_rebalance,
        history(Fault(3_000, "start", 0, 0), Fault(7_000, "stop", 0, 0), members=1, later="classic"),
        {"liveness"},
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, scenario, rules = PLANTED[name]
    assert play(scenario).violation is None, "the same history keeps every rule without the bug"
    plant(monkeypatch)
    found = play(scenario)
    assert found.violation is not None, f"{name} went unnoticed\n{found.history.tail(60)}"
    assert found.violation.rule in rules, f"{found.violation}\n{found.history.tail(40)}"
