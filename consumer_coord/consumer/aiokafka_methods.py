"""Methods of aiokafka's consumer, under aiokafka's names.

A partition is any object with a ``topic`` and a ``partition``. The keys of a returned dictionary are the objects that the
caller passed. ``getmany``, and calls without partitions, return confluent-kafka's TopicPartition as keys. Some methods that
read memory in aiokafka are coroutines here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from consumer_coord.confluent.kafka_exceptions import kafka_exceptions
from consumer_coord.confluent.rows import native, partition_of
from consumer_coord.confluent.types import Message
from consumer_coord.consumer.engine import FOREVER_S, Engine
from consumer_coord.consumer.librdkafka.security_errors import message_failure
from consumer_coord.consumer.task_columns import AsyncArrowCalls
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

#: Maximum number of messages that ``getmany`` returns if ``max_records`` is not given.
_MOST_RECORDS = 500
_SLICE_S = 0.1


class AiokafkaMethods(AsyncArrowCalls):
    """A mix-in of aiokafka's methods for an asyncio consumer."""

    if TYPE_CHECKING:

        def _start(self) -> Engine: ...

        def _asked(self) -> None: ...

        def _delivered(self, messages: list[Message]) -> list[Message]: ...

        async def get_watermark_offsets(
            self, partition: Any, timeout: float | None = None, cached: bool = False
        ) -> tuple[int, int] | None: ...

        async def close(self, timeout: float | None = None, leave_group: bool | None = None) -> None: ...

    async def start(self) -> None:
        """Find the group's coordinator, so that this call, and not the first poll, reports a wrong address or password."""
        with kafka_exceptions():
            await self._start().core.ensure_coordinator_ready()

    async def stop(self) -> None:
        """Close the consumer, as ``close()`` does."""
        await self.close()

    # -- messages -----------------------------------------------------------------------------------------------------

    async def getmany(
        self, *partitions: Any, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[Any, list[Message]]:
        """Return up to ``max_records`` messages by partition; wait at most ``timeout_ms`` milliseconds for the first message.

        With ``partitions``, return only messages of these partitions; other messages wait for a later call.
        """
        found: dict[Any, list[Message]] = {}
        by_partition: dict[tuple[Any, Any], list[Message]] = {}
        most = _MOST_RECORDS if max_records is None else max_records
        for message in await self._take_of(partitions, most, timeout_ms / 1000):
            key = (message.topic(), message.partition())
            if key not in by_partition:
                by_partition[key] = found[native(TopicPartition(*key))] = []
            by_partition[key].append(message)
        return found

    @overload
    async def getone(self, *partitions: Any) -> Message: ...

    @overload
    async def getone(self, *partitions: Any, timeout_ms: float | None) -> Message | None: ...

    async def getone(self, *partitions: Any, timeout_ms: float | None = None) -> Message | None:
        """Return the next message (only of ``partitions``, if given), or None after ``timeout_ms`` milliseconds.

        Without ``timeout_ms``, wait for ever.
        """
        found = await self._take_of(partitions, 1, FOREVER_S if timeout_ms is None else timeout_ms / 1000)
        return found[0] if found else None

    async def _take_of(self, partitions: Iterable[Any], most: int, timeout_s: float) -> list[Message]:
        """Return up to ``most`` messages of these partitions (if empty: of all); after ``timeout_s`` seconds, an empty list.

        If the first message is an error, raise the error.
        """
        if most < 1:
            raise ValueError("max_records must be at least 1")
        wanted = frozenset(partition_of(row) for row in partitions)
        now = asyncio.get_running_loop().time
        ends = now() + timeout_s
        while True:
            async with self._used(in_callback=False) as engine:
                engine.core.application.polls += 1
                self._asked()
                if await _gather_of(engine, wanted, max(0.0, ends - now())):
                    picked = _pick(engine, wanted, most)
                    if picked and picked[0].error() is not None:
                        raise message_failure(picked[0], self._settings.librdkafka)
                    if picked:
                        return self._delivered(picked)
            if now() >= ends:
                return []

    # -- positions ----------------------------------------------------------------------------------------------------

    async def seek_to_beginning(self, *partitions: Any) -> None:
        """Continue at the first record of these partitions, or of all assigned partitions."""
        await self._shared.seek_by_time(partitions, EARLIEST, "seek_to_beginning")

    async def seek_to_end(self, *partitions: Any) -> None:
        """Continue after the last record of these partitions, or of all assigned partitions."""
        await self._shared.seek_by_time(partitions, LATEST, "seek_to_end")

    async def seek_to_committed(self, *partitions: Any) -> dict[Any, int | None]:
        """Continue at the group's committed offsets of these partitions, or of all assigned partitions.

        A partition without a committed offset keeps its position.
        """
        with kafka_exceptions():
            keys = await self._assigned(partitions, "seek_to_committed")
            found = await self._start().core.committed(frozenset(keys))
            await self._seek({partition: at for partition, at in found.items() if at is not None}, "seek_to_committed")
        offsets = {partition: None if at is None else at.offset for partition, at in found.items()}
        return {key: offsets[partition] for partition, key in keys.items()}

    async def beginning_offsets(self, partitions: Iterable[Any]) -> dict[Any, int]:
        """Return the offset of the first record of each partition."""
        return await self._shared.offsets(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[Any]) -> dict[Any, int]:
        """Return the offset after the last record of each partition; with ``read_committed``, the last stable offset."""
        return await self._shared.offsets(partitions, LATEST)

    async def highwater(self, partition: Any) -> int | None:
        """Return a partition's end offset from its last Fetch response, without a request; None before the first response."""
        row = native(partition_of(partition))
        found = await self.get_watermark_offsets(row, cached=True)
        return None if found is None or found[1] < 0 else found[1]

    async def _assigned(self, partitions: Iterable[Any], what: str) -> dict[TopicPartition, Any]:
        """Return partition -> the caller's object for it; if ``partitions`` is empty, for all assigned partitions."""
        keys = {partition_of(row): row for row in partitions}
        async with self._used() as engine:
            engine.must_hold(keys, what)
            return keys or {partition: native(partition) for partition in engine.table}

    async def _seek(self, positions: dict[TopicPartition, OffsetAndMetadata], what: str) -> None:
        async with self._used() as engine:
            engine.must_hold(positions, what)
            for partition, position in sorted(positions.items()):
                await engine.seek(partition, position)

    # -- state --------------------------------------------------------------------------------------------------------

    def paused(self) -> frozenset[Any]:
        """Return the paused partitions."""
        return self._shared.paused(self._start())

    def subscription(self) -> frozenset[str]:
        """Return the topics that this consumer subscribes to; with a pattern, the matching topics."""
        return self._shared.subscription()


async def _gather_of(engine: Engine, wanted: frozenset[TopicPartition], timeout_s: float) -> bool:
    """Wait for messages, at most 0.1 s if ``wanted`` is not empty; return False if no message may be delivered."""
    if not wanted:
        return await engine.gather(1, _MOST_RECORDS, timeout_s)
    return await engine.gather(1, _MOST_RECORDS, min(timeout_s, _SLICE_S), only=wanted)


def _pick(engine: Engine, wanted: frozenset[TopicPartition], most: int) -> list[Any]:
    """Remove and return up to ``most`` messages of these partitions (if empty: of all); stop before an error.

    If the first message is an error, return only this error.
    """
    picked: list[Any] = []
    rest: deque[Any] = deque()
    ended = False
    for message in engine.reader.ready:
        failed = message.error() is not None
        ended = ended or len(picked) == most or (failed and bool(picked))
        # An error about a broker has no partition.
        if not ended and (not wanted or message.topic() is None or (message.topic(), message.partition()) in wanted):
            picked.append(message)
            ended = failed
        else:
            rest.append(message)
    engine.reader.at_hand.ready = rest
    return picked
