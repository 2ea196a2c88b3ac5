"""Random requests of the members of a classic group, drawn from a seed: most follow the protocol, others do not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from consumer_coord.wire.messages.group import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
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
from tests.support.broker.bench import subscription

_LONG_MS = 60_000
_SHORT_MS = 1_300


@attrs.frozen
class Move:
    """A request on one of the group's connections, sent after a pause."""

    connection: str
    message: Struct
    version: int
    slot: int = -1
    pause_ms: int = 0


@attrs.define
class _Slot:
    """A possible member of the group, with its state."""

    number: int
    instance_id: str | None
    member_id: str = ""
    generation_id: int = -1
    leader: str = ""
    members: tuple[str, ...] = ()
    protocol_name: str = "range"
    #: The step whose response this member awaits on its own connection.
    waits_for: int | None = None
    joins: int = 0
    synced: bool = True


class Player:
    """Draws moves. The caller reports the requests that were sent, and the responses."""

    def __init__(self, rng: Random, group_id: str, topic: str) -> None:
        self._rng = rng
        self._group_id = group_id
        self._topic = topic
        # The last slot has the same instance id as the fourth: they fence each other.
        instances = (None, None, None, "i0", "i1", "i0")
        self._slots = [_Slot(number, instance_id) for number, instance_id in enumerate(instances)]
        self._commits = 0
        self._moves: list[tuple[int, Callable[[_Slot], Move]]] = [
            (10, self._join),
            (12, self._next_in_protocol),
            (5, self._sync),
            (6, self._heartbeat),
            (3, self._leave),
            (5, self._commit),
            (2, self._fetch_offsets),
            (1, self._delete_offsets),
            (1, self._delete_group),
            (1, self._wait),
        ]

    def next_move(self) -> Move:
        """Return the next move."""
        rng = self._rng
        make = rng.choices([move for _, move in self._moves], [weight for weight, _ in self._moves])[0]
        return make(rng.choice(self._slots))

    def sent(self, step: int, move: Move, waits: bool) -> None:
        """Record that a move was sent, and whether its response is still missing."""
        if waits and move.slot >= 0:
            self._slots[move.slot].waits_for = step
        if isinstance(move.message, SyncGroupRequest) and move.slot >= 0:
            self._slots[move.slot].synced = True

    def received(self, step: int, message: Struct, version: int, response: Struct) -> None:
        """Record a response."""
        for slot in self._slots:
            if slot.waits_for == step:
                slot.waits_for = None
        if isinstance(response, JoinGroupResponse) and isinstance(message, JoinGroupRequest):
            for slot in self._slots:
                if message.reason == f"slot {slot.number}":
                    self._joined(slot, response)

    def _joined(self, slot: _Slot, response: JoinGroupResponse) -> None:
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

    # -- moves

    def _next_in_protocol(self, slot: _Slot) -> Move:
        """Return the move of a correct client; such moves let sequences go beyond errors."""
        for one in self._slots:
            if one.waits_for is None and not one.synced:
                return self._well_formed_sync(one)
        if slot.waits_for is None and slot.generation_id >= 0 and self._rng.random() < 0.4:
            return self._send(
                slot,
                HeartbeatRequest(
                    group_id=self._group_id,
                    generation_id=slot.generation_id,
                    member_id=slot.member_id,
                    group_instance_id=slot.instance_id,
                ),
                4,
                shared=True,
            )
        return self._join(slot)

    def _join(self, slot: _Slot) -> Move:
        if slot.waits_for is not None:
            return self._heartbeat(slot)
        rng = self._rng
        member_id = rng.choices((slot.member_id, "", "nobody", rng.choice(self._slots).member_id), (12, 5, 1, 1))[0]
        names = rng.choices((("range",), ("range", "sticky"), ("sticky", "range"), ("mine",), ()), (8, 3, 3, 1, 0.3))[0]
        metadata = subscription(*rng.choices(((self._topic,), (self._topic, "other"), ()), (8, 1, 1))[0])
        slot.joins += 1
        version = rng.choices((9, 8, 7, 5), (8, 2, 1, 1))[0]
        if slot.instance_id is None:
            version = rng.choices((version, 4, 3, 0), (8, 1, 1, 0.5))[0]
        # The field ``reason``, if the version has it, carries the slot's number; the broker only logs the reason.
        return self._send(
            slot,
            JoinGroupRequest(
                group_id=rng.choices((self._group_id, ""), (60, 1))[0],
                session_timeout_ms=rng.choices((_LONG_MS, _SHORT_MS, 10), (20, 3, 0.3))[0],
                rebalance_timeout_ms=rng.choices((_LONG_MS, _SHORT_MS), (5, 2))[0],
                member_id=member_id,
                group_instance_id=slot.instance_id,
                protocol_type=rng.choices(("consumer", "connect", ""), (40, 1, 0.5))[0],
                protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=metadata) for name in names),
                reason=f"slot {slot.number}",
            ),
            version,
        )

    def _well_formed_sync(self, slot: _Slot) -> Move:
        leads = slot.leader == slot.member_id
        assignments = tuple(
            SyncGroupRequestAssignment(member_id=member_id, assignment=b"%d" % index)
            for index, member_id in enumerate(slot.members if leads else ())
        )
        return self._send(
            slot,
            SyncGroupRequest(
                group_id=self._group_id,
                generation_id=slot.generation_id,
                member_id=slot.member_id,
                group_instance_id=slot.instance_id,
                protocol_type="consumer",
                protocol_name=slot.protocol_name,
                assignments=assignments,
            ),
            5,
        )

    def _sync(self, slot: _Slot) -> Move:
        if slot.waits_for is not None:
            return self._commit(slot)
        rng = self._rng
        good = self._well_formed_sync(slot).message
        assert isinstance(good, SyncGroupRequest)
        assignments = good.assignments[: rng.randrange(3)] if rng.random() < 0.2 else good.assignments
        return self._send(
            slot,
            attrs.evolve(
                good,
                generation_id=slot.generation_id + rng.choices((0, -1, 1), (10, 1, 1))[0],
                member_id=rng.choices((slot.member_id, "nobody"), (12, 1))[0],
                group_instance_id=rng.choices((slot.instance_id, None, "i9"), (12, 1, 0.5))[0],
                protocol_type=rng.choices(("consumer", "connect", None), (12, 1, 1))[0],
                protocol_name=rng.choices((slot.protocol_name, "mine", None), (12, 1, 1))[0],
                assignments=assignments,
            ),
            rng.choice((5, 5, 4, 3)),
        )

    def _heartbeat(self, slot: _Slot) -> Move:
        rng = self._rng
        return self._send(
            slot,
            HeartbeatRequest(
                group_id=self._group_id,
                generation_id=slot.generation_id + rng.choices((0, -1, 1), (8, 1, 1))[0],
                member_id=rng.choices((slot.member_id, "nobody", ""), (8, 1, 1))[0],
                group_instance_id=rng.choices((slot.instance_id, None, "i0"), (8, 1, 1))[0],
            ),
            rng.choice((3, 4)),
            shared=True,
        )

    def _leave(self, slot: _Slot) -> Move:
        rng = self._rng
        if rng.random() < 0.2:
            return self._send(
                slot, LeaveGroupRequest(group_id=self._group_id, member_id=slot.member_id), rng.randrange(3), shared=True
            )
        leaving = [slot, rng.choice(self._slots)][: rng.choice((1, 1, 2))]
        identities = tuple(
            MemberIdentity(
                member_id=rng.choices((one.member_id, "", "nobody"), (6, 2, 1))[0],
                group_instance_id=rng.choices((one.instance_id, None), (8, 1))[0],
            )
            for one in leaving
        )
        request = LeaveGroupRequest(group_id=self._group_id, members=identities)
        return self._send(slot, request, rng.choice((3, 4, 5)), shared=True)

    def _commit(self, slot: _Slot) -> Move:
        rng = self._rng
        self._commits += 1
        simple = rng.random() < 0.2
        generation_id = -1 if simple else slot.generation_id + rng.choices((0, -1, 1), (10, 1, 1))[0]
        topic = rng.choices((self._topic, "unknown"), (15, 1))[0]
        # A simple commit creates a group in Kafka even if it is refused. Kafka then hides the group until the next write
        # to its log: not worth imitating.
        too_large = "note" if generation_id < 0 else "x" * 4097
        partitions = tuple(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=self._commits,
                committed_metadata=rng.choices((None, "note", too_large), (8, 2, 1))[0],
            )
            for partition in rng.choice(((0,), (0, 1), (1, 7)))
        )
        version = rng.choice((9, 8, 7, 9))
        return self._send(
            slot,
            OffsetCommitRequest(
                group_id=self._group_id,
                generation_id_or_member_epoch=generation_id,
                member_id="" if simple else slot.member_id,
                group_instance_id=None if simple else rng.choices((slot.instance_id, None, "i0"), (8, 1, 1))[0],
                topics=(OffsetCommitRequestTopic(name=topic, partitions=partitions),),
            ),
            version,
            shared=True,
        )

    def _fetch_offsets(self, slot: _Slot) -> Move:
        wanted = OffsetFetchRequestTopics(name=self._topic, partition_indexes=(0, 1))
        group = OffsetFetchRequestGroup(group_id=self._group_id, topics=None if self._rng.random() < 0.5 else (wanted,))
        return self._send(slot, OffsetFetchRequest(groups=(group,), require_stable=self._rng.random() < 0.5), 8, shared=True)

    def _delete_offsets(self, slot: _Slot) -> Move:
        topic = self._rng.choice((self._topic, self._topic, "unknown"))
        partitions = tuple(OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1))
        request = OffsetDeleteRequest(
            group_id=self._group_id, topics=(OffsetDeleteRequestTopic(name=topic, partitions=partitions),)
        )
        return self._send(slot, request, 0, shared=True)

    def _delete_group(self, slot: _Slot) -> Move:
        return self._send(slot, DeleteGroupsRequest(groups_names=(self._group_id,)), 2, shared=True)

    def _wait(self, slot: _Slot) -> Move:
        """Return a move with a pause in which short sessions and short join phases end."""
        return attrs.evolve(self._heartbeat(slot), pause_ms=self._rng.choice((800, 1_700)))

    def _send(self, slot: _Slot, message: Struct, version: int, shared: bool = False) -> Move:
        """Return a request, which may wait, on the slot's connection, or one that does not wait on the shared connection."""
        connection = "shared" if shared else f"{slot.number}"
        return Move(connection, message, version, -1 if shared else slot.number)
