"""The client's side of a fetch session (KIP-227, ``FetchSessionHandler`` of the Java client): one object per broker, no I/O.

The first Fetch to a broker names every partition; each later Fetch names only the changes. After an error, or if a response
does not match its request, the next Fetch begins a new session.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from consumer_coord import lazy_attrs as attrs
from consumer_coord.net.answers import AnswerCheck, Matched
from consumer_coord.topic_partition import TopicPartition, grouped
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.log import FetchPartition, FetchResponse, FetchTopic, ForgottenTopic, PartitionData
from consumer_coord.wire.schema import ZERO_UUID

_NO_SESSION = 0
_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_LAST_EPOCH = 2**31 - 1
_SESSIONS_FROM = 7
_TOPIC_IDS_FROM = 13


@attrs.frozen
class Wanted:
    """The position from which to fetch a partition, with the fields of FetchRequest; unknown epochs are -1."""

    topic_id: uuid.UUID
    offset: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    max_bytes: int = 1 << 20


@attrs.frozen
class SessionPart:
    """The fields of a FetchRequest that belong to the session."""

    session_id: int
    session_epoch: int
    topics: Sequence[FetchTopic]
    forgotten: Sequence[ForgottenTopic]


class FetchSession:
    """The fetch session with one broker. Call :meth:`build` for each request, then a method for its outcome."""

    def __init__(self) -> None:
        self.session_id: int = _NO_SESSION
        self._epoch = _INITIAL_EPOCH
        self._version = 0
        #: The partitions that the broker's session will have after it has processed the request in flight.
        self._named: Mapping[TopicPartition, Wanted] = {}
        #: The names of these partitions' topics, by their ids.
        self._names: dict[uuid.UUID, str] = {}
        self._full = True
        #: Partition of the session -> its log start offset, high watermark and last stable offset in its last row. A response
        #: that omits the partition says that they have not changed, also if it was assigned again since.
        self.told: dict[TopicPartition, tuple[int, int, int]] = {}

    def build(self, version: int, wanted: Mapping[TopicPartition, Wanted]) -> SessionPart:
        """Return the session's fields for the next request, which fetches the partitions of ``wanted``, in this order."""
        by_id = version >= _TOPIC_IDS_FROM
        if by_id != (self._version >= _TOPIC_IDS_FROM):
            # The broker was upgraded or downgraded, or a topic id is unknown. A session has either ids or names, so begin
            # another session.
            self.failed()
        self._version = version
        before, self._named = self._named, wanted
        if version < _SESSIONS_FROM:
            self._full = True
            self.told.clear()
            return SessionPart(_NO_SESSION, _FINAL_EPOCH, _topics(wanted, version), ())
        self._full = self._epoch == _INITIAL_EPOCH
        if self._full:
            self.told.clear()
            self._names = _names(wanted)
            return SessionPart(self.session_id, _INITIAL_EPOCH, _topics(wanted, version), ())
        changed = {one: at for one, at in wanted.items() if (was := before.get(one)) is not at and was != at}
        gone = [
            (one, was.topic_id if by_id else ZERO_UUID)
            for one, was in before.items()
            if (at := wanted.get(one)) is not was and (at is None or (by_id and at.topic_id != was.topic_id))
        ]
        for partition, _ in gone:
            self.told.pop(partition, None)
        self._names = _names(wanted) if gone else self._names | _names(changed)
        return SessionPart(self.session_id, self._epoch, _topics(changed, version), _forgotten(sorted(gone)))

    def answered(self, response: FetchResponse, answers: AnswerCheck, sender: str) -> Matched[TopicPartition, PartitionData]:
        """Apply a response that has no top-level error code; return its rows, compared with the request.

        Only a request that named all partitions must have a row for each of them; later responses of a session omit
        partitions without news. ``sender``: the broker's address. If the response is wrong, it does not describe the session
        that this client believes in, so the next request begins a new session. The rows that were asked for are valid.

        A broker that throttles this client answers without rows, and creates no session (KIP-219, ``handleResponse``).
        """
        if self._full and response.throttle_time_ms > 0 and not response.responses:
            self.not_found()
            return Matched({}, {})
        rows = self._rows(response)
        asked = self._named if self._full else {one: at for one, _ in rows if (at := self._named.get(one)) is not None}
        matched = answers.match("Fetch", sender, asked, rows, _senseless)
        for one, row in matched.rows.items():
            if row.error_code == codes.NONE:
                self.told[one] = row.log_start_offset, row.high_watermark, row.last_stable_offset
            else:
                self.told.pop(one, None)
        if self._version < _SESSIONS_FROM:
            return matched
        if response.session_id == _NO_SESSION:
            # The broker has no room for a session, or closed this session. So the next request names all partitions.
            self.session_id, self._epoch = _NO_SESSION, _INITIAL_EPOCH
        else:
            self.session_id = response.session_id
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        if matched.unanswered or len(matched.rows) < len(rows):
            self.failed()
        return matched

    def _rows(self, response: FetchResponse) -> list[tuple[TopicPartition, PartitionData]]:
        by_id = self._version >= _TOPIC_IDS_FROM
        rows = []
        for topic in response.responses:
            name = self._names.get(topic.topic_id) or str(topic.topic_id) if by_id else topic.topic
            for row in topic.partitions:
                partition = TopicPartition(name, row.partition_index)
                at = self._named.get(partition)
                if by_id and at is not None and at.topic_id != topic.topic_id:
                    partition = TopicPartition(str(topic.topic_id), row.partition_index)
                rows.append((partition, row))
        return rows

    def failed(self) -> None:
        """Begin a new session with the next request.

        This also closes the current session if the broker still has the session.
        """
        self._epoch = _INITIAL_EPOCH

    def not_found(self) -> None:
        """Begin a new session with the next request, because the broker no longer has the current session."""
        self.session_id, self._epoch = _NO_SESSION, _INITIAL_EPOCH

    @property
    def final(self) -> SessionPart | None:
        """The fields of a request that ends the session, or None if there is no session."""
        if self.session_id == _NO_SESSION:
            return None
        return SessionPart(self.session_id, _FINAL_EPOCH, (), ())


