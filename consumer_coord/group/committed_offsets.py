"""Committed offsets of a group, fetched with OffsetFetch."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ClosedError, CoordinatorError, RequestTimedOutError, RetriableError
from consumer_coord.final_errors import fatal
from consumer_coord.group.commits import COORDINATOR_GONE, CommitMembership
from consumer_coord.group.generation import Generation
from consumer_coord.group.member_context import MemberContext
from consumer_coord.net.answers import Results
from consumer_coord.net.group_requests import FetchedOffset, WantedOffsets, offset_fetch, offsets_in, senseless_offset
from consumer_coord.net.metadata import Broker
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline, retrying, timed_out
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import OffsetFetchResponse

#: Errors of an OffsetFetch that names a member (KIP-848).
_MEMBER_REFUSED: Final = frozenset({codes.STALE_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID})

#: The committed offset of each partition (None: there is no commit), or its error.
Fetched = Results[OffsetAndMetadata | None]


@attrs.define(eq=False)
class _Fetch:
    """A fetch in progress, which callers share: the offsets found so far, and the last error of each other partition."""

    wanted: WantedOffsets
    found: dict[TopicPartition, OffsetAndMetadata | None] = attrs.field(factory=dict)
    failed: dict[TopicPartition, CoordinatorError] = attrs.field(factory=dict)

    def left(self) -> frozenset[TopicPartition]:
        """Return the partitions that have neither an answer nor a refusal."""
        refused = {one for one, error in self.failed.items() if not isinstance(error, RetriableError)}
        return self.wanted.partitions - self.found.keys() - refused

    def fail(self, errors: Mapping[TopicPartition, CoordinatorError]) -> None:
        """Record errors. A time-out at the deadline says less than the error before it."""
        for partition, error in errors.items():
            if not isinstance(error, RequestTimedOutError) or partition not in self.failed:
                self.failed[partition] = error

    def result(self) -> Fetched:
        """Return the offsets in the partitions' order, and the errors."""
        return Results({one: self.found[one] for one in sorted(self.found)}, dict(self.failed))


