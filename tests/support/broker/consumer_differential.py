"""Comparison of Apache Kafka and our coordinator, which get the same requests to a group of the consumer protocol.

As in :mod:`tests.support.broker.differential` for the classic protocol, a sequence is recorded on the real broker, and played
to ours in virtual time, at the same moments and with the same ids. Every response must be equal. After every step, the
group must look the same in ConsumerGroupDescribe and DescribeGroups: epochs, states, assignments and targets.

``uniform`` depends on the order of a Java hash map of random ids. So our coordinator uses the target that Kafka computed, if
it is as good as our own (as many partitions for each member, as few moved); ``test_server_assignors`` compares the assignors
with Java's classes. ``range`` must compute exactly the same target.
"""

from __future__ import annotations

import asyncio
import math
import threading
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any

import attrs

from consumer_coord.broker.classic_group import GroupMetadata
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.consumer_group import conversion
from consumer_coord.broker.consumer_group.assignors.spec import GroupSpec
from consumer_coord.broker.consumer_group.assignors.uniform import UniformAssignor
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember, Partitions
from consumer_coord.broker.java_hash import hash_map_order
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import embedded_protocol as membership
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.admin import (
    CreatableTopic,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from consumer_coord.wire.messages.consumer_group import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from consumer_coord.wire.schema import Struct
from tests.support.broker import differential
from tests.support.broker.consumer_sequences import ConsumerPlayer
from tests.support.broker.differential import Outcome, RealBroker

_PATIENCE_S = 0.05
_SETTLE_S = 0.015
#: Time for JoinGroup and SyncGroup, the only requests that wait for other members, in seconds.
_LONG_PATIENCE_S = 10.0
#: Time until the coordinator knows a new topic, in seconds.
_METADATA_S = 0.15
#: Initial number of partitions of the topics of a sequence.
PARTITIONS = 2
#: The configuration of these tests' real broker, as far as it matters here.
CONFIG: Mapping[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "offsets.topic.num.partitions": 1,
    "auto.create.topics.enable": "false",
    "group.consumer.session.timeout.ms": 3_000,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.assignment.interval.ms": 0,
}


@attrs.define
class ConsumerStep:
    """A request; see `tests.support.broker.differential.Step`. ``targets`` are the targets of Kafka's group after it."""

    at_s: float
    message: Struct
    version: int
    slot: int
    response: Struct | None = None
    answered_in: int = -1
    answered_at_s: float = math.inf
    probed_at_s: float = 0.0
    state_at_s: float = 0.0
    state: Any = None
    new_ids: list[str] = attrs.field(factory=list)
    #: Whether our group was an empty consumer group when the request came: a session may have ended since the last description.
    came_to_empty: bool = False
    assignment_epoch: int = -1
    targets: Mapping[str, Partitions] = attrs.field(factory=dict)


@attrs.define
class ConsumerRecording:
    """A whole sequence, the ids of its topics, and the cases in which our uniform assignor was worse than Kafka's."""

    seed: int
    group_id: str
    topic: str
    topic_ids: dict[uuid.UUID, str] = attrs.field(factory=dict)
    steps: list[ConsumerStep] = attrs.field(factory=list)
    worse_targets: list[str] = attrs.field(factory=list)
    #: The first step that cannot be compared: a member left before a description showed the target that Kafka computed for it.
    unseen_from: int | None = None


async def record(broker: RealBroker, seed: int, name: str, length: int, pace: float) -> ConsumerRecording:
    """Make a sequence of ``length`` steps on the real broker; a greater ``pace`` gives every step more time."""
    topic, other = f"{name}-t", f"{name}-u"
    recording = ConsumerRecording(seed, name, topic)
    made = await broker.call(
        "admin",
        CreateTopicsRequest(
            topics=(CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1),), timeout_ms=10_000
        ),
        7,
    )
    _note_topics(recording, made)
    player = ConsumerPlayer(Random(seed), name, topic, other, recording.topic_ids)
    await differential.await_coordinator(broker, name)
    await asyncio.sleep(2 * _METADATA_S * (1 + pace))
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    waiting: dict[int, asyncio.Future[Struct]] = {}
    known_ids: set[str] = set()
    for index in range(length):
        move = player.next_move()
        if move.pause_ms:
            await asyncio.sleep(move.pause_ms / 1000)
        step = ConsumerStep(clock() - begun_s, move.message, move.version, move.slot)
        recording.steps.append(step)
        waiting[index] = asyncio.ensure_future(broker.call(f"{seed}-{move.connection}", move.message, move.version))
        differential.note_answer(step, waiting[index], begun_s)
        may_wait = isinstance(move.message, (JoinGroupRequest, SyncGroupRequest))
        patience_s = _PATIENCE_S * pace if may_wait else _LONG_PATIENCE_S
        await asyncio.wait([waiting[index]], timeout=patience_s)
        await asyncio.sleep((_METADATA_S if move.connection == "admin" else _SETTLE_S) * pace)
        step.probed_at_s = clock() - begun_s
        probe = await _probe(lambda message, version: broker.call(f"{seed}-probe", message, version), name)
        step.state_at_s = clock() - begun_s
        for number, future in sorted(waiting.items()):
            if future.done():
                answered = recording.steps[number]
                answered.response, answered.answered_in = future.result(), index
                player.received(number, answered.slot, answered.message, future.result())
                _note_topics(recording, future.result())
                del waiting[number]
        player.sent(index, move, index in waiting)
        step.state = state_of(*probe)
        _note_targets(step, probe[0])
        _note_new_ids(recording.steps, probe, known_ids)
    for future in waiting.values():
        future.cancel()
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    return recording


