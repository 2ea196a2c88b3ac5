"""Scripted brokers: they respond as Kafka does for a group with one member, unless a test scripts other responses.

As on a real broker, the requests of a connection are served one at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import uuid
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import attrs

from consumer_coord.broker.classic_group import GroupMetadata
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.broker.record_batch import build_batch
from consumer_coord.broker.requests.failed import error_response
from consumer_coord.environment import Receiver
from consumer_coord.errors import CoordinatorError, DisconnectedError
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.apis import APIS
from consumer_coord.wire.codec import Request, decode_request, encode_response
from consumer_coord.wire.embedded_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from consumer_coord.wire.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from consumer_coord.wire.messages.group import (
    Coordinator,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from consumer_coord.wire.messages.log import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
)
from consumer_coord.wire.messages.security import SaslHandshakeRequest, SaslHandshakeResponse
from consumer_coord.wire.schema import Struct
from tests.support.group.fetched import fetch_answer

R = TypeVar("R")

GROUP = "orders"
LATENCY_MS = 1.0
#: The time of scripted brokers and their clients, in milliseconds since 1970.
WALL_CLOCK_MS = 1_700_000_000_000


class Drop:
    """Ends the connection instead of a response."""


class Silence:
    """Sends no response, and leaves the connection open."""


class Pass:
    """Sends the response that the broker would send without a script."""


DROP = Drop()
SILENCE = Silence()
PASS = Pass()

#: An error code, a whole response, DROP, SILENCE, PASS, or a function (perhaps a coroutine function) of the request.
Reply: TypeAlias = "int | Drop | Silence | Pass | Struct | Callable[[Any], Any]"


@attrs.frozen
class Seen:
    """A request as a broker received it."""

    at_ms: float
    node: int
    connection: int
    version: int
    message: Any
    client_id: str | None = None


class FakeBrokers:
    """``brokers`` brokers, ``broker-0:9092`` and so on; the group's coordinator is ``coordinator``.

    ``topics`` are names and numbers of partitions, ``others`` further members of the group (id -> subscription), and
    ``leader`` the member that leads, if not the tested one.  A follower gets ``assignment``.
    """

    def __init__(self, topics: Mapping[str, int] | None = None, brokers: int = 1) -> None:
        self.topics = dict(topics if topics is not None else {"t": 4})
        self.internal: set[str] = set()
        self.topic_errors: dict[str, int] = {}
        self.racks: dict[int, str | None] = {}
        self.nodes = list(range(brokers))
        self.cluster_id = "fake"
        self.down: set[int] = set()
        self.coordinator = 0
        self.generation = 0
        self.others: dict[str, Subscription] = {}
        self.leader: str | None = None
        self.protocol: str | None = None
        self.assignment: Mapping[str, Sequence[int]] = {}
        self.committed: dict[TopicPartition, int] = {}
        #: Partition -> the timestamp of its records, in milliseconds since 1970
        self.written_ms: dict[TopicPartition, int] = {}
        #: key -> newest version that the brokers serve, if it is not the newest of this package
        self.newest: dict[int, int] = {}
        self.seen: list[Seen] = []
        self.opened: list[int] = []
        self._queued: dict[type[Any], deque[Reply]] = defaultdict(deque)
        self._always: dict[type[Any], Reply] = {}
        self._members = 0
        self._transports: list[_Transport] = []

    # -- the script -------------------------------------------------------------------------------------------------

    def answer(self, request: type[Any], *replies: Reply) -> None:
        """Script the responses to the next requests of a kind, in order."""
        self._queued[request].extend(replies)

    def drop_answers(self) -> None:
        """Discard the scripted responses that were not sent."""
        self._queued.clear()

    def always(self, request: type[Any], reply: Reply | None) -> None:
        """Script the response to all further requests of a kind; None restores the usual response."""
        if reply is None:
            self._always.pop(request, None)
        else:
            self._always[request] = reply

    def scripted(self, request: type[Any]) -> Callable[[Any], Any]:
        """Return the function that :meth:`always` set for a kind of request."""
        reply = self._always[request]
        assert callable(reply)
        return reply

    def all(self, request: type[R]) -> list[R]:
        """Return the requests of a kind, in order."""
        return [seen.message for seen in self.seen if isinstance(seen.message, request)]

    def last(self, request: type[R]) -> R:
        """Return the last request of a kind."""
        return self.all(request)[-1]

    def times(self, request: type[Any]) -> list[float]:
        """Return the times of the requests of a kind, in virtual milliseconds."""
        return [seen.at_ms for seen in self.seen if isinstance(seen.message, request)]

    def kinds(self) -> list[str]:
        """Return the names of all requests of the group's protocol, in order."""
        left_out = (ApiVersionsRequest, MetadataRequest, HeartbeatRequest)
        return [
            type(seen.message).__name__.removesuffix("Request") for seen in self.seen if not isinstance(seen.message, left_out)
        ]

    def disconnect(self) -> None:
        """End all connections."""
        for transport in self._transports:
            transport.end()
        self._transports.clear()

    # -- the client's connections ----------------------------------------------------------------------------------

    @property
    def open(self) -> int:
        """The number of open connections."""
        return sum(not transport.over for transport in self._transports)

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """The bootstrap addresses for clients."""
        return tuple((f"broker-{node}", 9092) for node in self.nodes)

    async def connect(self, host: str, port: int) -> _Transport:
        """Connect to a broker, as a :class:`consumer_coord.environment.Connector`."""
        await asyncio.sleep(LATENCY_MS / 1000)
        node = int(host.removeprefix("broker-"))
        if node in self.down:
            raise DisconnectedError(f"{host}:{port} refused the connection")
        self.opened.append(node)
        transport = _Transport(self, node, len(self.opened))
        self._transports.append(transport)
        return transport

    async def handle(self, node: int, connection: int, frame: bytes) -> bytes | Drop | Silence:
        """Handle one request of one connection."""
        request = decode_request(frame)
        at_ms = asyncio.get_running_loop().time() * 1000
        self.seen.append(Seen(at_ms, node, connection, request.version, request.message, request.client_id))
        kind = type(request.message)
        reply: Any
        if self._queued[kind]:
            reply = self._queued[kind].popleft()
        else:
            reply = self._always.get(kind, PASS)
        while callable(reply):
            reply = reply(request.message)
            if inspect.isawaitable(reply):
                reply = await _as_coroutine(reply)
        if isinstance(reply, int):
            reply = error_response(request.message, request.version, reply)
        if isinstance(reply, (Drop, Silence)):
            return reply
        if isinstance(reply, Pass):
            return await self.serve(node, request, frame)
        if isinstance(reply, FindCoordinatorResponse) and request.version < 4:
            found = reply.coordinators[0]
            reply = FindCoordinatorResponse(
                error_code=found.error_code, node_id=found.node_id, host=found.host, port=found.port
            )
        return encode_response(reply, request.version, request.correlation_id)

    async def serve(self, node: int, request: Request, frame: bytes) -> bytes | Drop:
        """Return the usual response to a frame."""
        return encode_response(self._usual(request.message), request.version, request.correlation_id)

    # -- the usual answers ------------------------------------------------------------------------------------------

    def _usual(self, request: Any) -> Struct:
        name = type(request).__name__.removesuffix("Request")
        answer: Struct = getattr(self, f"_{_snake(name)}")(request)
        return answer

    def usual(self, request: Any) -> Any:
        """Return the response that the broker would send without a script."""
        return self._usual(request)

    def _api_versions(self, request: ApiVersionsRequest) -> Struct:
        return ApiVersionsResponse(
            api_keys=tuple(
                ApiVersion(
                    api_key=api.key,
                    min_version=api.min_version,
                    max_version=self.newest.get(api.key, api.max_version),
                )
                for api in APIS.values()
            )
        )

    def _metadata(self, request: MetadataRequest) -> Struct:
        if request.topics is None:
            wanted = sorted(self.topics)
        else:
            wanted = [topic.name for topic in request.topics if topic.name is not None]
        return MetadataResponse(
            brokers=tuple(
                MetadataResponseBroker(node_id=node, host=f"broker-{node}", port=9092, rack=self.racks.get(node))
                for node in self.nodes
                if node not in self.down
            ),
            cluster_id=self.cluster_id,
            controller_id=0,
            topics=tuple(self._topic(name) for name in wanted),
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        code = self.topic_errors.get(name, codes.NONE if name in self.topics else codes.UNKNOWN_TOPIC_OR_PARTITION)
        numbers = range(self.topics.get(name, 0)) if code == codes.NONE else range(0)
        return MetadataResponseTopic(
            error_code=code,
            name=name,
            topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, name),
            is_internal=name in self.internal,
            partitions=tuple(
                MetadataResponsePartition(
                    error_code=codes.NONE,
                    partition_index=number,
                    leader_id=number % len(self.nodes),
                    leader_epoch=0,
                    replica_nodes=(number % len(self.nodes),),
                    isr_nodes=(number % len(self.nodes),),
                )
                for number in numbers
            ),
        )

    def _find_coordinator(self, request: FindCoordinatorRequest) -> Struct:
        return found_at(self.coordinator, (request.coordinator_keys or [GROUP])[0])

    def _join_group(self, request: JoinGroupRequest) -> Struct:
        if not request.member_id and request.group_instance_id is None:
            self._members += 1
            return JoinGroupResponse(error_code=codes.MEMBER_ID_REQUIRED, member_id=f"member-{self._members}")
        self.generation += 1
        return self.joined(request)

    def joined(self, request: JoinGroupRequest, **changes: Any) -> JoinGroupResponse:
        """Return a successful response to a JoinGroup, with some fields changed."""
        member_id = request.member_id or f"{request.group_instance_id}-1"
        leader = self.leader or member_id
        protocol = next((each for each in request.protocols if each.name == self.protocol), request.protocols[0])
        rows = [JoinGroupResponseMember(member_id, request.group_instance_id, protocol.metadata)]
        rows += [
            JoinGroupResponseMember(other, None, encode_subscription(subscription))
            for other, subscription in self.others.items()
        ]
        answer = JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=protocol.name,
            leader=leader,
            member_id=member_id,
            members=tuple(rows) if leader == member_id else (),
        )
        return attrs.evolve(answer, **changes)

    def _sync_group(self, request: SyncGroupRequest) -> Struct:
        ours = [each.assignment for each in request.assignments if each.member_id == request.member_id]
        return self.synced(ours[0] if ours else encode_assignment(Assignment(self.assignment)))

    @staticmethod
    def synced(assignment: bytes, **changes: Any) -> SyncGroupResponse:
        """Return a successful response to a SyncGroup, with some fields changed."""
        return attrs.evolve(SyncGroupResponse(assignment=assignment), **changes)

    def _sasl_handshake(self, request: SaslHandshakeRequest) -> Struct:
        # These listeners have no SASL.
        return SaslHandshakeResponse(error_code=codes.ILLEGAL_SASL_STATE)

    def _describe_groups(self, request: DescribeGroupsRequest) -> Struct:
        others = tuple(
            DescribedGroupMember(member_id=other, client_id=f"client-of-{other}", client_host="/10.0.0.7")
            for other in self.others
        )
        return DescribeGroupsResponse(
            groups=tuple(DescribedGroup(group_id=group, group_state="Stable", members=others) for group in request.groups)
        )

    def _heartbeat(self, request: HeartbeatRequest) -> Struct:
        return HeartbeatResponse()

    def _leave_group(self, request: LeaveGroupRequest) -> Struct:
        return LeaveGroupResponse(
            members=tuple(MemberResponse(each.member_id, each.group_instance_id, codes.NONE) for each in request.members)
        )

    def _offset_commit(self, request: OffsetCommitRequest) -> Struct:
        for topic in request.topics:
            for row in topic.partitions:
                self.committed[TopicPartition(topic.name, row.partition_index)] = row.committed_offset
        return commit_answer(request)

    def _offset_fetch(self, request: OffsetFetchRequest) -> Struct:
        return fetch_answer(request, self.committed)

    def _list_offsets(self, request: ListOffsetsRequest) -> Struct:
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        ListOffsetsPartitionResponse(
                            partition_index=row.partition_index,
                            error_code=codes.NONE,
                            offset=0 if row.timestamp == -2 else 100,
                            timestamp=-1,
                        )
                        for row in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def _fetch(self, request: FetchRequest) -> Struct:
        """Return one record at each offset that is asked for."""
        names = {uuid.uuid5(uuid.NAMESPACE_DNS, name): name for name in self.topics}

        def row(topic: str, wanted: FetchPartition) -> PartitionData:
            written_ms = self.written_ms.get(TopicPartition(topic, wanted.partition), WALL_CLOCK_MS)
            batch = build_batch([(None, b"v")], base_offset=wanted.fetch_offset, timestamp_ms=written_ms, leader_epoch=0)
            return PartitionData(partition_index=wanted.partition, error_code=codes.NONE, high_watermark=100, records=batch)

        return FetchResponse(
            responses=tuple(
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=tuple(row(topic.topic or names[topic.topic_id], one) for one in topic.partitions),
                )
                for topic in request.topics
            )
        )