def _senseless(_: TopicPartition, row: PartitionData) -> str | None:
    """Return why a row cannot be right, or None: a partition without an error must have a high watermark."""
    return "no error and a negative high watermark" if row.error_code == codes.NONE and row.high_watermark < 0 else None


def _names(named: Mapping[TopicPartition, Wanted]) -> dict[uuid.UUID, str]:
    return {at.topic_id: one.topic for one, at in named.items()}


def _topics(named: Mapping[TopicPartition, Wanted], version: int) -> Sequence[FetchTopic]:
    """Return the topic rows of a request; consecutive partitions of one topic share a row."""
    topics: list[tuple[str, uuid.UUID, list[FetchPartition]]] = []
    for partition, wanted in named.items():
        topic_id = wanted.topic_id if version >= _TOPIC_IDS_FROM else ZERO_UUID
        if not topics or topics[-1][:2] != (partition.topic, topic_id):
            topics.append((partition.topic, topic_id, []))
        topics[-1][2].append(
            FetchPartition(
                partition=partition.partition,
                current_leader_epoch=wanted.current_leader_epoch,
                fetch_offset=wanted.offset,
                last_fetched_epoch=wanted.last_fetched_epoch if version >= 12 else -1,
                partition_max_bytes=wanted.max_bytes,
            )
        )
    return [FetchTopic(topic=name, topic_id=topic_id, partitions=rows) for name, topic_id, rows in topics]


def _forgotten(gone: Sequence[tuple[TopicPartition, uuid.UUID]]) -> Sequence[ForgottenTopic]:
    topics = grouped(((partition.topic, topic_id), partition.partition) for partition, topic_id in gone)
    return [ForgottenTopic(topic=name, topic_id=topic_id, partitions=rows) for (name, topic_id), rows in topics.items()]
