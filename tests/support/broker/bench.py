"""A group coordinator on a virtual-time loop, and members that send requests to it.

Times are in virtual milliseconds; nothing here waits in real time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

import attrs

from consumer_coord.broker.classic_group import GroupMetadata, GroupState
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.consumer_group.topics_image import MetadataImage
from consumer_coord.broker.group_coordinator import GroupCoordinator
from consumer_coord.broker.group_offsets import Commit, Committer
from consumer_coord.broker.group_store import StoreHooks
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.purgatory import Purgatory
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.topics import Topics
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import embedded_protocol as membership
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from consumer_coord.wire.offsets_topic import OffsetCommitValue
from consumer_coord.wire.schema import ZERO_UUID

T = TypeVar("T")

GROUP = "group"
SESSION_MS = 10_000
REBALANCE_MS = 30_000
#: name -> metadata
Protocols = Mapping[str, bytes]
RANGE: Protocols = {"range": b"topics"}


def subscription(*topics: str) -> bytes:
    """Return a consumer's subscription to these topics."""
    return membership.encode_subscription(membership.Subscription(topics))


async def pause(ms: float = 0) -> None:
    """Let virtual time pass, and run everything that is ready."""
    await asyncio.sleep(ms / 1000)
    for _ in range(10):
        await asyncio.sleep(1e-7)  # not 0: timers that are due now run only when nothing else is ready


