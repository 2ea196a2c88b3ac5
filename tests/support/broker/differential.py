"""Comparison of Apache Kafka and our coordinator, which get the same sequence of requests.

A sequence is made while it runs against the real broker: a seed draws the next request of each of a few members, and later
requests contain the member ids that the broker assigned. The requests with their times are a *recording*. The recording is
then played to our broker in virtual time, request by request at the same moments, and our broker assigns the same ids.
So responses can be compared as they are: error codes, generations, leaders, protocols, members, assignments, and the
group's state after every step.

A timer that ends within the few milliseconds around a request may end before it on one side and after it on the other:
Kafka's timers are late on a busy machine. So a sequence that differs is played again with timers that are late by several
amounts, and then recorded again, before it counts as a difference (see :func:`differences`).
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
import struct
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import attrs

from consumer_coord.broker.classic_group import GroupMetadata
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.java_hash import hash_map_order
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.broker.purgatory import DelayedOperation, Purgatory
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.codec import decode_response, encode_request
from consumer_coord.wire.messages.group import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
)
from consumer_coord.wire.messages.offsets import OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse
from consumer_coord.wire.schema import Struct
from tests.support.broker.sequences import Player

#: Time for the response to a request that may have to wait, and for changes of the group after a step, in seconds.
_PATIENCE_S = 0.05
_SETTLE_S = 0.01
#: Delays of timers, tried one after the other, in milliseconds.
_LATENESS_MS = (5, 15, 40, 100)
#: How often a differing recording is played with other moments at which Kafka may have handled its requests.
_SHAKES = 60
_LONGEST_MS = 400
#: The configuration of the tests' real broker, as far as it matters here.
CONFIG = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "offsets.topic.num.partitions": 1,
    "auto.create.topics.enable": "false",
}
TOPIC_PARTITIONS = 2


@attrs.define
class Step:
    """A request: its time, its content, and its outcome.

    ``answered_in`` is the number of the last step sent before the response came, -1 for never. ``state`` is the response to a
    DescribeGroups after the step, without the fields that cannot be compared.  Kafka handled the request between ``at_s`` and
    ``answered_at_s``, and the DescribeGroups between ``probed_at_s`` and ``state_at_s``.
    """

    at_s: float
    message: Struct
    version: int
    response: Struct | None = None
    answered_in: int = -1
    answered_at_s: float = math.inf
    probed_at_s: float = 0.0
    state_at_s: float = 0.0
    state: Any = None
    #: The member id that this request was assigned, if any, from responses and states.
    new_id: str | None = None


@attrs.define
class Recording:
    """A whole sequence. ``seed`` makes the same requests again, except for ids and timing."""

    seed: int
    group_id: str
    topic: str
    steps: list[Step] = attrs.field(factory=list)


class Broker(Protocol):
    """A broker that responds to one request at a time on each connection."""

    async def call(self, connection: str, message: Struct, version: int) -> Struct:
        """Send a request on a connection, which is opened when it is first named."""


# -- the real broker


class RealBroker:
    """Apache Kafka over TCP."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._streams: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._correlation_id = 0

    async def call(self, connection: str, message: Struct, version: int) -> Struct:
        """Send a request as :class:`Broker` describes."""
        async with self._locks.setdefault(connection, asyncio.Lock()):
            if connection not in self._streams:
                self._streams[connection] = await asyncio.open_connection(self.host, self.port)
            reader, writer = self._streams[connection]
            self._correlation_id += 1
            frame = encode_request(message, version, self._correlation_id, "client")
            writer.write(struct.pack(">i", len(frame)) + frame)
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            return decode_response(api_for(type(message)).response, version, await reader.readexactly(length))[1]

    async def close(self) -> None:
        """Close all connections."""
        for _, writer in self._streams.values():
            writer.close()
            await writer.wait_closed()


async def record(broker: RealBroker, seed: int, group_id: str, topic: str, length: int, pace: float) -> Recording:
    """Make a sequence of ``length`` steps on the real broker; a greater ``pace`` gives every step more time."""
    recording = Recording(seed, group_id, topic)
    player = Player(random.Random(seed), group_id, topic)
    await await_coordinator(broker, group_id)
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    waiting: dict[int, asyncio.Future[Struct]] = {}
    known_ids: set[str] = set()
    for index in range(length):
        move = player.next_move()
        if move.pause_ms:
            await asyncio.sleep(move.pause_ms / 1000)
        step = Step(clock() - begun_s, move.message, move.version)
        recording.steps.append(step)
        waiting[index] = asyncio.ensure_future(broker.call(f"{seed}-{move.connection}", move.message, move.version))
        note_answer(step, waiting[index], begun_s)
        await asyncio.wait([waiting[index]], timeout=_PATIENCE_S * pace)
        await asyncio.sleep(_SETTLE_S * pace)
        step.probed_at_s = clock() - begun_s
        probe = await broker.call(f"{seed}-probe", _probe(group_id), 5)
        step.state_at_s = clock() - begun_s
        for number, future in sorted(waiting.items()):
            if future.done():
                answered = recording.steps[number]
                answered.response, answered.answered_in = future.result(), index
                player.received(number, answered.message, answered.version, future.result())
                del waiting[number]
        player.sent(index, move, index in waiting)
        step.state = state_of(probe)
        _note_new_ids(recording.steps, probe, known_ids)
    for future in waiting.values():
        future.cancel()
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    return recording