class RealCoordinator(FakeBrokers):
    """Scripted brokers that use the embedded broker for the requests without a script: real conversations."""

    def __init__(self, topics: Mapping[str, int] | None = None, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(topics)
        config = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1, **(settings or {})}
        self.cluster = BrokerCluster(
            BrokerConfig.from_mapping(config),
            self.topics,
            random=random.Random(5),
            wall_clock_ms=lambda: WALL_CLOCK_MS,
        )
        self.cluster.start_all()

    async def serve(self, node: int, request: Request, frame: bytes) -> bytes | Drop:
        """Return the embedded broker's response."""
        try:
            return await KafkaApis(self.cluster.nodes[node]).handle(frame, ClientConnection()) or DROP
        except CoordinatorError:
            return DROP

    @property
    def group(self) -> GroupMetadata:
        """The group of its coordinator."""
        found = self.cluster.nodes[0].coordinator.group(GROUP)
        assert found is not None
        return found

    @property
    def state(self) -> str:
        """The group's state, in Kafka's spelling."""
        return self.group.state.value


def found_at(node: int, group: str = GROUP) -> FindCoordinatorResponse:
    """Return a response to FindCoordinator."""
    return FindCoordinatorResponse(
        coordinators=(Coordinator(key=group, node_id=node, host=f"broker-{node}", port=9092, error_code=codes.NONE),)
    )