Probe = tuple[ConsumerGroupDescribeResponse, DescribeGroupsResponse]


async def _probe(call: Callable[[Struct, int], Awaitable[Struct]], group_id: str) -> Probe:
    modern = await call(ConsumerGroupDescribeRequest(group_ids=(group_id,)), 1)
    classic = await call(DescribeGroupsRequest(groups=(group_id,)), 5)
    assert isinstance(modern, ConsumerGroupDescribeResponse)
    assert isinstance(classic, DescribeGroupsResponse)
    return modern, classic


def _note_topics(recording: ConsumerRecording, response: Struct) -> None:
    if isinstance(response, CreateTopicsResponse):
        for topic in response.topics:
            if topic.error_code == 0:
                recording.topic_ids[topic.topic_id] = topic.name


def _note_targets(step: ConsumerStep, probe: ConsumerGroupDescribeResponse) -> None:
    group = probe.groups[0]
    if group.error_code == 0:
        step.assignment_epoch = group.assignment_epoch
        step.targets = {
            member.member_id: {one.topic_id: frozenset(one.partitions) for one in member.target_assignment.topic_partitions}
            for member in group.members
        }


def _note_new_ids(steps: Sequence[ConsumerStep], probe: Probe, known: set[str]) -> None:
    """Find the id that each request was assigned: in its own response, or as a new member of the group."""
    for step in steps:
        if not step.new_ids and _wants_id(step.message) and step.response is not None:
            member_id = getattr(step.response, "member_id", None)
            if member_id:
                step.new_ids.append(member_id)
                known.add(member_id)
    # Clients chose these ids: such a member may appear only after a later request that has no id yet.
    known.update(getattr(step.message, "member_id", None) or "" for step in steps)
    for groups in (probe[0].groups, probe[1].groups):
        for member in groups[0].members:
            if member.member_id not in known:
                known.add(member.member_id)
                if _wants_id(steps[-1].message) and not steps[-1].new_ids:
                    steps[-1].new_ids.append(member.member_id)


def _wants_id(message: Struct) -> bool:
    return isinstance(message, (JoinGroupRequest, ConsumerGroupHeartbeatRequest)) and not message.member_id


# -- ours