class Timed(Protocol):
    """A step of either protocol."""

    answered_at_s: float


def note_answer(step: Timed, answer: asyncio.Future[Struct], begun_s: float) -> None:
    """Record in a step when its response comes, in seconds since ``begun_s``."""
    clock = asyncio.get_running_loop().time
    answer.add_done_callback(lambda done: setattr(step, "answered_at_s", clock() - begun_s))


async def await_coordinator(broker: RealBroker, group_id: str) -> None:
    """Wait until a fresh cluster has a coordinator for the group."""
    for _ in range(300):
        found = await broker.call(f"{group_id}-lookup", FindCoordinatorRequest(key_type=0, coordinator_keys=(group_id,)), 4)
        heartbeat = await broker.call(
            f"{group_id}-lookup", HeartbeatRequest(group_id=group_id, generation_id=1, member_id="x"), 4
        )
        if found.coordinators[0].error_code == 0 and heartbeat.error_code == error_codes.UNKNOWN_MEMBER_ID:  # type: ignore[attr-defined]
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the broker has no coordinator for the group")


def _note_new_ids(steps: Sequence[Step], probe: Struct, known: set[str]) -> None:
    """Find the id that each request was assigned: in its own response, or as a new member of the group."""
    for step in steps:
        if step.new_id is None and isinstance(step.response, JoinGroupResponse) and _is_fresh_join(step.message):
            step.new_id = step.response.member_id or None
            known.update([step.new_id] if step.new_id else [])
    assert isinstance(probe, DescribeGroupsResponse)
    unseen = [one.member_id for one in probe.groups[0].members if one.member_id not in known]
    for member_id in unseen:
        known.add(member_id)
        if _is_fresh_join(steps[-1].message):
            steps[-1].new_id = member_id


def _is_fresh_join(message: Struct) -> bool:
    return isinstance(message, JoinGroupRequest) and not message.member_id


def _probe(group_id: str) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=(group_id,))


# -- ours


class GivenIds(random.Random):
    """Draws the ids that Kafka assigned."""

    next_number: int | None = None

    def getrandbits(self, k: int, /) -> int:
        """Return the number in the next id, or a drawn number."""
        if k == 128 and self.next_number is not None:
            number, self.next_number = self.next_number, None
            return number
        return super().getrandbits(k)


def replay(recording: Recording, late_ms: int = 0) -> Recording:
    """Play a recording to our broker in virtual time, with timers ``late_ms`` late; return the recording of its responses."""
    # If the leader leaves, Kafka's next leader depends on a hash map of random ids; ours is the oldest member. This is an
    # accepted difference; here Kafka's order is used, so that a sequence can be compared beyond such a point.
    own = GroupMetadata.leader_candidates
    GroupMetadata.leader_candidates = lambda self: hash_map_order(self.members)  # type: ignore[method-assign]  # see above
    try:
        return virtual.run(_replay(recording, late_ms), seed=recording.seed)
    finally:
        GroupMetadata.leader_candidates = own  # type: ignore[method-assign]  # see above


class LatePurgatory(Purgatory):
    """A purgatory whose timers are a little late."""

    late_ms = 0

    def schedule(self, delay_ms: float, callback: Callable[[], None], not_before: float = 0.0) -> DelayedOperation:
        """Schedule as the base class does, but later."""
        return super().schedule(delay_ms + self.late_ms if delay_ms else 0, callback, not_before)

    def put_off(self, operation: DelayedOperation, delay_ms: float) -> None:
        """Put off as the base class does, but later."""
        super().put_off(operation, delay_ms + self.late_ms)


def be_late(cluster: BrokerCluster, late_ms: int) -> None:
    """Make the timers of a cluster's only broker late."""
    late = cluster.nodes[0].purgatory
    late.__class__ = LatePurgatory  # the coordinator already has a reference to this purgatory
    assert isinstance(late, LatePurgatory)
    late.late_ms = late_ms


