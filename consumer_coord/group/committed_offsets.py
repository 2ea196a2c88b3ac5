"""Committed offsets of a group, fetched with OffsetFetch."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from consumer_coord.errors import ClosedError, RetriableError
from consumer_coord.group.commits import COORDINATOR_GONE, CommitMembership
from consumer_coord.group.error_steps import fatal
from consumer_coord.group.generation import Generation
from consumer_coord.group.member_context import MemberContext
from consumer_coord.net.group_requests import WantedOffsets, offset_fetch, offsets_in
from consumer_coord.net.metadata import Broker
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline, retrying, timed_out
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import OffsetFetchResponse

#: Errors of an OffsetFetch that names a member (KIP-848).
_MEMBER_REFUSED = frozenset({codes.STALE_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID})


class CommittedOffsets:
    """The offset fetches of one member; all methods run on the member's loop."""

    def __init__(self, context: MemberContext, membership: CommitMembership) -> None:
        self._with = context
        self._group_id = context.config.group_id
        self._link = context.link
        self._member = membership
        self._fetches: dict[WantedOffsets, asyncio.Task[Mapping[TopicPartition, Any]]] = {}
        self._closed = False

    async def committed(
        self,
        partitions: Iterable[TopicPartition],
        *,
        timeout_ms: float,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets (None: no committed offset); wait for open transactions (KIP-447).

        ``topic_ids``: the ids of the partitions' topics. With ids, brokers from 4.1 on return no offsets of a deleted topic
        that had the same name. Callers that request the same partitions at the same time share one request.
        """
        wanted = WantedOffsets(frozenset(partitions), frozenset((topic_ids or {}).items()))
        if not wanted.partitions:
            return {}
        deadline = Deadline.after(timeout_ms)
        while True:
            task = self._fetches.get(wanted)
            if task is None or task.done():
                task = asyncio.get_running_loop().create_task(self._fetch(wanted, deadline), name="offset fetch")
                self._fetches[wanted] = task
                task.add_done_callback(functools.partial(self._fetched, wanted))
            done, _ = await asyncio.wait({task}, timeout=deadline.remaining_ms / 1000)
            if not done:
                raise timed_out(f"fetching committed offsets of group {self._group_id!r}", timeout_ms)
            if task.cancelled():
                raise ClosedError("the coordinator was closed before the committed offsets were fetched")
            if isinstance(task.exception(), RetriableError) and not deadline.passed and not self._closed:
                # The fetch ended at the deadline of the caller that started it; the present caller has more time.
                continue
            return task.result()

    def _fetched(self, wanted: WantedOffsets, task: asyncio.Task[Mapping[TopicPartition, Any]]) -> None:
        if self._fetches.get(wanted) is task:
            del self._fetches[wanted]
        if not task.cancelled():
            task.exception()

    async def _fetch(self, wanted: WantedOffsets, deadline: Deadline) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        ids = dict(wanted.topic_ids)
        async for attempt in retrying(self._with.cluster.backoff, deadline, what="OffsetFetch"):
            with attempt:
                broker = await self._link.find(deadline)
                used = self._member.fetches_as
                asks = used.member_id or None
                request = offset_fetch(
                    self._group_id,
                    wanted.partitions,
                    require_stable=True,
                    member_id=asks,
                    member_epoch=used.generation_id,
                    topic_ids=ids,
                )
                answer = await self._link.ask(
                    broker,
                    request,
                    timeout_ms=self._with.config.request_timeout_ms,
                    patience_ms=max(1.0, deadline.remaining_ms),
                )
                if used.has_member_id and answer.groups and answer.groups[0].error_code in _MEMBER_REFUSED:
                    await self._fetch_refused(used, answer.groups[0].error_code, deadline)
                return self._read_fetched(answer, wanted, broker)
        raise AssertionError("unreachable: the retry loop returns or raises")

    async def _fetch_refused(self, used: Generation, code: int, deadline: Deadline) -> None:
        """After a member id or epoch was rejected, make the member rejoin or get a new epoch; raise :class:`RetriableError`."""
        self._member.membership_refused(used, code, "OffsetFetch")
        if code == codes.STALE_MEMBER_EPOCH:
            # A heartbeat is sent at once, and the heartbeat's response contains the current epoch.
            await self._member.wait_for_sync(deadline)
        raise RetriableError(f"OffsetFetch was refused with {codes.error_name(code)}", code=code)

    def _read_fetched(
        self, answer: OffsetFetchResponse, wanted: WantedOffsets, broker: Broker
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        code, offsets = offsets_in(answer, dict(wanted.topic_ids))
        self._check_fetched(code, "all partitions", broker)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(sorted(wanted.partitions))
        for row in offsets:
            if row.partition not in found:
                continue
            self._check_fetched(row.error_code, str(row.partition), broker)
            if row.offset >= 0:
                found[row.partition] = OffsetAndMetadata(row.offset, row.leader_epoch, row.metadata)
        return found

    def _check_fetched(self, code: int, what: str, broker: Broker) -> None:
        if code == codes.NONE or code == codes.UNKNOWN_TOPIC_OR_PARTITION:
            return
        if code in COORDINATOR_GONE:
            self._link.forget(broker, codes.error_name(code))
        if codes.is_retriable(code) or code == codes.UNSTABLE_OFFSET_COMMIT:
            raise RetriableError(f"committed offset of {what}: {codes.error_name(code)}", code=code)
        raise fatal(code, group_id=self._group_id, request=f"OffsetFetch of {what}")

    def close(self) -> None:
        """End the fetches in progress."""
        self._closed = True
        for task in tuple(self._fetches.values()):
            task.cancel()
