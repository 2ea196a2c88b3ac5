"""Benchmark of the wire codec: every message of a rebalance of a large group, ours against kio and kafka-python.

``python -m benchmarks.codec --members 500 --partitions 200 --rounds 15``

Each member owns ``--partitions`` partitions, of ``--topics`` topics. A row has all messages of one kind in a rebalance: the
subscription of every member, one JoinGroup response for the leader, and so on. The three libraries run in turns within each
round. Before, each library creates its objects, and the benchmark checks that the bytes are equal. The figures
are medians over the rounds, in milliseconds of processor time, because other processes on the machine disturb this time least.
"""

from __future__ import annotations

import argparse
import gc
import io
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from kio.schema.consumer_protocol_assignment.v3.data import ConsumerProtocolAssignment as KioAssignment
from kio.schema.consumer_protocol_assignment.v3.data import TopicPartition as KioAssigned
from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription as KioSubscription
from kio.schema.consumer_protocol_subscription.v3.data import TopicPartition as KioOwned
from kio.serial import entity_reader, entity_writer

from benchmarks.table import markdown, median, number, ratios
from consumer_coord.wire.codec import decode, encode
from consumer_coord.wire.embedded_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from consumer_coord.wire.messages.cluster import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from consumer_coord.wire.messages.group import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from consumer_coord.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from consumer_coord.wire.schema import Struct
from tests.support.codec_peers import KafkaPythonMessage, KioMessage

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in a deprecated way
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as KafkaPythonAssignment
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as KafkaPythonSubscription

OURS, KIO, KAFKA_PYTHON = "ours", "kio", "kafka-python"
LIBRARIES = (OURS, KIO, KAFKA_PYTHON)


@attrs.frozen
class Work:
    """The work of one library for one row: to encode and to decode all messages."""

    encode: Callable[[], None]
    decode: Callable[[], None]


@attrs.frozen
class Row:
    """A kind of message in a rebalance, with the work of each library."""

    name: str
    work: Mapping[str, Work]


@attrs.frozen
class Group:
    """The group whose rebalance is measured."""

    members: int
    partitions: int
    topics: int

    def owned(self, member: int) -> Mapping[str, Sequence[int]]:
        """Return topic -> partitions of one member: consecutive partitions, with nearly equal numbers in all topics."""
        each, more = divmod(self.partitions, self.topics)
        counts = [each + (topic < more) for topic in range(self.topics)]
        return {f"orders-{topic:03}": tuple(range(member * count, (member + 1) * count)) for topic, count in enumerate(counts)}

    def member_id(self, member: int) -> str:
        """Return a member id in Kafka's format: the client id and a UUID."""
        return f"consumer-orders-{member}-{uuid.UUID(int=member + (1 << 120))}"


