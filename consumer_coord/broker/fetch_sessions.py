"""Fetch sessions (KIP-227, Kafka's ``FetchSession``): a broker stores the partitions that a client fetches, with their offsets.

A full Fetch names every partition and may begin a session. An incremental Fetch names only the changed partitions, and its
response omits partitions without new records and without a changed state. Each broker has separate sessions, which end when the
broker stops.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from random import Random

import attrs

from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.log import FetchPartition, FetchRequest, PartitionData
from consumer_coord.wire.schema import ZERO_UUID

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_TOPIC_IDS_FROM = 13
#: Time after which an unused session may be evicted for a new session, in seconds
#: (``min.incremental.fetch.session.eviction.ms``).
_EVICTION_S = 120.0
_UNKNOWN = -1


@attrs.frozen
class TopicName:
    """A topic as identified in a request: up to version 12 by name, since version 13 by id (KIP-516).

    ``name`` is None while this broker knows no topic with this id.
    """

    name: str | None
    topic_id: uuid.UUID = ZERO_UUID

    @property
    def key(self) -> str | uuid.UUID:
        """The topic's key within its session."""
        return self.topic_id if self.topic_id.int else self.name or ""


@attrs.define(eq=False)
class _Cached:
    """A partition of a session, and the state that the last response to the client contained."""

    topic: TopicName
    wanted: FetchPartition
    high_watermark: int = _UNKNOWN
    log_start_offset: int = _UNKNOWN

    def take(self, data: PartitionData) -> bool:
        """Store the partition's state in a response; return whether the state is new to the client."""
        changed = (self.high_watermark, self.log_start_offset) != (data.high_watermark, data.log_start_offset)
        self.high_watermark, self.log_start_offset = data.high_watermark, data.log_start_offset
        if data.error_code:
            # Include the partition in the next response after the error.
            self.high_watermark = _UNKNOWN
        special = data.error_code or data.preferred_read_replica >= 0 or data.diverging_epoch.epoch >= 0
        return bool(data.records or changed or special)


Key = tuple["str | uuid.UUID", int]


@attrs.define(eq=False)
class FetchSession:
    """The partitions of one client, in the order of reading. A partition that returned records moves to the end."""

    session_id: int
    by_topic_id: bool
    created_at: float
    last_used: float
    epoch: int = INITIAL_EPOCH + 1
    partitions: dict[Key, _Cached] = attrs.field(factory=dict)

    def update(self, wanted: Sequence[tuple[TopicName, FetchPartition]], forgotten: Sequence[Key]) -> None:
        """Apply the changes in an incremental request."""
        for topic, partition in wanted:
            cached = self.partitions.get((topic.key, partition.partition))
            if cached is None:
                self.partitions[topic.key, partition.partition] = _Cached(topic, partition)
            else:
                cached.wanted = partition
        for key in forgotten:
            self.partitions.pop(key, None)

    def answered(self, topic: TopicName, data: PartitionData) -> bool:
        """Store a partition's state in a response; return whether an incremental response must contain the partition."""
        key = (topic.key, data.partition_index)
        cached = self.partitions.get(key)
        if cached is None:
            return True
        is_news = cached.take(data)
        if data.records:
            self.partitions[key] = self.partitions.pop(key)
        return is_news


@attrs.frozen
class FetchContext:
    """The partitions of one Fetch, and the kind of response: only an error code, or with a session, or without a session."""

    wanted: Sequence[tuple[TopicName, FetchPartition]] = ()
    session: FetchSession | None = None
    incremental: bool = False
    #: The epoch of the session after this request.
    epoch: int = 0
    error_code: int = error_codes.NONE


class FetchSessions:
    """The sessions of one broker, at most ``slots`` (``max.incremental.fetch.session.cache.slots``)."""

    def __init__(self, slots: int, random: Random) -> None:
        self._slots = slots
        self._random = random
        #: Session id -> session, in the order of the last use, the least recently used first.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def clear(self) -> None:
        """Drop all sessions, because the broker stops."""
        self._sessions.clear()

    def begin(
        self, version: int, request: FetchRequest, names: Callable[[uuid.UUID], str | None], moment: float
    ) -> FetchContext:
        """Determine the partitions that a request reads (``FetchManager.newContext``).

        ``moment`` is the loop's time in seconds.
        """
        by_topic_id = version >= _TOPIC_IDS_FROM
        named: dict[Key, tuple[TopicName, FetchPartition]] = {}
        for topic in request.topics:
            name = TopicName(names(topic.topic_id), topic.topic_id) if by_topic_id else TopicName(topic.topic)
            named.update({(name.key, partition.partition): (name, partition) for partition in topic.partitions})
        wanted = tuple(named.values())
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            if request.session_epoch == FINAL_EPOCH:
                return FetchContext(wanted)
            session = self._create(wanted, by_topic_id, moment)
            return FetchContext(wanted, session, epoch=INITIAL_EPOCH + 1)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchContext(error_code=error_codes.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchContext(error_code=error_codes.INVALID_FETCH_SESSION_EPOCH)
        if session.by_topic_id != by_topic_id:
            return FetchContext(error_code=error_codes.FETCH_SESSION_TOPIC_ID_ERROR)
        forgotten: list[Key] = [
            (topic.topic_id if by_topic_id else topic.topic, partition)
            for topic in request.forgotten_topics_data
            for partition in topic.partitions
        ]
        session.update(wanted, forgotten)
        if not session.partitions:
            del self._sessions[session.session_id]
            return FetchContext(wanted)
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        session.last_used = moment
        session.epoch = 1 if session.epoch == 0x7FFFFFFF else session.epoch + 1
        present = session.partitions.values()
        for cached in present:
            if cached.topic.name is None:
                cached.topic = attrs.evolve(cached.topic, name=names(cached.topic.topic_id))
        return FetchContext(tuple((one.topic, one.wanted) for one in present), session, incremental=True, epoch=session.epoch)

    def _create(
        self, wanted: Sequence[tuple[TopicName, FetchPartition]], by_topic_id: bool, moment: float
    ) -> FetchSession | None:
        """Create a session of these partitions; return None if there is no room for another session."""
        if not self._make_room(len(wanted), moment):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.getrandbits(31)
        session = FetchSession(session_id, by_topic_id, moment, moment)
        session.update(wanted, ())
        self._sessions[session_id] = session
        return session

    def _make_room(self, size: int, moment: float) -> bool:
        """Evict a stale session, or an old session that is not larger than the new session (``FetchSessionCache.tryEvict``)."""
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        stale = next(iter(self._sessions.values()))
        if moment - stale.last_used > _EVICTION_S:
            del self._sessions[stale.session_id]
            return True
        old = [one for one in self._sessions.values() if moment - one.created_at > _EVICTION_S and len(one.partitions) <= size]
        if not old:
            return False
        del self._sessions[min(old, key=lambda one: len(one.partitions)).session_id]
        return True