def _number(member_id: str) -> int:
    """Return the number in a member id of either kind."""
    if len(member_id) == 22:
        return int.from_bytes(urlsafe_b64decode(member_id + "=="), "big")
    return uuid.UUID(member_id[-36:]).int


class _ScriptedUniform:
    """Returns the target that Kafka computed in the same step."""

    name = "uniform"

    def __init__(self, recording: ConsumerRecording, played: ConsumerRecording) -> None:
        self._recording = recording
        self._played = played
        self._own = UniformAssignor()
        self.step = 0

    def assign(self, spec: GroupSpec) -> Mapping[str, Partitions]:
        """Return Kafka's target, if Kafka computed one in this step; record our own assignor's target if it is worse."""
        own = self._own.assign(spec)
        step = self._recording.steps[self.step]
        before = self._recording.steps[self.step - 1].assignment_epoch if self.step else -1
        if step.assignment_epoch == before:
            return own
        if set(step.targets) != set(spec.members):
            self._played.unseen_from = self.step
            return own
        if len({tuple(member.topics) for member in spec.members.values()}) == 1:
            theirs = (sorted(map(_size, step.targets.values())), _moved(spec, step.targets))
            ours = (sorted(_size(own.get(member_id, {})) for member_id in spec.members), _moved(spec, own))
            if theirs != ours:
                self._played.worse_targets.append(f"step {self.step}: {spec}\n  Kafka {theirs}\n  ours  {ours}")
        return step.targets