def offsets_of(request: OffsetCommitRequest) -> dict[TopicPartition, int]:
    """Return the offsets in a commit."""
    return {
        TopicPartition(topic.name, row.partition_index): row.committed_offset
        for topic in request.topics
        for row in topic.partitions
    }


def held_until(event: asyncio.Event) -> Callable[[Any], Awaitable[Pass]]:
    """Return a script by which a request waits at the broker until the event, and is then handled as usual."""

    async def wait(_: Any) -> Pass:
        await event.wait()
        return PASS

    return wait


def commit_answer(request: OffsetCommitRequest, errors: Mapping[TopicPartition, int] | None = None) -> Struct:
    """Return a response to OffsetCommit, with errors for some partitions."""
    errors = errors or {}
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                tuple(
                    OffsetCommitResponsePartition(
                        row.partition_index, errors.get(TopicPartition(topic.name, row.partition_index), codes.NONE)
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def owned_in(request: JoinGroupRequest) -> set[TopicPartition]:
    """Return the owned partitions in a JoinGroup."""
    subscription = decode_subscription(request.protocols[0].metadata)
    return {TopicPartition(topic, number) for topic, row in subscription.owned_partitions.items() for number in row}


def asked_for(request: JoinGroupRequest) -> list[str]:
    """Return the topics in a JoinGroup."""
    return list(decode_subscription(request.protocols[0].metadata).topics)


def plan_in(request: SyncGroupRequest) -> dict[str, dict[str, list[int]]]:
    """Return the assignments in a SyncGroup."""
    return {
        each.member_id: {topic: list(row) for topic, row in decode_assignment(each.assignment).partitions.items()}
        for each in request.assignments
    }


def assignment_of(**topics: Sequence[int]) -> bytes:
    """Return a member's assignment, encoded: topic=numbers."""
    return encode_assignment(Assignment(topics))


class _Transport:
    """A connection to a scripted broker."""

    def __init__(self, brokers: FakeBrokers, node: int, number: int) -> None:
        self._brokers = brokers
        self._node = node
        self._number = number
        self._answers: deque[bytes | None] = deque()
        self._receiver: Receiver | None = None
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.over = False
        self._server = asyncio.get_running_loop().create_task(self._serve(), name=f"fake broker {node}")

    def send(self, frame: bytes) -> None:
        """Send a frame, as a :class:`consumer_coord.environment.Transport`."""
        if self.over:
            raise DisconnectedError(f"broker-{self._node} closed the connection")
        self._requests.put_nowait(frame)

    def listen(self, receiver: Receiver) -> None:
        """Set the receiver, as a :class:`consumer_coord.environment.Transport`."""
        self._receiver = receiver
        self._hand_over()

    def _answer(self, frame: bytes | None) -> None:
        self._answers.append(frame)
        asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        while self._answers and self._receiver is not None:
            frame = self._answers.popleft()
            if frame is None:
                self._receiver.connection_lost(DisconnectedError(f"broker-{self._node} closed the connection"))
                self._receiver = None
            else:
                self._receiver.frame_received(frame)

    def close(self) -> None:
        """Close as a :class:`consumer_coord.environment.Transport`.  Frames that were sent before still arrive, as with TCP."""
        self.over = True
        self._requests.put_nowait(None)

    def end(self) -> None:
        """End the connection from the broker's side."""
        self.over = True
        self._server.cancel()
        self._answer(None)

    async def _serve(self) -> None:
        while True:
            frame = await self._requests.get()
            if frame is None:
                return
            await asyncio.sleep(LATENCY_MS / 1000)
            try:
                answer = await self._brokers.handle(self._node, self._number, frame)
            except Exception as error:  # noqa: BLE001 - a mistake in the test must fail the test
                context = {"message": "a scripted broker failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
                return
            if isinstance(answer, Silence):
                return
            if isinstance(answer, Drop):
                self.over = True
                self._answer(None)
                return
            await asyncio.sleep(LATENCY_MS / 1000)
            self._answer(answer)


async def _as_coroutine(awaitable: Awaitable[R]) -> R:
    return await awaitable


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