class CommittedOffsets:
    """The offset fetches of one member; all methods run on the member's loop."""

    def __init__(self, context: MemberContext, membership: CommitMembership) -> None:
        self._with = context
        self._group_id = context.config.group_id
        self._link = context.link
        self._member = membership
        self._fetches: dict[WantedOffsets, tuple[_Fetch, asyncio.Task[None]]] = {}
        self._closed = False

    async def committed(
        self,
        partitions: Iterable[TopicPartition],
        *,
        timeout_ms: float,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets (None: no committed offset) of all partitions; see :meth:`fetched`.

        Raise the error of a partition whose commit is unknown at the time limit.
        """
        return (await self.fetched(partitions, timeout_ms=timeout_ms, topic_ids=topic_ids)).complete()

    async def fetched(
        self,
        partitions: Iterable[TopicPartition],
        *,
        timeout_ms: float,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
        some: bool = False,
    ) -> Fetched:
        """Fetch the group's committed offsets; wait for open transactions (KIP-447).

        Only a row of a partition without an error says whether there is a commit. A partition without such a row is asked for
        again, with back-off, until ``timeout_ms`` have passed. ``some``: return as soon as any partition has its answer, so
        that one partition delays no other. Raise an error that concerns the whole group.

        ``topic_ids``: the ids of the partitions' topics. With ids, brokers from 4.1 on return no offsets of a deleted topic
        that had the same name. Callers that request the same partitions at the same time share one request.
        """
        wanted = WantedOffsets(frozenset(partitions), frozenset((topic_ids or {}).items()), some)
        if not wanted.partitions:
            return Results()
        deadline = Deadline.after(timeout_ms)
        while True:
            fetch, task = self._fetches.get(wanted) or self._begin(wanted, deadline)
            done, _ = await asyncio.wait({task}, timeout=deadline.remaining_ms / 1000)
            if not done:
                what, last = f"fetching committed offsets of group {self._group_id!r}", next(iter(fetch.failed.values()), None)
                late = timed_out(what, timeout_ms, last)
                if not fetch.found:
                    raise late
                known = fetch.result()
                return Results(known.found, {**dict.fromkeys(sorted(fetch.left()), late), **known.failed})
            if task.cancelled():
                raise ClosedError("the coordinator was closed before the committed offsets were fetched")
            error, result = task.exception(), fetch.result()
            if isinstance(error, RetriableError) and not deadline.passed and not self._closed:
                # The fetch ended at the deadline of the caller that started it; the present caller has more time.
                continue
            if error is not None and not (isinstance(error, RetriableError) and result.found):
                raise error
            return result

    def _begin(self, wanted: WantedOffsets, deadline: Deadline) -> tuple[_Fetch, asyncio.Task[None]]:
        fetch = _Fetch(wanted)
        task = asyncio.get_running_loop().create_task(self._fetch(fetch, deadline), name="offset fetch")
        self._fetches[wanted] = fetch, task

        def ended(done: asyncio.Task[None]) -> None:
            if self._fetches.get(wanted) == (fetch, done):
                del self._fetches[wanted]
            if not done.cancelled():
                done.exception()

        task.add_done_callback(ended)
        return fetch, task

    async def _fetch(self, fetch: _Fetch, deadline: Deadline) -> None:
        """Ask until no partition is left; raise the retriable error of one that is left at the deadline, or a fatal error."""
        async for attempt in retrying(self._with.cluster.backoff, deadline, what="OffsetFetch"):
            with attempt:
                try:
                    await self._ask(fetch, deadline)
                except RetriableError as error:
                    fetch.fail(dict.fromkeys(fetch.left(), error))
                    raise
                left = fetch.left()
                if left and not (fetch.wanted.some and fetch.found):
                    raise fetch.failed[min(left)]

    async def _ask(self, fetch: _Fetch, deadline: Deadline) -> None:
        ids, left = dict(fetch.wanted.topic_ids), fetch.left()
        broker = await self._link.find(deadline)
        used = self._member.fetches_as
        request = offset_fetch(
            self._group_id,
            left,
            require_stable=True,
            member_id=used.member_id or None,
            member_epoch=used.generation_id,
            topic_ids=ids,
        )
        answer: OffsetFetchResponse = await self._link.ask(
            broker,
            request,
            timeout_ms=self._with.config.request_timeout_ms,
            patience_ms=max(1.0, deadline.remaining_ms),
        )
        answers = self._with.cluster.answers
        code, offsets = offsets_in(answer, self._group_id, answers, broker, ids)
        if used.has_member_id and code in _MEMBER_REFUSED:
            await self._fetch_refused(used, code, deadline)
        if code != codes.NONE:
            raise self._refused(code, "all partitions", broker)
        rows = ((row.partition, row) for row in offsets)
        matched = answers.match("OffsetFetch", broker.address, left, rows, lambda _, row: senseless_offset(row))
        fetch.fail(matched.unanswered)
        for partition, row in matched.rows.items():
            self._take(fetch, partition, row, broker)

    def _take(self, fetch: _Fetch, partition: TopicPartition, row: FetchedOffset, broker: Broker) -> None:
        if row.error_code != codes.NONE:
            fetch.fail({partition: self._refused(row.error_code, str(partition), broker)})
            return
        fetch.failed.pop(partition, None)
        found = OffsetAndMetadata(row.offset, row.leader_epoch, row.metadata) if row.offset >= 0 else None
        fetch.found[partition] = found

    async def _fetch_refused(self, used: Generation, code: int, deadline: Deadline) -> None:
        """After a member id or epoch was rejected, make the member rejoin or get a new epoch; raise :class:`RetriableError`."""
        self._member.membership_refused(used, code, "OffsetFetch")
        if code == codes.STALE_MEMBER_EPOCH:
            # A heartbeat is sent at once, and the heartbeat's response contains the current epoch.
            await self._member.wait_for_sync(deadline)
        raise RetriableError(f"OffsetFetch was refused with {codes.error_name(code)}", code=code)

    def _refused(self, code: int, what: str, broker: Broker) -> CoordinatorError:
        if code in COORDINATOR_GONE:
            self._link.forget(broker, codes.error_name(code))
        if codes.is_retriable(code) or code == codes.UNSTABLE_OFFSET_COMMIT:
            return RetriableError(f"committed offset of {what}: {codes.error_name(code)}", code=code)
        return fatal(code, group_id=self._group_id, request=f"OffsetFetch of {what}")

    def close(self) -> None:
        """End the fetches in progress."""
        self._closed = True
        for _, task in tuple(self._fetches.values()):
            task.cancel()
