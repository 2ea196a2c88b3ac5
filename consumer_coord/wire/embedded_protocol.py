"""Java's ``ConsumerProtocol``, versions 0 to 3: the members' data in JoinGroup, and the leader's data in SyncGroup.

Every encoded byte is as in Java: topics and owned partitions of a subscription are sorted, an assignment keeps its order, and a
topic without partitions is omitted. A version later than 3 is read as version 3, because later versions only append fields.
(Version 1 appended owned partitions, KIP-429; version 2 the generation, KIP-792; version 3 the rack, KIP-881.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire.codec import decode_at, encode
from consumer_coord.wire.schema import BYTES, INT32, STRING, Struct, array, field

#: The protocol type of consumer groups in JoinGroup.
PROTOCOL_TYPE = "consumer"

LATEST_VERSION = 3

_VERSION = struct.Struct(">h")
_COUNT = struct.Struct(">i")
#: The encoded bytes of a ``range`` of partition numbers are cached if the range has at most this many numbers.
_LONGEST_REMEMBERED = 64
#: Maximum number of entries in each cache; a full cache is cleared.
_MOST_REMEMBERED = 16_384

_NOTHING: Mapping[str, Sequence[int]] = MappingProxyType({})


@attrs.frozen
class Subscription:
    """The subscribed topics and the owned partitions of a member.

    ``owned_partitions`` is topic -> partitions. The partitions were assigned in generation ``generation_id`` (-1: unknown).
    ``user_data`` belongs to the assignor.
    """

    topics: Sequence[str]
    user_data: bytes | None = None
    owned_partitions: Mapping[str, Sequence[int]] = _NOTHING
    generation_id: int = -1
    rack_id: str | None = None


@attrs.frozen
class Assignment:
    """A member's assignment, topic -> partitions, and user data from its assignor."""

    partitions: Mapping[str, Sequence[int]]
    user_data: bytes | None = None


class ConsumerProtocolTopicPartition(Struct):
    """The partitions of one topic, in subscriptions and assignments."""

    topic: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class ConsumerProtocolSubscription(Struct, versions="0-3"):
    """Kafka's schema of this name, without the version."""

    topics: Sequence[str] = field(array(STRING))
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
    owned_partitions: Sequence[ConsumerProtocolTopicPartition] = field(
        array(ConsumerProtocolTopicPartition), "1+", ignorable=True
    )
    generation_id: int = field(INT32, "2+", default=-1, ignorable=True)
    rack_id: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Struct, versions="0-3"):
    """Kafka's schema of this name, without the version."""

    assigned_partitions: Sequence[ConsumerProtocolTopicPartition] = field(array(ConsumerProtocolTopicPartition))
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)