class Clock:
    """The calendar: follows the loop's time from a date in 2023, and can be moved ahead."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return 1_700_000_000_000 + self.ahead_ms + round(asyncio.get_running_loop().time() * 1000)


class Bench:
    """A coordinator of all partitions of ``__consumer_offsets``, by default one."""

    def __init__(self, settings: Mapping[str, object] | None = None, hooks: StoreHooks | None = None) -> None:
        defaults = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
        self.config = BrokerConfig.from_mapping({**defaults, **(settings or {})})
        self.clock = Clock()
        self.purgatory = Purgatory()
        self.hooks = hooks
        self.topics = Topics(self.config, (0,), lambda *_: PartitionLog())
        self.image = MetadataImage(self.topics)
        self.coordinator = self._new_coordinator()
        self.logs = [PartitionLog() for _ in range(self.config.offsets_topic_num_partitions)]
        self.epoch = 0

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.config,
            random=Random(1),
            wall_clock_ms=self.clock,
            purgatory=self.purgatory,
            hooks=self.hooks,
            image=self.image,
        )

    def add_topic(self, name: str, partitions: int) -> uuid.UUID:
        """Add a topic that the coordinator knows, and return its id."""
        topic_id = uuid.UUID(int=len(self.topics.by_name) + 1)
        self.topics.create(name, partitions, topic_id, replication_factor=1, configs={}, is_up=lambda _: True)
        return topic_id

    def grow_topic(self, name: str, partitions: int) -> None:
        """Increase the number of partitions of a topic."""
        self.topics.grow(self.topics.by_name[name], partitions, lambda _: True)

    def elect(self) -> None:
        """Lead all partitions of ``__consumer_offsets``."""
        for partition, log in enumerate(self.logs):
            self.coordinator.on_election(partition, log, self.epoch)

    def resign(self) -> None:
        """Resign from all partitions of ``__consumer_offsets``."""
        for partition in range(len(self.logs)):
            self.coordinator.on_resignation(partition)

    def restart(self) -> None:
        """Replace the coordinator by a new one, which has only the logs."""
        self.coordinator.close()
        self.epoch += 1
        self.coordinator = self._new_coordinator()
        self.elect()

    def close(self) -> None:
        """Stop all timers."""
        self.coordinator.close()
        self.purgatory.close()

    def group(self, group_id: str = GROUP) -> GroupMetadata:
        """Return the group, which must exist."""
        group = self.coordinator.group(group_id)
        assert group is not None, f"there is no group {group_id}"
        return group

    def state(self, group_id: str = GROUP) -> GroupState:
        """Return the group's state."""
        return self.group(group_id).state

    # -- requests

    async def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Protocols = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
        group_id: str = GROUP,
    ) -> JoinGroupResponse:
        """Send one JoinGroup and return its response."""
        return await self.coordinator.join_group(
            RequestContext(version, "client"),
            JoinGroupRequest(
                group_id=group_id,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                member_id=member_id,
                group_instance_id=instance_id,
                protocol_type=protocol_type,
                protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols.items()),
            ),
        )

    async def join_twice(self, **how: Any) -> JoinGroupResponse:
        """Join as a new dynamic member: request an id, then join with it."""
        first = await self.join(**how)
        if first.error_code != error_codes.MEMBER_ID_REQUIRED:
            return first
        return await self.join(first.member_id, **how)

    def start_join(self, member_id: str = "", **how: Any) -> asyncio.Task[JoinGroupResponse]:
        """Start a task that joins as :meth:`join`; a member without an id joins twice."""
        if member_id:
            return asyncio.ensure_future(self.join(member_id, **how))
        return asyncio.ensure_future(self.join_twice(**how))

    async def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = None,
        group_id: str = GROUP,
    ) -> SyncGroupResponse:
        """Send one SyncGroup and return its response."""
        return await self.coordinator.sync_group(
            RequestContext(5, "client"),
            SyncGroupRequest(
                group_id=group_id,
                generation_id=generation_id,
                member_id=member_id,
                group_instance_id=instance_id,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
                assignments=tuple(
                    SyncGroupRequestAssignment(member_id=who, assignment=what) for who, what in (assignments or {}).items()
                ),
            ),
        )

    async def heartbeat(self, member_id: str, generation_id: int, instance_id: str | None = None, group_id: str = GROUP) -> int:
        """Send one Heartbeat and return its error code."""
        request = HeartbeatRequest(
            group_id=group_id, generation_id=generation_id, member_id=member_id, group_instance_id=instance_id
        )
        return (await self.coordinator.heartbeat(RequestContext(4), request)).error_code

    async def leave(self, *identities: MemberIdentity | str, group_id: str = GROUP) -> LeaveGroupResponse:
        """Send one LeaveGroup, with member ids or whole identities."""
        members = tuple(
            MemberIdentity(member_id=identity) if isinstance(identity, str) else identity for identity in identities
        )
        return await self.coordinator.leave_group(RequestContext(5), LeaveGroupRequest(group_id=group_id, members=members))

    async def commit(
        self,
        offset: int,
        *,
        topic: str = "orders",
        partition: int = 0,
        generation_id: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        metadata: str | None = None,
        retention_ms: int = -1,
        group_id: str = GROUP,
        version: int = 9,
        topic_id: uuid.UUID = ZERO_UUID,
    ) -> int:
        """Commit one offset and return its error code."""
        committer = Committer(group_id, generation_id, member_id, instance_id, retention_ms)
        commits = [Commit(topic, partition, offset, metadata=metadata, topic_id=topic_id)]
        return (await self.coordinator.offsets.commit(version, committer, commits))[0][1]

    def committed(
        self, topic: str = "orders", partition: int = 0, group_id: str = GROUP, require_stable: bool = False
    ) -> int | None:
        """Return a committed offset, None if there is none, or -1000 minus an error code."""
        error_code, found = self.coordinator.offsets.fetch(group_id, [(topic, partition)], require_stable)
        assert error_code == error_codes.NONE, error_codes.error_name(error_code)
        offset = found[0][2]
        if isinstance(offset, OffsetCommitValue):
            return offset.offset
        return -1000 - offset if offset else None

    # -- whole rebalances

    async def form(self, count: int, **how: Any) -> Members:
        """Form a stable group of ``count`` members; member ``i`` is assigned ``b"i"``."""
        joins = [self.start_join(**how) for _ in range(count)]
        return await self.complete([await join for join in joins], **how)

    async def complete(self, joined: Sequence[JoinGroupResponse], **how: Any) -> Members:
        """Send SyncGroup for all members that joined one generation."""
        assert {one.error_code for one in joined} == {0}, joined
        assert len({one.generation_id for one in joined}) == 1, joined
        leader = joined[0].leader
        generation_id = joined[0].generation_id
        group_id = how.get("group_id", GROUP)
        assignments = {one.member_id: b"%d" % index for index, one in enumerate(joined)}
        syncs = [
            asyncio.ensure_future(
                self.sync(
                    one.member_id,
                    generation_id,
                    assignments if one.member_id == leader else None,
                    group_id=group_id,
                    protocol_type=how.get("protocol_type", "consumer"),
                )
            )
            for one in joined
        ]
        for index, sync in enumerate(syncs):
            response = await sync
            assert (response.error_code, response.assignment) == (0, b"%d" % index)
        return Members(tuple(one.member_id for one in joined), leader, generation_id)


@attrs.frozen
class Members:
    """The members of a stable generation, in the order of their joins."""

    ids: tuple[str, ...]
    leader: str
    generation_id: int

    @property
    def followers(self) -> tuple[str, ...]:
        """All members except the leader."""
        return tuple(member_id for member_id in self.ids if member_id != self.leader)


def on_bench(
    settings: Mapping[str, object] | None = None,
    hooks: Callable[[], StoreHooks] | None = None,
) -> Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Decorate a test ``async def test_…(bench)``: it runs in virtual time, and may leave no task or timer behind."""

    def decorate(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def in_virtual_time() -> None:
            async def main() -> None:
                bench = Bench(settings, None if hooks is None else hooks())
                bench.elect()
                try:
                    await test(bench)
                finally:
                    bench.close()
                    await pause()

            virtual.run(main(), seed=1, strict=True)

        in_virtual_time.__name__ = test.__name__
        in_virtual_time.__doc__ = test.__doc__
        in_virtual_time.__module__ = test.__module__
        return in_virtual_time

    return decorate