def caller(cluster: BrokerCluster) -> Callable[[Struct, int], Awaitable[Struct]]:
    """Return a function that sends a message in a version to a cluster's only broker."""
    apis = KafkaApis(cluster.nodes[0])

    async def call(message: Struct, version: int) -> Struct:
        answer = await apis.handle(encode_request(message, version, 1, "client"), ClientConnection())
        assert answer is not None
        return decode_response(api_for(type(message)).response, version, answer)[1]

    return call


async def until(at_s: float) -> None:
    """Wait for a moment of the loop's clock."""
    await asyncio.sleep(max(at_s - asyncio.get_running_loop().time(), 0))


async def _replay(recording: Recording, late_ms: int) -> Recording:
    ids = GivenIds(recording.seed)
    loop = asyncio.get_running_loop()
    cluster = BrokerCluster(
        BrokerConfig.from_mapping(CONFIG),
        {recording.topic: TOPIC_PARTITIONS},
        random=ids,
        wall_clock_ms=lambda: round(loop.time() * 1000),
    )
    be_late(cluster, late_ms)
    cluster.start_all()
    call = caller(cluster)
    played = Recording(recording.seed, recording.group_id, recording.topic)
    waiting: dict[int, asyncio.Future[Struct]] = {}

    for index, original in enumerate(recording.steps):
        await until(original.at_s)
        step = Step(original.at_s, original.message, original.version)
        played.steps.append(step)
        ids.next_number = None if original.new_id is None else uuid.UUID(original.new_id[-36:]).int
        waiting[index] = asyncio.ensure_future(call(original.message, original.version))
        await until(original.probed_at_s)
        step.state = state_of(await call(_probe(recording.group_id), 5))
        for number, future in sorted(waiting.items()):
            if future.done():
                answered = played.steps[number]
                answered.response, answered.answered_in = future.result(), index
                del waiting[number]
    cluster.close()
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    return played


# -- comparing


def state_of(probe: Struct) -> Any:
    """Return the content of a DescribeGroups response, without the order of members."""
    assert isinstance(probe, DescribeGroupsResponse)
    group = probe.groups[0]
    members = sorted(
        (one.member_id, one.group_instance_id, one.client_id, one.client_host, one.member_metadata, one.member_assignment)
        for one in group.members
    )
    return (group.error_code, group.group_state, group.protocol_type, group.protocol_data, tuple(members))


def comparable(response: Struct | None) -> Any:
    """Return a response without fields that may differ: the order of members and topics, and throttling."""
    if response is None:
        return None
    if isinstance(response, JoinGroupResponse):
        return attrs.evolve(response, members=tuple(sorted(response.members, key=lambda one: one.member_id)))
    if isinstance(response, OffsetCommitResponse):
        results = [(topic.name, one.partition_index, one.error_code) for topic in response.topics for one in topic.partitions]
        return sorted(results)
    if isinstance(response, OffsetDeleteResponse):
        return (
            response.error_code,
            sorted((t.name, one.partition_index, one.error_code) for t in response.topics for one in t.partitions),
        )
    if isinstance(response, OffsetFetchResponse):
        return [
            (
                group.error_code,
                sorted(
                    (t.name, one.partition_index, one.committed_offset, one.metadata, one.error_code)
                    for t in group.topics
                    for one in t.partitions
                ),
            )
            for group in response.groups
        ]
    return response


def compare(kafka: Recording, ours: Recording) -> list[str]:
    """Return how our broker's responses differ from Kafka's, as text; the first few steps that differ."""
    found = []
    for index, (theirs, mine) in enumerate(zip(kafka.steps, ours.steps, strict=True)):
        if forgotten(ours.steps, theirs, mine, _members_of):
            continue
        if comparable(theirs.response) != comparable(mine.response):
            found.append(f"step {index}: {theirs.message}\n  Kafka {theirs.response}\n  ours  {mine.response}")
        elif theirs.answered_in != mine.answered_in:
            found.append(
                f"step {index}: {theirs.message}\n  answered in step {theirs.answered_in} by Kafka, {mine.answered_in} by ours"
            )
        if theirs.state != mine.state:
            found.append(f"after step {index}: {theirs.message}\n  Kafka {theirs.state}\n  ours  {mine.state}")
    return found[:4]


class Compared(Protocol):
    """The fields of a step that :func:`forgotten` needs."""

    message: Struct
    response: Struct | None
    answered_in: int
    state: Any


