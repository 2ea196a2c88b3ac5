"""Ask the leaders of partitions, all at the same time, until every partition has its answer or the time is over."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from consumer_coord.errors import CoordinatorError, RequestTimedOutError, RetriableError, UnknownTopicError
from consumer_coord.final_errors import fatal
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, Metadata, by_leader
from consumer_coord.retry import Deadline, retrying
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes

V = TypeVar("V")


class LeaderLookUp(ABC, Generic[V]):
    """One look-up: the values found so far, and the last error of each other partition."""

    #: The name of the request, for texts.
    request: ClassVar[str]

    def __init__(self, cluster: ClusterClient, wanted: Collection[TopicPartition]) -> None:
        self.cluster = cluster
        self._wanted = wanted
        self._found: dict[TopicPartition, V] = {}
        self._failed: dict[TopicPartition, CoordinatorError] = {}

    @abstractmethod
    async def ask_leader(self, leader: Broker, asked: Sequence[TopicPartition], deadline: Deadline) -> None:
        """Ask one leader, and call :meth:`find` or :meth:`fail` for each partition."""

    def find(self, partition: TopicPartition, value: V) -> None:
        """Record the answer for a partition."""
        self._found[partition] = value
        self._failed.pop(partition, None)

    def fail(self, errors: Mapping[TopicPartition, CoordinatorError]) -> None:
        """Record errors. A timeout at the deadline does not replace an earlier error, which says more."""
        for partition, error in errors.items():
            if not isinstance(error, RequestTimedOutError) or partition not in self._failed:
                self._failed[partition] = error

    async def run(self, deadline: Deadline) -> Results[V]:
        """Ask with back-off until ``deadline``; return a value or an error for each partition."""
        watch = self.cluster.watch(frozenset(partition.topic for partition in self._wanted), lambda _: None)
        try:
            async for attempt in retrying(self.cluster.backoff, deadline, what=self.request):
                with attempt:
                    await self._ask(deadline)
        except RetriableError:
            # The time is over; ``_failed`` has the error of each partition.
            assert self._failed
        finally:
            self.cluster.unwatch(watch)
        return Results(self._found, self._failed)

    async def _ask(self, deadline: Deadline) -> None:
        """Ask the leaders of the partitions without a result; raise a retriable error if partitions remain that it may help."""
        left = self._left()
        try:
            metadata = self.cluster.metadata
            leaders, unknown = by_leader(metadata, left)
            if unknown:
                metadata = await self.cluster.refresh(deadline)
                leaders, unknown = by_leader(metadata, left)
            self.fail({one: _no_leader(metadata, one) for one in unknown})
            await asyncio.gather(*(self.ask_leader(leader, asked, deadline) for leader, asked in leaders.items()))
            left = self._left()
            if left:
                self.cluster.refresh_soon()
                await self.cluster.refresh(deadline)
        except CoordinatorError as error:
            # No broker has reported the leaders.
            self.fail(dict.fromkeys(left, error))
        if left := self._left():
            raise self._failed[left[0]]

    def _left(self) -> list[TopicPartition]:
        """Return the partitions that have neither an answer nor a refusal."""
        return [
            one for one in self._wanted if one not in self._found and isinstance(self._failed.get(one), RetriableError | None)
        ]


def _no_leader(metadata: Metadata, partition: TopicPartition) -> CoordinatorError:
    topic = metadata.topics.get(partition.topic)
    if topic is not None and 0 <= partition.partition < topic.partition_count:
        return RetriableError(f"{partition} currently has no leader", code=codes.LEADER_NOT_AVAILABLE)
    code = metadata.errors.get(partition.topic, codes.UNKNOWN_TOPIC_OR_PARTITION)
    if not codes.is_retriable(code):
        return fatal(code, group_id="", request=f"Metadata of {partition}")
    return UnknownTopicError(f"the cluster has no leader for {partition}: does the topic exist?", code=3)
