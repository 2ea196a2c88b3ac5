"""Which topic a partition is read from: one that is deleted and made again under its name is another topic (KIP-516).

Its log begins anew, and positions of the old topic mean nothing in it.  What would be read on from them is the new topic from
somewhere in its middle, and what would be committed hides the rest of it from the next reader.  So partitions remember the id
of their topic: commits carry it where the brokers take ids (OffsetCommit v10), and when another id is seen, the partitions
begin again with the first record of the new topic.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Set

from consumer_coord.consumer.home import Home, Pending
from consumer_coord.group.committed_offsets import CommitResult, OffsetAndMetadata
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes

_UNKNOWN = uuid.UUID(int=0)


class RecreatedTopics:
    """The ids of the topics that are read; brokers before 2.8 tell none, and nothing is checked there."""

    def __init__(self, core: ConsumerCoordinator, home: Home, handed_out: Callable[[TopicPartition], bool]) -> None:
        """``handed_out`` tells whether the application has got a record since the partition was begun anew."""
        self._core = core
        self._home = home
        self._handed_out = handed_out
        self._ids: dict[TopicPartition, uuid.UUID] = {}
        #: The topic that was, until the application gets a record of the new one: what it commits is of the former.
        self._former: dict[TopicPartition, uuid.UUID] = {}
        self._seen = -1
        #: Called on the loop before each commit: what was asked for earlier and waits takes its place first.
        self.earlier: Callable[[], object] = lambda: None

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        """These are read from the topics that bear their names now."""
        self._ids.update({partition: known for partition in partitions if (known := self.now(partition)) is not None})

    def begun_anew(self, partitions: Collection[TopicPartition]) -> None:
        """These are read from the beginning of the topics that bear their names now."""
        for partition in partitions:
            self._former.setdefault(partition, self._ids[partition])
        self.started(partitions)

    def begun_by_policy(self, partitions: Iterable[TopicPartition]) -> None:
        """These begin where ``auto.offset.reset`` says, in the topics that bear their names now."""
        for partition in partitions:
            self._former.pop(partition, None)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """These are read no more."""
        for partition in partitions:
            self._ids.pop(partition, None)
            self._former.pop(partition, None)

    def of(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, uuid.UUID]:
        """partition -> the id of the topic that the application's positions belong to, for those of which it is known."""
        ids: Mapping[TopicPartition, uuid.UUID] = self._ids
        if self._former:
            for partition in [one for one in self._former if self._handed_out(one)]:
                del self._former[partition]
            ids = {**self._ids, **self._former}
        return {partition: ids[partition] for partition in partitions if partition in ids}

    def found(self, assigned: Set[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of ``assigned`` whose topic has another id now; the same again until :meth:`begun_anew` is called for them."""
        version = self._core.cluster.metadata.version
        if version == self._seen and len(self._ids) == len(assigned):
            return frozenset()
        self.started(assigned - self._ids.keys())
        other = frozenset(
            partition
            for partition, before in self._ids.items()
            if (known := self.now(partition)) is not None and known != before
        )
        if not other:
            self._seen = version
        return other

    def commit(self, wanted: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float) -> Pending[CommitResult]:
        """Start a commit of what is read, under the ownerships and of the topics of now."""
        core = self._core
        ownerships, ids = core.assignment.ownerships(wanted), self.of(wanted)

        def send() -> asyncio.Future[CommitResult]:
            self.earlier()
            return core.start_commit(wanted, timeout_ms=timeout_ms, ownerships=ownerships, topic_ids=ids)

        pending = self._home.begin(send)
        self.look_up_unknown(pending)
        return pending

    def look_up_unknown(self, pending: Pending[CommitResult]) -> None:
        """When the brokers know the id of a topic no more, the topic is looked up at once."""
        cluster, home = self._core.cluster, self._home

        def look_up(done: Pending[CommitResult]) -> None:
            if done.cancelled() or done.exception() is not None:
                return
            if any(error is not None and error.code == error_codes.UNKNOWN_TOPIC_ID for error in done.result().values()):
                home.later(0, lambda: cluster.refresh_later(0))

        pending.add_done_callback(look_up)

    def now(self, partition: TopicPartition) -> uuid.UUID | None:
        """The id of the topic that bears a partition's name now, None when it is not known."""
        topic = self._core.cluster.metadata.topics.get(partition.topic)
        return None if topic is None or topic.id == _UNKNOWN else topic.id