def forgotten(ours: Sequence[Compared], theirs: Compared, mine: Compared, members_of: Callable[[Any], set[str]]) -> bool:
    """Return whether an accepted difference applies: Kafka drops a waiting JoinGroup or SyncGroup without a response.

    There are two cases. The member sends the request again on another connection: ours responds to the first request with
    REBALANCE_IN_PROGRESS. Or the member is removed while its SyncGroup waits: ours responds UNKNOWN_MEMBER_ID.
    ``members_of`` returns the member ids in a state.
    """
    if theirs.response is not None or mine.answered_in < 0:
        return False
    error_code = getattr(mine.response, "error_code", None)
    member_id = getattr(mine.message, "member_id", "")
    by = ours[mine.answered_in]
    if error_code == error_codes.REBALANCE_IN_PROGRESS:
        return type(by.message) is type(mine.message) and getattr(by.message, "member_id", "") == member_id
    if error_code == error_codes.UNKNOWN_MEMBER_ID and isinstance(mine.message, SyncGroupRequest):
        return member_id not in members_of(by.state)
    return False


def _members_of(state: Any) -> set[str]:
    return {member[0] for member in state[4]}


@attrs.define
class Outcome:
    """The result of a batch of sequences. ``differing``: seed -> the differences of each attempt."""

    sequences: int = 0
    steps: int = 0
    recorded_again: int = 0
    differing: dict[int, list[str]] = attrs.field(factory=dict)


R = TypeVar("R", bound="Recorded")


class Recorded(Protocol):
    """A recording of either protocol."""

    #: Attrs classes, see :class:`Timed`.
    steps: Any


def shaken(recording: R, shake: random.Random) -> R:
    """Return the recording with other moments, between sending and response, at which Kafka may have handled each request."""

    def between(earliest_s: float, latest_s: float) -> float:
        return shake.choice((earliest_s, latest_s, shake.uniform(earliest_s, latest_s)))

    found = copy.copy(recording)
    found.steps = [
        attrs.evolve(
            step,
            at_s=between(step.at_s, min(step.answered_at_s, step.probed_at_s)),
            probed_at_s=between(step.probed_at_s, step.state_at_s),
        )
        for step in recording.steps
    ]
    return found


async def compare_all(
    connect: Callable[[], Awaitable[RealBroker]],
    seeds: Sequence[int],
    record: Callable[[RealBroker, int, int], Awaitable[R]],
    replay: Callable[[R, int], R],
    compare: Callable[[R, R], list[str]],
    *,
    at_once: int,
    tries: int,
) -> Outcome:
    """Record and compare a sequence for each seed, ``at_once`` at a time; record a differing one again with more time.

    ``record(broker, seed, attempt)``; ``replay(recording, late_ms)`` runs in a thread: a virtual loop runs to its end, and one
    loop cannot run inside another.
    """
    outcome = Outcome()
    places = asyncio.Semaphore(at_once)

    async def one(seed: int) -> None:
        async with places:
            found: list[str] = []
            for attempt in range(tries):
                broker = await connect()
                try:
                    recording = await record(broker, seed, attempt)
                finally:
                    await broker.close()
                found = compare(recording, await asyncio.to_thread(replay, recording, 0))
                for late_ms in _LATENESS_MS:
                    if found and not compare(recording, await asyncio.to_thread(replay, recording, late_ms)):
                        found = []
                # On a busy machine, requests wait for different times before they are handled.
                shake = random.Random(seed)
                for _ in range(_SHAKES):
                    if found:
                        late_ms = shake.choice((0, *_LATENESS_MS, _LONGEST_MS))
                        if not compare(recording, await asyncio.to_thread(replay, shaken(recording, shake), late_ms)):
                            found = []
                outcome.steps += len(recording.steps)
                if not found:
                    break
                outcome.recorded_again += 1
            outcome.sequences += 1
            if found:
                outcome.differing[seed] = found

    await asyncio.gather(*(one(seed) for seed in seeds))
    return outcome


async def differences(
    connect: Callable[[], Awaitable[RealBroker]],
    topic: str,
    seeds: Sequence[int],
    *,
    length: int = 30,
    at_once: int = 20,
    tries: int = 5,
    name: str = "differential",
    on_recording: Callable[[Recording], None] = lambda recording: None,
) -> Outcome:
    """Compare as :func:`compare_all`, for the classic protocol; ``on_recording`` gets every recording of Kafka's responses."""

    async def recorded(broker: RealBroker, seed: int, attempt: int) -> Recording:
        group_id = f"{name}-{seed}-{attempt}-{uuid.uuid4()}"
        recording = await record(broker, seed, group_id, topic, length, 1 + 2 * attempt)
        on_recording(recording)
        return recording

    return await compare_all(connect, seeds, recorded, replay_alone, compare, at_once=at_once, tries=tries)


_alone = threading.Lock()


def replay_alone(recording: Recording, late_ms: int) -> Recording:
    """Replay as :func:`replay`, one recording at a time, because it replaces a method."""
    with _alone:
        return replay(recording, late_ms)