def rows_of(group: Group) -> Sequence[Row]:
    """Return the messages of one rebalance."""
    members = range(group.members)
    topics = tuple(group.owned(0))
    subscriptions = [Subscription(topics, None, group.owned(i), 41, "rack-a") for i in members]
    assignments = [Assignment(group.owned(i)) for i in members]
    metadata = [encode_subscription(subscription) for subscription in subscriptions]
    assigned = [encode_assignment(assignment) for assignment in assignments]
    ids = [group.member_id(i) for i in members]
    mine = group.owned(0)
    commit = OffsetCommitRequest(
        "orders",
        42,
        ids[0],
        topics=[
            OffsetCommitRequestTopic(t, partitions=[OffsetCommitRequestPartition(p, 1_000_000 + p, 7, "") for p in numbers])
            for t, numbers in mine.items()
        ],
    )
    committed = OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(t, partitions=[OffsetCommitResponsePartition(p) for p in numbers])
            for t, numbers in mine.items()
        ]
    )
    fetch = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                "orders",
                ids[0],
                42,
                [OffsetFetchRequestTopics(name=t, partition_indexes=numbers) for t, numbers in mine.items()],
            )
        ],
        require_stable=True,
    )
    fetched = OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(
                "orders",
                [
                    OffsetFetchResponseTopics(
                        name=t, partitions=[OffsetFetchResponsePartitions(p, 1_000_000 + p, 7, "") for p in numbers]
                    )
                    for t, numbers in mine.items()
                ],
            )
        ]
    )
    everything = {topic: range(group.members * len(numbers)) for topic, numbers in mine.items()}
    cluster = MetadataResponse(
        brokers=[MetadataResponseBroker(i, f"broker-{i}.example.com", 9092, f"rack-{i}") for i in range(3)],
        cluster_id="4L6g3nShT-eMCtK--X86sw",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name=t,
                topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, t),
                partitions=[
                    MetadataResponsePartition(0, p, p % 3, 7, (p % 3, (p + 1) % 3), (p % 3, (p + 1) % 3)) for p in numbers
                ],
            )
            for t, numbers in everything.items()
        ],
    )
    join = JoinGroupRequest(
        "orders", 45_000, 300_000, ids[0], None, "consumer", [JoinGroupRequestProtocol("cooperative-sticky", metadata[0])]
    )
    joined = JoinGroupResponse(
        0,
        0,
        42,
        "consumer",
        "cooperative-sticky",
        ids[0],
        False,
        ids[0],
        [JoinGroupResponseMember(i, None, data) for i, data in zip(ids, metadata, strict=True)],
    )
    sync = SyncGroupRequest(
        "orders",
        42,
        ids[0],
        None,
        "consumer",
        "cooperative-sticky",
        [SyncGroupRequestAssignment(i, data) for i, data in zip(ids, assigned, strict=True)],
    )
    once = 1
    return [
        _row("FindCoordinatorRequest", FindCoordinatorRequest(coordinator_keys=["orders"]), 4, group.members),
        _row(
            "FindCoordinatorResponse",
            FindCoordinatorResponse(coordinators=[Coordinator("orders", 1, "broker-1.example.com", 9092)]),
            4,
            group.members,
        ),
        _row("MetadataResponse", cluster, 12, once),
        _subscriptions(subscriptions),
        _row("JoinGroupRequest", join, 9, group.members),
        _row("JoinGroupResponse (leader)", joined, 9, once),
        _row("JoinGroupResponse (others)", attrs.evolve(joined, members=()), 9, group.members),
        _assignments(assignments),
        _row("SyncGroupRequest (leader)", sync, 5, once),
        _row("SyncGroupRequest (others)", attrs.evolve(sync, assignments=()), 5, group.members),
        _row(
            "SyncGroupResponse",
            SyncGroupResponse(0, 0, "consumer", "cooperative-sticky", assigned[0]),
            5,
            group.members,
        ),
        _row("OffsetFetchRequest", fetch, 9, group.members),
        _row("OffsetFetchResponse", fetched, 9, group.members),
        _row("OffsetCommitRequest", commit, 9, group.members),
        _row("OffsetCommitResponse", committed, 9, group.members),
        _row("HeartbeatRequest", HeartbeatRequest("orders", 42, ids[0]), 4, group.members),
        _row("HeartbeatResponse", HeartbeatResponse(), 4, group.members),
    ]


def _row(name: str, message: Struct, version: int, times: int) -> Row:
    kind = type(message)
    body = encode(message, version)
    work = {OURS: _repeat(lambda: encode(message, version), lambda data: decode(kind, version, data), body, times)}
    for library, peer in ((KIO, KioMessage(kind, version)), (KAFKA_PYTHON, KafkaPythonMessage(kind, version))):
        converted = peer.convert(message)
        assert peer.encode(converted) == body, (library, name)
        work[library] = _repeat(lambda p=peer, c=converted: p.encode(c), peer.decode, body, times)  # type: ignore[misc]  # a default binds the loop's variable
    return Row(f"{name} v{version}" + (f" x {times}" if times > 1 else ""), work)


def _repeat(encode_it: Callable[[], bytes], decode_it: Callable[[bytes], object], body: bytes, times: int) -> Work:
    def encode_all() -> None:
        for _ in range(times):
            encode_it()

    def decode_all() -> None:
        for _ in range(times):
            decode_it(body)

    return Work(encode_all, decode_all)


def _subscriptions(subscriptions: Sequence[Subscription]) -> Row:
    """Return the row of subscriptions. Ours encodes mappings, sorts like Java and adds the version; others have classes."""
    bodies = [encode_subscription(subscription) for subscription in subscriptions]
    write, read = entity_writer(KioSubscription), entity_reader(KioSubscription)
    kios = [
        KioSubscription(
            topics=tuple(s.topics),
            user_data=s.user_data,
            owned_partitions=tuple(
                KioOwned(topic=t, partitions=tuple(p))  # type: ignore[arg-type]  # a plain string or number will do
                for t, p in s.owned_partitions.items()
            ),
            generation_id=s.generation_id,  # type: ignore[arg-type]  # a plain string or number will do
            rack_id=s.rack_id,
        )
        for s in subscriptions
    ]
    theirs = [
        KafkaPythonSubscription(
            version=3,
            topics=list(s.topics),
            user_data=s.user_data,
            owned_partitions=[
                KafkaPythonSubscription.TopicPartition(version=3, topic=t, partitions=list(p))
                for t, p in s.owned_partitions.items()
            ],
            generation_id=s.generation_id,
            rack_id=s.rack_id,
        )
        for s in subscriptions
    ]
    return _members_row(
        f"Subscription v3 x {len(bodies)}",
        bodies,
        (lambda: (encode_subscription(s) for s in subscriptions), decode_subscription),
        (lambda: (_kio_bytes(write, s) for s in kios), lambda body: read(body, 2)),
        (lambda: (bytes(s.encode()) for s in theirs), KafkaPythonSubscription.decode),
    )


