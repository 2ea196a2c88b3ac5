"""Random requests of the members of a group of the consumer protocol, some of them classic members, drawn from a seed.

Most requests follow the protocol. The others have former and future epochs, ids of strangers, instance ids of other members,
other subscriptions, or partitions that were never assigned.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from random import Random

import attrs

from consumer_coord.wire import embedded_protocol as membership
from consumer_coord.wire.messages.admin import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from consumer_coord.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from consumer_coord.wire.schema import Struct
from tests.support.broker.sequences import Move

_LONG_MS = 60_000
_SHORT_MS = 1_300
_CONSUMER, _CLASSIC = "consumer", "classic"

#: topic id -> partitions
Owned = Mapping[uuid.UUID, Sequence[int]]


@attrs.define
class _Slot:
    """A possible member of the group, with its state."""

    number: int
    kind: str
    instance_id: str | None
    member_id: str
    epoch: int = 0
    former_epoch: int = -1
    owned: Owned = attrs.field(factory=dict)
    topics: tuple[str, ...] = ()
    regex: str | None = None
    # -- only for a classic member
    generation_id: int = -1
    leader: str = ""
    members: tuple[str, ...] = ()
    protocol_name: str = "range"
    waits_for: int | None = None
    synced: bool = True


class ConsumerPlayer:
    """Draws moves. The caller reports the requests that were sent, and the responses."""

    def __init__(self, rng: Random, group_id: str, topic: str, other: str, topic_ids: Mapping[uuid.UUID, str]) -> None:
        self._rng = rng
        self._group_id = group_id
        self._topic = topic
        self._other = other
        self._topic_ids = topic_ids
        kinds = (
            (_CONSUMER, None),
            (_CONSUMER, None),
            (_CONSUMER, "i0"),
            (_CONSUMER, "i0"),
            (_CLASSIC, None),
            (_CLASSIC, "i1"),
            (_CONSUMER, "i1"),
            (_CLASSIC, None),
        )
        #: Some groups have one protocol, most groups both.
        kept = rng.choices(((_CONSUMER,), (_CLASSIC, _CONSUMER)), (1, 3))[0]
        self._slots = [
            _Slot(number, kind, instance_id, _new_id(rng, number) if kind is _CONSUMER else "")
            for number, (kind, instance_id) in enumerate(kinds)
            if kind in kept
        ]
        self._assignors = rng.choice(((None,), ("uniform",), ("range",), ("range",), (None, "uniform", "range")))
        self._partitions = 2
        self._has_other = False
        self._commits = 0
        self._moves: list[tuple[float, Callable[[_Slot], Move]]] = [
            (30, self._in_protocol),
            (7, self._odd_heartbeat),
            (3, self._subscribe),
            (3, self._leave),
            (4, self._commit),
            (2, self._fetch_offsets),
            (0.7, self._delete_offsets),
            (0.7, self._delete_group),
            (1.5, self._grow),
            (1, self._wait),
            (2, self._odd_classic),
        ]

    def next_move(self) -> Move:
        """Return the next move."""
        rng = self._rng
        make = rng.choices([move for _, move in self._moves], [weight for weight, _ in self._moves])[0]
        return make(rng.choice(self._slots))

    def sent(self, step: int, move: Move, waits: bool) -> None:
        """Record that a move was sent, and whether its response is still missing."""
        slot = self._slot(move.slot)
        if slot is None:
            return
        if waits:
            slot.waits_for = step
        if isinstance(move.message, SyncGroupRequest):
            slot.synced = True

    def received(self, step: int, slot_number: int, message: Struct, response: Struct) -> None:
        """Record a response."""
        slot = self._slot(slot_number)
        if slot is None:
            return
        if slot.waits_for == step:
            slot.waits_for = None
        if isinstance(response, ConsumerGroupHeartbeatResponse) and isinstance(message, ConsumerGroupHeartbeatRequest):
            self._beaten(slot, message, response)
        elif isinstance(response, JoinGroupResponse):
            _joined(slot, response)
        elif isinstance(response, SyncGroupResponse) and response.error_code == 0 and response.assignment:
            by_name = membership.decode_assignment(response.assignment).partitions
            slot.owned = {topic_id: by_name[name] for topic_id, name in self._topic_ids.items() if name in by_name}

    def _beaten(self, slot: _Slot, message: ConsumerGroupHeartbeatRequest, response: ConsumerGroupHeartbeatResponse) -> None:
        if response.error_code in (25, 69, 82, 110):
            slot.epoch, slot.owned = 0, {}
        if response.error_code or (message.member_id and message.member_id != slot.member_id):
            return
        if response.member_id:
            slot.member_id = response.member_id
        if response.member_epoch != slot.epoch:
            slot.former_epoch, slot.epoch = slot.epoch, max(response.member_epoch, 0)
        if response.member_epoch < 0:
            slot.owned = {}
        if response.assignment is not None:
            slot.owned = {one.topic_id: one.partitions for one in response.assignment.topic_partitions}

    def _slot(self, number: int) -> _Slot | None:
        return next((slot for slot in self._slots if slot.number == number), None)

    # -- moves

    def _in_protocol(self, slot: _Slot) -> Move:
        """Return the move of a correct client."""
        if slot.kind is _CLASSIC:
            return self._classic_in_protocol(slot)
        if slot.epoch == 0:
            return self._join(slot)
        # A client acknowledges partitions by sending all that it owns, and sends none if nothing changed.
        owned = slot.owned if self._rng.random() < 0.7 else None
        return self._heartbeat(slot, epoch=slot.epoch, owned=owned)

    def _join(self, slot: _Slot) -> Move:
        rng = self._rng
        if not slot.topics and slot.regex is None:
            self._draw_subscription(slot)
        version = 0 if slot.regex is None and rng.random() < 0.15 else 1
        return self._heartbeat(
            slot,
            epoch=0,
            owned={},
            full=True,
            version=version,
            member_id="" if version == 0 and rng.random() < 0.5 else slot.member_id,
        )

    def _draw_subscription(self, slot: _Slot) -> None:
        rng = self._rng
        slot.topics = rng.choices(((self._topic,), (self._topic, self._other), (self._other,), ()), (8, 3, 1, 0.7))[0]
        slot.regex = rng.choices((None, f"{self._topic[:-2]}.*", f"{self._topic}|nothing", "("), (12, 2, 1, 0.3))[0]
        if slot.regex is not None and rng.random() < 0.8:
            slot.topics = ()

    def _subscribe(self, slot: _Slot) -> Move:
        if slot.kind is _CLASSIC:
            return self._join_group(slot)
        former = slot.regex
        self._draw_subscription(slot)
        if former is not None and slot.regex is None:
            slot.regex = ""
        if slot.epoch == 0:
            return self._join(slot)
        owned = self._rng.choices((slot.owned, None), (2, 1))[0]
        return self._heartbeat(slot, epoch=slot.epoch, owned=owned, full=True)

    def _heartbeat(
        self,
        slot: _Slot,
        *,
        epoch: int,
        owned: Owned | None,
        full: bool = False,
        version: int = 1,
        member_id: str | None = None,
        instance_id: str | None = "",
    ) -> Move:
        rng = self._rng
        message = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=slot.member_id if member_id is None else member_id,
            member_epoch=epoch,
            instance_id=slot.instance_id if instance_id == "" else instance_id,
            rack_id=rng.choices((None, "rack"), (6, 1))[0] if full else None,
            rebalance_timeout_ms=rng.choices((_LONG_MS, _SHORT_MS), (3, 1))[0] if full else -1,
            subscribed_topic_names=slot.topics if full else None,
            subscribed_topic_regex=slot.regex if full and version else None,
            server_assignor=rng.choice(self._assignors) if full else None,
            topic_partitions=None if owned is None else _owned_partitions(owned),
        )
        return Move("shared", message, version, slot.number)

    def _odd_heartbeat(self, slot: _Slot) -> Move:
        rng = self._rng
        if slot.kind is _CLASSIC:
            return self._classic_heartbeat(slot)
        epoch = rng.choice((slot.epoch, slot.epoch, slot.former_epoch, slot.epoch - 1, slot.epoch + 1, 0, 1, -3))
        foreign = rng.choice(self._slots)
        owned = rng.choice((None, {}, slot.owned, foreign.owned, _part_of(slot.owned)))
        return self._heartbeat(
            slot,
            epoch=epoch,
            owned={} if epoch == 0 and rng.random() < 0.8 else owned,
            full=rng.random() < (0.8 if epoch == 0 else 0.3),
            member_id=rng.choices((slot.member_id, foreign.member_id, "nobody", ""), (10, 2, 1, 1))[0],
            instance_id=rng.choices(("", None, "i0", "i9"), (10, 1, 1, 1))[0],
        )

    def _leave(self, slot: _Slot) -> Move:
        rng = self._rng
        if slot.kind is _CLASSIC or rng.random() < 0.1:
            return self._leave_group(slot)
        epoch = rng.choices((-1, -2), (3, 4 if slot.instance_id else 0.3))[0]
        member_id = rng.choices((slot.member_id, "nobody", rng.choice(self._slots).member_id), (12, 1, 1))[0]
        return self._heartbeat(slot, epoch=epoch, owned=None, member_id=member_id)

    # -- classic members

    def _classic_in_protocol(self, slot: _Slot) -> Move:
        for one in self._slots:
            if one.kind is _CLASSIC and one.waits_for is None and not one.synced:
                return self._sync(one)
        if slot.waits_for is None and slot.generation_id >= 0 and self._rng.random() < 0.6:
            return self._classic_heartbeat(slot, good=True)
        return self._join_group(slot)

    def _join_group(self, slot: _Slot) -> Move:
        if slot.waits_for is not None:
            return self._classic_heartbeat(slot)
        rng = self._rng
        topics = rng.choices(((self._topic,), (self._topic, self._other), ()), (8, 2, 0.7))[0]
        metadata = membership.encode_subscription(
            membership.Subscription(
                topics,
                owned_partitions={
                    self._topic_ids[topic_id]: numbers
                    for topic_id, numbers in slot.owned.items()
                    if topic_id in self._topic_ids
                },
                generation_id=slot.generation_id,
            ),
            rng.choices((3, 1, 0), (5, 2, 1))[0],
        )
        names = rng.choices((("range",), ("range", "sticky"), ("sticky", "range"), ("mine",)), (8, 3, 2, 0.4))[0]
        member_id = rng.choices((slot.member_id, "", "nobody"), (12, 2, 0.7))[0]
        message = JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=rng.choices((_LONG_MS, _SHORT_MS), (12, 1))[0],
            rebalance_timeout_ms=rng.choices((_LONG_MS, _SHORT_MS), (4, 2))[0],
            member_id=member_id,
            group_instance_id=slot.instance_id,
            protocol_type=rng.choices(("consumer", "connect"), (40, 1))[0],
            protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=metadata) for name in names),
        )
        version = rng.choices((9, 5, 3 if slot.instance_id is None else 9), (8, 1, 1))[0]
        return Move(f"{slot.number}", message, version, slot.number)

    def _sync(self, slot: _Slot) -> Move:
        leads = slot.leader == slot.member_id and slot.members
        assignments = tuple(
            SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=membership.encode_assignment(
                    membership.Assignment({self._topic: range(index, self._partitions, len(slot.members))})
                ),
            )
            for index, member_id in enumerate(slot.members if leads else ())
        )
        message = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=slot.generation_id,
            member_id=slot.member_id,
            group_instance_id=slot.instance_id,
            protocol_type="consumer",
            protocol_name=slot.protocol_name,
            assignments=assignments,
        )
        return Move(f"{slot.number}", message, 5, slot.number)

    def _classic_heartbeat(self, slot: _Slot, good: bool = False) -> Move:
        rng = self._rng
        message = HeartbeatRequest(
            group_id=self._group_id,
            generation_id=slot.generation_id + (0 if good else rng.choices((0, -1, 1), (8, 1, 1))[0]),
            member_id=slot.member_id if good else rng.choices((slot.member_id, "nobody"), (8, 1))[0],
            group_instance_id=slot.instance_id if good else rng.choices((slot.instance_id, None, "i0"), (8, 1, 1))[0],
        )
        return Move("shared", message, 4)

    def _odd_classic(self, slot: _Slot) -> Move:
        """Return a SyncGroup that does not fit, or one with the id of a member of the consumer protocol."""
        rng = self._rng
        if slot.waits_for is not None:
            return self._classic_heartbeat(slot)
        message = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=max(slot.generation_id, slot.epoch) + rng.choices((0, -1, 1), (6, 1, 1))[0],
            member_id=rng.choices((slot.member_id, "nobody"), (8, 1))[0],
            group_instance_id=rng.choices((slot.instance_id, None), (8, 1))[0],
            protocol_type=rng.choices(("consumer", "connect"), (8, 1))[0],
            protocol_name=rng.choices((slot.protocol_name, "mine"), (8, 1))[0],
        )
        return Move(f"{slot.number}-odd", message, 5)

    def _leave_group(self, slot: _Slot) -> Move:
        rng = self._rng
        leaving = [slot, rng.choice(self._slots)][: rng.choice((1, 1, 2))]
        identities = tuple(
            MemberIdentity(
                member_id=rng.choices((one.member_id, "", "nobody"), (8, 2, 1))[0],
                group_instance_id=rng.choices((one.instance_id, None), (8, 1))[0],
            )
            for one in leaving
        )
        return Move("shared", LeaveGroupRequest(group_id=self._group_id, members=identities), 5)

    # -- offsets, topics and time

    def _commit(self, slot: _Slot) -> Move:
        rng = self._rng
        self._commits += 1
        simple = rng.random() < 0.1
        known = slot.epoch if slot.kind is _CONSUMER else slot.generation_id
        epoch = rng.choices((known, known - 1, known + 1, slot.former_epoch, known - 2), (8, 2, 1, 2, 1))[0]
        # A simple commit creates a group in Kafka even if it is refused, and Kafka then hides the group: not worth imitating.
        too_large = 0.0 if simple or epoch < 0 else 0.5
        partitions = tuple(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=self._commits,
                committed_metadata=rng.choices((None, "note", "x" * 4097), (8, 2, too_large))[0],
            )
            for partition in rng.choice(((0,), (1,), (0, 1), (2,)))
        )
        message = OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=-1 if simple else epoch,
            member_id="" if simple else rng.choices((slot.member_id, "nobody"), (12, 1))[0],
            group_instance_id=None if simple else rng.choices((slot.instance_id, None), (8, 1))[0],
            topics=(OffsetCommitRequestTopic(name=self._topic, partitions=partitions),),
        )
        return Move("shared", message, rng.choices((9, 8), (8, 1))[0])

    def _fetch_offsets(self, slot: _Slot) -> Move:
        rng = self._rng
        wanted = OffsetFetchRequestTopics(name=self._topic, partition_indexes=(0, 1))
        member_id, epoch = rng.choice(
            ((None, -1), (slot.member_id, slot.epoch), (slot.member_id, slot.epoch - 1), ("nobody", 1))
        )
        group = OffsetFetchRequestGroup(
            group_id=self._group_id,
            member_id=member_id,
            member_epoch=epoch,
            topics=None if rng.random() < 0.5 else (wanted,),
        )
        return Move("shared", OffsetFetchRequest(groups=(group,), require_stable=rng.random() < 0.5), 9)

    def _delete_offsets(self, slot: _Slot) -> Move:
        topic = self._rng.choice((self._topic, self._other) if self._has_other else (self._topic,))
        partitions = tuple(OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1))
        request = OffsetDeleteRequest(
            group_id=self._group_id, topics=(OffsetDeleteRequestTopic(name=topic, partitions=partitions),)
        )
        return Move("shared", request, 0)

    def _delete_group(self, slot: _Slot) -> Move:
        return Move("shared", DeleteGroupsRequest(groups_names=(self._group_id,)), 2)

    def _grow(self, slot: _Slot) -> Move:
        if not self._has_other and self._rng.random() < 0.6:
            self._has_other = True
            topic = CreatableTopic(name=self._other, num_partitions=3, replication_factor=1)
            return Move("admin", CreateTopicsRequest(topics=(topic,), timeout_ms=10_000), 7)
        self._partitions += self._rng.choice((1, 2))
        grown = CreatePartitionsTopic(name=self._topic, count=self._partitions, assignments=None)
        return Move("admin", CreatePartitionsRequest(topics=(grown,), timeout_ms=10_000), 3)

    def _wait(self, slot: _Slot) -> Move:
        """Return a move with a pause in which short sessions and rebalances end."""
        return attrs.evolve(self._in_protocol(slot), pause_ms=self._rng.choice((800, 1_700)))


def _new_id(rng: Random, number: int) -> str:
    return f"m{number}-{uuid.UUID(int=rng.getrandbits(128), version=4)}"


def _joined(slot: _Slot, response: JoinGroupResponse) -> None:
    if response.member_id:
        slot.member_id = response.member_id
    if response.error_code == 25:
        slot.member_id = ""
    if response.error_code == 0:
        slot.generation_id = response.generation_id
        slot.leader = response.leader
        slot.members = tuple(one.member_id for one in response.members)
        slot.protocol_name = response.protocol_name or "range"
        slot.synced = False


def _owned_partitions(owned: Owned) -> tuple[ConsumerGroupHeartbeatRequestTopicPartitions, ...]:
    return tuple(
        ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=tuple(numbers))
        for topic_id, numbers in owned.items()
    )


def _part_of(owned: Owned) -> Owned:
    return {topic_id: numbers[:1] for topic_id, numbers in owned.items()}