def encode_subscription(subscription: Subscription, version: int = LATEST_VERSION) -> bytes:
    """Encode a subscription as Java does in ``version`` (later than 3 counts as 3)."""
    owned = subscription.owned_partitions
    data = ConsumerProtocolSubscription(
        topics=_java_sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            ConsumerProtocolTopicPartition(topic, sorted(owned[topic])) for topic in _java_sorted(owned) if len(owned[topic])
        ],
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )
    version = min(version, LATEST_VERSION)
    return _VERSION.pack(version) + encode(data, version)


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription of any version; an empty rack means that there is no rack, as in Java.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`.
    """
    decoded, _ = decode_at(ConsumerProtocolSubscription, _version(data), data, 2)
    return Subscription(
        topics=decoded.topics,
        user_data=decoded.user_data,
        owned_partitions=_by_topic(decoded.owned_partitions),
        generation_id=decoded.generation_id,
        rack_id=decoded.rack_id or None,
    )


def encode_assignment(assignment: Assignment, version: int = LATEST_VERSION) -> bytes:
    """Encode an assignment as Java does in ``version`` (later than 3 counts as 3)."""
    version = min(version, LATEST_VERSION)
    if version < 0:
        raise UnsupportedVersionError(f"the consumer protocol has no version {version}")
    topics: Collection[str] = assignment.partitions
    partitions = list(assignment.partitions.values())
    if not all(partitions):
        topics = [topic for topic, numbers in zip(topics, partitions, strict=True) if numbers]
        partitions = [numbers for numbers in partitions if numbers]
    data = assignment.user_data
    try:
        pieces = [_heads[version, len(partitions)]]
        for topic, run in zip(topics, _runs(partitions), strict=True):
            pieces += (_topics[topic], run)
        pieces.append(_NO_DATA if data is None else _COUNT.pack(len(data)) + data)
        return b"".join(pieces)
    except struct.error:  # A name or number is out of range, so let the codec raise an error with the details.
        return _VERSION.pack(version) + encode(_by_schema(assignment), version)


def _by_schema(assignment: Assignment) -> ConsumerProtocolAssignment:
    return ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolTopicPartition(topic, numbers) for topic, numbers in assignment.partitions.items() if numbers
        ],
        user_data=assignment.user_data,
    )


# A leader of thousands of members encodes tens of thousands of topic entries, with the same topics and mostly the same ranges.
# So the code below caches encoded pieces, and creates no objects of the schema.


class _Remembered(dict[Any, bytes]):
    """A cache of encoded pieces, by their content; ``lru_cache`` would take twice as long, and look-ups dominate."""

    def __init__(self, encode_piece: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._encode_piece = encode_piece

    def __missing__(self, key: Any) -> bytes:
        if len(self) >= _MOST_REMEMBERED:
            self.clear()
        piece = self[key] = self._encode_piece(key)
        return piece


def _encode_topic(name: str) -> bytes:
    encoded = name.encode()
    return _VERSION.pack(len(encoded)) + encoded


def _encode_run(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


#: (version, number of topics) -> the first bytes of an assignment.
_heads = _Remembered(lambda key: _VERSION.pack(key[0]) + _COUNT.pack(key[1]))
_NO_DATA = _COUNT.pack(-1)
_topics = _Remembered(_encode_topic)
_single_numbers = _Remembered(lambda number: _encode_run((number,)))
_short_ranges = _Remembered(_encode_run)


def _runs(partitions: Sequence[Sequence[int]]) -> Iterable[bytes]:
    """Return the encoded partitions of each topic."""
    if len(partitions) > 1 and partitions[0] is partitions[1]:  # The range assignor uses one range object for many topics.
        places = list(map(id, partitions))
        run_of = {place: _run(numbers) for place, numbers in dict(zip(places, partitions, strict=True)).items()}
        return map(run_of.__getitem__, places)
    return [_single_numbers[numbers[0]] if len(numbers) == 1 else _run(numbers) for numbers in partitions]


def _run(numbers: Sequence[int]) -> bytes:
    if type(numbers) is range and len(numbers) <= _LONGEST_REMEMBERED:
        return _short_ranges[numbers]
    return _encode_run(numbers)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment of any version.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`. This includes empty bytes, which a coordinator sends to a
    member that the leader's plan does not contain.
    """
    decoded, _ = decode_at(ConsumerProtocolAssignment, _version(data), data, 2)
    return Assignment(_by_topic(decoded.assigned_partitions), decoded.user_data)


def _version(data: bytes) -> int:
    """Return the version at the start of ``data``, but at most :data:`LATEST_VERSION`."""
    if len(data) < 2:
        raise MalformedMessageError(
            f"a subscription or assignment begins with a version of 2 bytes, but has only {len(data)} bytes"
        )
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise MalformedMessageError(f"a subscription or assignment has the version {version}, but versions begin with 0")
    return min(version, LATEST_VERSION)


def _by_topic(entries: Sequence[ConsumerProtocolTopicPartition]) -> Mapping[str, Sequence[int]]:
    by_topic: dict[str, Sequence[int]] = {entry.topic: entry.partitions for entry in entries}
    if len(by_topic) == len(entries):
        return by_topic
    merged: dict[str, list[int]] = {}  # A topic may occur in several entries, as in Java.
    for entry in entries:
        merged.setdefault(entry.topic, []).extend(entry.partitions)
    return {topic: tuple(partitions) for topic, partitions in merged.items()}


def _java_sorted(names: Iterable[str]) -> list[str]:
    """Sort names as Java sorts strings, in the order of UTF-16 code units."""
    names = list(names)
    if all(map(str.isascii, names)):
        return sorted(names)
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