def _assignments(assignments: Sequence[Assignment]) -> Row:
    bodies = [encode_assignment(assignment) for assignment in assignments]
    write, read = entity_writer(KioAssignment), entity_reader(KioAssignment)
    kios = [
        KioAssignment(
            assigned_partitions=tuple(
                KioAssigned(topic=t, partitions=tuple(p))  # type: ignore[arg-type]  # a plain string or number will do
                for t, p in a.partitions.items()
            ),
            user_data=a.user_data,
        )
        for a in assignments
    ]
    theirs = [
        KafkaPythonAssignment(
            version=3,
            assigned_partitions=[
                KafkaPythonAssignment.TopicPartition(version=3, topic=t, partitions=list(p)) for t, p in a.partitions.items()
            ],
            user_data=a.user_data,
        )
        for a in assignments
    ]
    return _members_row(
        f"Assignment v3 x {len(bodies)}",
        bodies,
        (lambda: (encode_assignment(a) for a in assignments), decode_assignment),
        (lambda: (_kio_bytes(write, a) for a in kios), lambda body: read(body, 2)),
        (lambda: (bytes(a.encode()) for a in theirs), KafkaPythonAssignment.decode),
    )


def _kio_bytes(write: Callable[[Any, Any], None], value: object) -> bytes:
    buffer = io.BytesIO(b"\0\3")
    buffer.seek(2)
    write(buffer, value)
    return buffer.getvalue()


_Codec = tuple[Callable[[], Iterator[bytes]], Callable[[bytes], object]]


def _members_row(name: str, bodies: Sequence[bytes], *codecs: _Codec) -> Row:
    work = {}
    for library, (encoded, decode_one) in zip(LIBRARIES, codecs, strict=True):
        assert list(encoded()) == list(bodies), (library, name)
        work[library] = _each(encoded, decode_one, bodies)
    return Row(name, work)


def _each(encoded: Callable[[], Iterator[bytes]], decode_one: Callable[[bytes], object], bodies: Sequence[bytes]) -> Work:
    def encode_all() -> None:
        for _ in encoded():
            pass

    def decode_all() -> None:
        for body in bodies:
            decode_one(body)

    return Work(encode_all, decode_all)


def measure(rows: Sequence[Row], rounds: int) -> Mapping[tuple[str, str, str], float]:
    """Return (row, direction, library) -> median milliseconds."""
    taken: dict[tuple[str, str, str], list[float]] = {}
    for turn in range(rounds):
        for row in rows:
            for direction in ("encode", "decode"):
                for shift in range(len(LIBRARIES)):
                    library = LIBRARIES[(turn + shift) % len(LIBRARIES)]
                    run: Callable[[], None] = getattr(row.work[library], direction)
                    start = time.thread_time()
                    run()
                    taken.setdefault((row.name, direction, library), []).append(1000 * (time.thread_time() - start))
    return {key: median(values) for key, values in taken.items()}


def report(rows: Sequence[Row], medians: Mapping[tuple[str, str, str], float]) -> str:
    """Return the table. Its last lines have the sums and the ratios."""
    head = ["milliseconds", *(f"{direction} {library}" for direction in ("encode", "decode") for library in LIBRARIES)]
    body = []
    sums = {(direction, library): 0.0 for direction in ("encode", "decode") for library in LIBRARIES}
    for row in rows:
        body.append([row.name, *(number(medians[row.name, direction, library]) for direction, library in sums)])
        for direction, library in sums:
            sums[direction, library] += medians[row.name, direction, library]
    body.append(["sum", *(number(total) for total in sums.values())])
    relative: list[float] = []
    for direction in ("encode", "decode"):
        relative += ratios({library: sums[direction, library] for library in LIBRARIES}, OURS).values()
    body.append(["sum / ours", *(number(ratio) for ratio in relative)])
    both = {library: sums["encode", library] + sums["decode", library] for library in LIBRARIES}
    total = ", ".join(f"{name} {number(both[name])} ms ({number(ratio)})" for name, ratio in ratios(both, OURS).items())
    return f"{markdown(head, body)}\n\nBoth directions together: {total}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=200, help="partitions of each member")
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    rows = rows_of(Group(options.members, options.partitions, options.topics))
    measure(rows, 1)  # everything compiled and warm
    gc.collect()
    gc.freeze()  # the collector must not traverse this benchmark's own objects because of a decoder's garbage
    print(report(rows, measure(rows, options.rounds)))


if __name__ == "__main__":
    main()