def _size(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


def _moved(spec: GroupSpec, plan: Mapping[str, Partitions]) -> int:
    """Return how many partitions leave their members' targets."""
    return sum(
        len(numbers - plan.get(member_id, {}).get(topic_id, frozenset()))
        for member_id, member in spec.members.items()
        for topic_id, numbers in member.target.items()
        if topic_id in member.topics
    )


_alone = threading.Lock()


def replay(recording: ConsumerRecording, late_ms: int = 0, config: Mapping[str, object] = CONFIG) -> ConsumerRecording:
    """Play a recording to our broker in virtual time, with late timers; one at a time, because it replaces two methods."""
    with _alone:
        candidates, first = GroupMetadata.leader_candidates, conversion.leader_first
        GroupMetadata.leader_candidates = lambda self: hash_map_order(self.members)  # type: ignore[method-assign]
        try:
            return virtual.run(_replay(recording, late_ms, config), seed=recording.seed)
        finally:
            GroupMetadata.leader_candidates = candidates  # type: ignore[method-assign]
            conversion.leader_first = first


async def _replay(recording: ConsumerRecording, late_ms: int, config: Mapping[str, object]) -> ConsumerRecording:
    ids = differential.GivenIds(recording.seed)
    loop = asyncio.get_running_loop()
    cluster = BrokerCluster(
        BrokerConfig.from_mapping(config), random=ids, wall_clock_ms=lambda: 1_000_000 + round(loop.time() * 1000)
    )
    id_of = {name: topic_id for topic_id, name in recording.topic_ids.items()}
    ids.next_number = id_of[recording.topic].int
    cluster.create_topic(recording.topic, PARTITIONS)
    differential.be_late(cluster, late_ms)
    cluster.start_all()
    call = differential.caller(cluster)
    played = ConsumerRecording(recording.seed, recording.group_id, recording.topic)
    uniform = _ScriptedUniform(recording, played)
    assignors = cluster.nodes[0].coordinator.assignors
    assignors["uniform"] = uniform  # type: ignore[index]  # a dictionary behind a read-only type
    conversion.leader_first = lambda members: _leader_first(recording, uniform.step, members)
    waiting: dict[int, asyncio.Future[Struct]] = {}

    for index, original in enumerate(recording.steps):
        await differential.until(original.at_s)
        uniform.step = index
        step = ConsumerStep(original.at_s, original.message, original.version, original.slot)
        played.steps.append(step)
        ids.next_number = _number(original.new_ids[0]) if original.new_ids else None
        if isinstance(original.message, CreateTopicsRequest):
            ids.next_number = id_of[original.message.topics[0].name].int
        group = cluster.nodes[0].coordinator.consumer_group(recording.group_id)
        step.came_to_empty = group is not None and group.is_empty
        waiting[index] = asyncio.ensure_future(call(original.message, original.version))
        await differential.until(original.probed_at_s)
        step.state = state_of(*await _probe(call, recording.group_id))
        for number, future in sorted(waiting.items()):
            if future.done():
                answered = played.steps[number]
                answered.response, answered.answered_in = future.result(), index
                del waiting[number]
    cluster.close()
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    return played


def _leader_first(
    recording: ConsumerRecording, step: int, members: Sequence[ConsumerGroupMember]
) -> Sequence[ConsumerGroupMember]:
    """Put the member first that Kafka's hash map made the leader of a classic group, as later responses show."""
    ids = {member.member_id for member in members}
    for later in recording.steps:
        response = later.response
        if later.answered_in >= step and isinstance(response, JoinGroupResponse) and response.leader in ids:
            return sorted(members, key=lambda member: member.member_id != response.leader)
    return members


# -- comparing


def state_of(modern: ConsumerGroupDescribeResponse, classic: DescribeGroupsResponse) -> Any:
    """Return the content of the responses to both describe requests, without the order of members and topics."""
    described = classic.groups[0]
    members = sorted(
        (one.member_id, one.group_instance_id, one.client_id, one.client_host, one.member_metadata, _assigned(one))
        for one in described.members
    )
    of_group = (described.error_code, described.group_state, described.protocol_type, described.protocol_data)
    return (*of_group, tuple(members)), modern_state(modern.groups[0])


def modern_state(group: ConsumerGroupDescribeGroup) -> Any:
    """Return the description of a group of the consumer protocol, or only the error code."""
    if group.error_code:
        return (group.error_code,)
    members = sorted(
        (
            one.member_id,
            str(one.instance_id),
            str(one.rack_id),
            one.member_epoch,
            one.client_id,
            one.client_host,
            tuple(sorted(one.subscribed_topic_names)),
            str(one.subscribed_topic_regex),
            _partitions(one.assignment),
            _partitions(one.target_assignment),
            one.member_type,
        )
        for one in group.members
    )
    return group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name, tuple(members)


def _partitions(assignment: ConsumerGroupDescribeAssignment) -> tuple[Any, ...]:
    return tuple(
        sorted((str(one.topic_id), one.topic_name, tuple(sorted(one.partitions))) for one in assignment.topic_partitions)
    )


def _assigned(holder: DescribedGroupMember | SyncGroupResponse) -> Any:
    """Return an assignment of the classic protocol without the order of its topics."""
    data = holder.assignment if isinstance(holder, SyncGroupResponse) else holder.member_assignment
    if not data:
        return data
    decoded = membership.decode_assignment(data)
    return data[:2], sorted((name, tuple(sorted(numbers))) for name, numbers in decoded.partitions.items()), decoded.user_data


def comparable(response: Struct | None) -> Any:
    """Return a response without fields that may differ: orders, and the text of errors."""
    if isinstance(response, ConsumerGroupHeartbeatResponse):
        assignment = response.assignment
        given = None
        if assignment is not None:
            given = sorted((str(one.topic_id), tuple(sorted(one.partitions))) for one in assignment.topic_partitions)
        return (response.error_code, response.member_id, response.member_epoch, response.heartbeat_interval_ms, given)
    if isinstance(response, SyncGroupResponse):
        return (response.error_code, response.protocol_type, response.protocol_name, _assigned(response))
    if isinstance(response, (CreateTopicsResponse, CreatePartitionsResponse)):
        return None  # these requests only prepare more partitions
    return differential.comparable(response)


def compare(kafka: ConsumerRecording, ours: ConsumerRecording) -> list[str]:
    """Return how our broker's responses differ from Kafka's, as text; the first few steps that differ."""
    found = list(ours.worse_targets)
    end = comparable_until(ours)
    for index, (theirs, mine) in enumerate(zip(kafka.steps[:end], ours.steps[:end], strict=True)):
        if differential.forgotten(ours.steps, theirs, mine, _members_of):
            continue
        if not (0 <= theirs.answered_in < end or 0 <= mine.answered_in < end):
            pass  # answered by neither, or only after the last comparable step
        elif comparable(theirs.response) != comparable(mine.response):
            found.append(
                f"step {index}: {theirs.message} v{theirs.version}\n  Kafka {theirs.response}\n  ours  {mine.response}"
            )
        elif theirs.answered_in != mine.answered_in:
            found.append(
                f"step {index}: {theirs.message}\n  answered in step {theirs.answered_in} by Kafka, {mine.answered_in} by ours"
            )
        if theirs.state != mine.state:
            found.append(
                f"after step {index}: {theirs.message} v{theirs.version}\n  answered {theirs.response}\n"
                f"  Kafka {theirs.state}\n  ours  {mine.state}"
            )
    return found[:2]


def comparable_until(ours: ConsumerRecording) -> int:
    """Return the first step that cannot be compared because of an accepted difference."""
    return next(
        (
            index
            for index in range(len(ours.steps))
            if index == ours.unseen_from or _loses_group(ours, index) or _is_refused_conversion(ours, index)
        ),
        len(ours.steps),
    )


def _is_refused_conversion(ours: ConsumerRecording, index: int) -> bool:
    """Return whether an accepted difference applies: a refused heartbeat would have converted a classic group in a rebalance.

    By then, Kafka has asked the classic members to join again. Ours lets them wait, because nothing has changed for them.
    12 of 5,000 sequences from seed 460000 have this difference.
    """
    step = ours.steps[index]
    classic_state = ours.steps[index - 1].state[0][1] if index else ""
    return (
        isinstance(step.message, ConsumerGroupHeartbeatRequest)
        and step.message.member_epoch == 0
        and getattr(step.response, "error_code", 0) == error_codes.INVALID_REGULAR_EXPRESSION
        and classic_state in ("PreparingRebalance", "CompletingRebalance")
    )


def _loses_group(ours: ConsumerRecording, index: int) -> bool:
    """Return whether an accepted difference applies: a classic member with an id joins an empty consumer group.

    Both respond UNKNOWN_MEMBER_ID. Kafka 4.4.0 also removes the group, and then drops the group's tombstones
    (``GroupMetadataManager.classicGroupJoinToClassicGroup``, of KAFKA-16313): the group exists again when the coordinator loads
    its log. 5 of 5,000 sequences from seed 460000 have this difference.
    """
    step = ours.steps[index]
    return isinstance(step.message, JoinGroupRequest) and bool(step.message.member_id) and step.came_to_empty


def _members_of(state: Any) -> set[str]:
    classic, modern = state
    return {member[0] for member in classic[4]} | {member[0] for member in (modern[4] if len(modern) > 1 else ())}


async def differences(
    connect: Callable[[], Awaitable[RealBroker]],
    seeds: Sequence[int],
    *,
    length: int = 40,
    at_once: int = 20,
    tries: int = 5,
    config: Mapping[str, object] = CONFIG,
    name: str = "consumer",
) -> Outcome:
    """Compare as :func:`tests.support.broker.differential.compare_all`, for the consumer protocol."""

    async def recorded(broker: RealBroker, seed: int, attempt: int) -> ConsumerRecording:
        return await record(broker, seed, f"{name}-{seed}-{attempt}-{uuid.uuid4().hex[:8]}", length, 1 + 2 * attempt)

    def played(recording: ConsumerRecording, late_ms: int) -> ConsumerRecording:
        return replay(recording, late_ms, config)

    return await differential.compare_all(connect, seeds, recorded, played, compare, at_once=at_once, tries=tries)
