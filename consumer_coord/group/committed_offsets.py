"""Commits and committed offsets of a group, fenced by generation, member and ownership.

One lane per member: at most one OffsetCommit is under way, and what is asked for meanwhile is merged into the next one, a
later offset of a partition replacing an earlier one.  So the order of commits is the order of the calls, whatever has to
be sent again, and an offset never moves back on its own.

A commit that is refused because the group is completing a rebalance (22 or 27 while a join or sync is under way, or after
the generation changed) is no loss: it waits for the sync and is sent again with the new generation, for exactly those
partitions that were held without a break; the others fail with
:class:`~consumer_coord.errors.CommitFailedError`.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from operator import itemgetter
from typing import Any, Protocol

import attrs

from consumer_coord.config import CoordinatorConfig
from consumer_coord.environment import now
from consumer_coord.errors import (
    ClosedError,
    CommitFailedError,
    CoordinatorError,
    RebalanceInProgressError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicError,
)
from consumer_coord.group import commit_errors
from consumer_coord.group.answers import fatal
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.generation import NO_GENERATION, Generation
from consumer_coord.group.link import CoordinatorLink
from consumer_coord.group.metrics import Metrics
from consumer_coord.net.group_requests import WantedOffsets, offset_commit, offset_fetch, offsets_in
from consumer_coord.net.metadata import NO_TOPIC_ID, Broker
from consumer_coord.offsets import CommitResult, OffsetAndMetadata
from consumer_coord.printable import get_logger
from consumer_coord.retry import Backoff, Deadline, retrying, timed_out
from consumer_coord.signals import Signal
from consumer_coord.topic_partition import TopicPartition, listed
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchResponse,
)

logger = get_logger(__name__)

#: A member may have this many callers waiting for commits; more means that the application does not await them.
MOST_WAITING = 10_000

#: A topic that the coordinator does not know may be new; one that it does not know for so long does not exist (any more).
_UNKNOWN_TOPIC_S = 0.5


class CommitMembership(Protocol):
    """What commits must know of the membership, whichever group protocol it is of."""

    @property
    def generation_state(self) -> Generation: ...
    @property
    def rebalancing(self) -> bool: ...
    @property
    def subscribed(self) -> bool: ...

    @property
    def fetches_as(self) -> Generation:
        """The member that OffsetFetch names, so that a stale one is told; ``NO_GENERATION`` where it names none."""

    async def wait_for_sync(self, deadline: Deadline) -> None:
        """Wait until a rebalance that is under way, or that the group demands, has ended; then the commit is sent again.

        Raises :class:`~consumer_coord.errors.RequestTimedOutError` at ``deadline``, and at once when the member leaves.
        """

    def membership_refused(self, used: Generation, code: int, request: str) -> None:
        """A commit or a fetch was refused: do what that says about the membership, if ``used`` is still its generation."""


@attrs.frozen
class _Entry:
    position: OffsetAndMetadata
    #: Under which ownership it was read; None when the caller did not say.
    ownership: int | None
    #: Of which topic it is; None when the caller did not say.
    topic_id: uuid.UUID | None = None


@attrs.define(eq=False)
class _Ticket:
    """One call of :meth:`CommittedOffsets.commit`."""

    entries: dict[TopicPartition, _Entry]
    future: asyncio.Future[CommitResult]
    deadline: Deadline
    results: dict[TopicPartition, CoordinatorError | None] = attrs.field(factory=dict)

    def complete(self, partition: TopicPartition, result: CoordinatorError | None) -> None:
        if partition in self.entries and partition not in self.results:
            self.results[partition] = result
            if len(self.results) == len(self.entries) and not self.future.done():
                self.future.set_result(dict(self.results))


class CommittedOffsets:
    """The commit lane and the offset fetches of one member; everything on its loop."""

    def __init__(
        self,
        config: CoordinatorConfig,
        link: CoordinatorLink,
        membership: CommitMembership,
        assignment: AssignmentState,
        backoff: Backoff,
        metrics: Metrics,
        *,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        self._group_id = config.group_id
        self._group_instance_id = config.group_instance_id
        self._link = link
        self._member = membership
        self._assignment = assignment
        self._backoff = backoff
        self._metrics = metrics
        self._request_timeout_ms = config.request_timeout_ms
        self._spawn = spawn
        self._waiting: list[_Ticket] = []
        self._sending: list[_Ticket] = []
        self._lane: asyncio.Task[None] | None = None
        self._fetches: dict[WantedOffsets, asyncio.Task[Mapping[TopicPartition, Any]]] = {}
        self._closed = False
        #: What the coordinator confirmed last, for each partition; for statistics.
        self.confirmed: dict[TopicPartition, int] = {}
        #: Fires when a commit, or a part of one, is answered.
        self._completed = Signal()
        #: Partitions of the commit under way that the coordinator does not know, and since when.
        self._unknown_since: dict[TopicPartition, float] = {}
        #: What stood in the way of a commit last.
        self._obstacle = ""

    # -- commit -----------------------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout_ms: float,
        ownerships: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] | None = None,
    ) -> CommitResult:
        """Commit, and say for each partition how it went; see the module's text for what is sent again.

        ``topic_ids``: of which topics the offsets are.  Brokers of 4.1 and later refuse those of a topic that was deleted,
        also when there is another one of its name; older ones know names only.
        """
        return await self.start_commit(offsets, timeout_ms=timeout_ms, ownerships=ownerships, topic_ids=topic_ids)

    def start_commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout_ms: float,
        ownerships: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] | None = None,
    ) -> asyncio.Future[CommitResult]:
        """Take a place in the lane now; the future tells how it went, also when there is no place."""
        future: asyncio.Future[CommitResult] = asyncio.get_running_loop().create_future()
        # Retrieve the exception: the caller of an asynchronous commit may ignore it.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._closed:
            future.set_exception(ClosedError("the coordinator is closed: commit before close"))
            return future
        if not offsets:
            future.set_result({})
            return future
        if len(self._waiting) >= MOST_WAITING:
            future.set_exception(
                RetriableError(
                    f"{MOST_WAITING} commits of group {self._group_id!r} wait for the coordinator: await them, or commit less"
                    " often"
                )
            )
            return future
        owned = self._assignment.ownerships(offsets) if ownerships is None else ownerships
        ids = topic_ids or {}
        entries = {
            partition: _Entry(position, owned.get(partition), ids.get(partition)) for partition, position in offsets.items()
        }
        ticket = _Ticket(entries, future, Deadline.after(timeout_ms))
        self._waiting.append(ticket)
        # Whatever the lane waits for just now, no caller waits longer than it said.
        timer = asyncio.get_running_loop().call_at(ticket.deadline.at, self._overdue, ticket)

        def over(_: asyncio.Future[CommitResult]) -> None:
            timer.cancel()
            self._completed.fire()

        future.add_done_callback(over)
        if self._lane is None or self._lane.done():
            self._lane = self._spawn(self._run_lane(), "commit")
        return future

    async def drained(self, deadline: Deadline, partitions: Iterable[TopicPartition] | None = None) -> bool:
        """Wait until no commit (of ``partitions``) is under way; False when ``deadline`` came first."""
        wanted = None if partitions is None else frozenset(partitions)
        before = [*self._sending, *self._waiting]

        def concerns(ticket: _Ticket) -> bool:
            # By partition: the rest of a commit may be waiting for just the rebalance that waits for this.
            open_ones = ticket.entries.keys() - ticket.results.keys()
            return not ticket.future.done() and (wanted is None or not wanted.isdisjoint(open_ones))

        def all_complete() -> bool:
            return not any(map(concerns, before))

        return await self._completed.until(all_complete, deadline)

    async def _run_lane(self) -> None:
        while self._waiting:
            self._sending, self._waiting = self._waiting, []
            try:
                await self._send_all(self._sending)
            except CoordinatorError as error:
                self._fail(self._sending, error)
            except BaseException as error:
                self._fail([*self._sending, *self._waiting], CommitFailedError(f"the commit was interrupted: {error!r}"))
                raise
            finally:
                self._sending = []

    @staticmethod
    def _fail(tickets: Iterable[_Ticket], error: CoordinatorError) -> None:
        for ticket in tickets:
            if not ticket.future.done():
                ticket.future.set_exception(error)

    async def _send_all(self, tickets: list[_Ticket]) -> None:
        """Send the merged offsets of ``tickets`` until each is complete or its deadline passed."""
        entries: dict[TopicPartition, _Entry] = {}
        for ticket in tickets:
            entries.update(ticket.entries)
        self._fail_former_topics(tickets, entries)
        retries = 0
        last: CoordinatorError | None = None
        self._obstacle = ""
        self._unknown_since.clear()
        while entries:
            if last is not None:
                self._obstacle = str(last)
            entries = self._wanted(tickets, entries)
            entries = self._fenced(tickets, entries)
            if not entries:
                return
            deadline = Deadline(max(ticket.deadline.at for ticket in tickets if not ticket.future.done()))
            used = self._member.generation_state
            started = now()
            try:
                broker = await self._link.find(deadline)
                answer: OffsetCommitResponse = await self._link.ask(
                    broker,
                    offset_commit(self._request(entries, used)),
                    timeout_ms=self._request_timeout_ms,
                    patience_ms=max(1.0, deadline.remaining_ms),
                )
            except RetriableError as error:
                last = error
            else:
                self._metrics.record("commit", (now() - started) * 1000)
                remaining, last = self._read(answer, entries, tickets, used, broker)
                if remaining and last is not None and last.code in _REFUSED:
                    entries = await self._after_rebalance(remaining, tickets, used, deadline, last.code)
                    if self._member.generation_state != used or not self._member.rebalancing:
                        retries = 0
                        continue
                    # No sync came: the member is about to leave, and the group may still be completing its rebalance.
                else:
                    entries = remaining
            if entries:
                await asyncio.sleep(deadline.within(self._backoff.ms(retries)) / 1000)
                retries += 1

    @staticmethod
    def _fail_former_topics(tickets: list[_Ticket], entries: Mapping[TopicPartition, _Entry]) -> None:
        """An offset of a topic that was deleted is not committed by a newer offset of the one that bears its name now."""
        for ticket in tickets:
            for partition, entry in ticket.entries.items():
                newest = entries[partition].topic_id
                if entry.topic_id is not None and newest is not None and entry.topic_id != newest:
                    ticket.complete(partition, commit_errors.deleted_topic(partition))

    def _overdue(self, ticket: _Ticket) -> None:
        if not ticket.future.done():
            why = f": {self._obstacle}" if self._obstacle else ""
            ticket.future.set_exception(
                RequestTimedOutError(f"the commit of {listed(ticket.entries)} did not finish in time{why}")
            )

    @staticmethod
    def _wanted(tickets: list[_Ticket], entries: dict[TopicPartition, _Entry]) -> dict[TopicPartition, _Entry]:
        """The entries that a caller still waits for."""
        alive: set[TopicPartition] = set()
        for ticket in tickets:
            if not ticket.future.done():
                alive |= ticket.entries.keys() - ticket.results.keys()
        return {partition: entry for partition, entry in entries.items() if partition in alive}

    def _fenced(self, tickets: list[_Ticket], entries: dict[TopicPartition, _Entry]) -> dict[TopicPartition, _Entry]:
        """Fail what the broker would take and must not have: it does not look at who owns a partition, and an offset read
        under an ownership that ended could set another member's progress back."""
        if self._member.subscribed and self._member.generation_state.generation_id < 0:
            # Without a generation nothing fences the commit (maybeAutoCommitOffsets, generationIfStable).
            refused, why = frozenset(entries), "this member is not in the group now"
        else:
            refused = self._assignment.ended({partition: entry.ownership for partition, entry in entries.items()})
            why = "the partition was lost or given up since the offset was read"
        if refused:
            self._metrics.record("commit-refused")
        for partition in sorted(refused):
            self._complete(tickets, partition, commit_errors.not_committed(self._group_id, partition, why))
        return {partition: entry for partition, entry in entries.items() if partition not in refused}

    def _request(self, entries: Mapping[TopicPartition, _Entry], generation: Generation) -> OffsetCommitRequest:
        topics: dict[tuple[str, uuid.UUID], list[OffsetCommitRequestPartition]] = {}
        for partition, entry in sorted(entries.items(), key=itemgetter(0)):
            topics.setdefault((partition.topic, entry.topic_id or NO_TOPIC_ID), []).append(
                OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=entry.position.offset,
                    committed_leader_epoch=entry.position.leader_epoch,
                    committed_metadata=entry.position.metadata,
                )
            )
        return OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=generation.generation_id,
            member_id=generation.member_id,
            group_instance_id=self._group_instance_id if generation != NO_GENERATION else None,
            topics=[
                OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=parts)
                for (topic, topic_id), parts in topics.items()
            ],
        )

    def _read(
        self,
        answer: OffsetCommitResponse,
        entries: Mapping[TopicPartition, _Entry],
        tickets: list[_Ticket],
        used: Generation,
        broker: Broker,
    ) -> tuple[dict[TopicPartition, _Entry], CoordinatorError | None]:
        """Complete what the answer completes; returns what has to be sent again, and the error that says why."""
        remaining = dict(entries)
        last: CoordinatorError | None = None
        names = {entry.topic_id: partition.topic for partition, entry in entries.items() if entry.topic_id is not None}
        for topic in answer.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name or names.get(topic.topic_id, ""), row.partition_index)
                if partition not in remaining:
                    continue
                code = row.error_code
                if code in _REFUSED:
                    last = commit_errors.given_away(self._group_id, partition, code)
                    continue
                if code in _COORDINATOR_GONE:
                    self._link.forget(broker, codes.error_name(code))
                    last = RetriableError(f"{broker.address} is not the coordinator any more", code=code)
                elif code == codes.NONE:
                    del remaining[partition]
                    self.confirmed[partition] = entries[partition].position.offset
                    self._complete(tickets, partition, None)
                elif code == codes.UNKNOWN_TOPIC_OR_PARTITION:
                    last = UnknownTopicError(f"committing {partition}: {codes.error_name(code)}", code=code)
                    since = self._unknown_since.setdefault(partition, now())
                    if now() - since >= _UNKNOWN_TOPIC_S:
                        del remaining[partition]
                        self._complete(tickets, partition, last)
                elif codes.is_retriable(code) and code != codes.UNKNOWN_TOPIC_ID:
                    last = RetriableError(f"committing {partition}: {codes.error_name(code)}", code=code)
                else:
                    del remaining[partition]
                    self._complete(tickets, partition, self._final(code, partition, used))
        return remaining, last

    def _final(self, code: int, partition: TopicPartition, used: Generation) -> CoordinatorError:
        if code in (codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID, codes.GROUP_ID_NOT_FOUND):
            self._metrics.record("commit-refused")
            self._member.membership_refused(used, code, "OffsetCommit")
        if code in (codes.UNKNOWN_MEMBER_ID, codes.GROUP_ID_NOT_FOUND):
            return commit_errors.given_away(self._group_id, partition, code)
        if code == codes.UNKNOWN_TOPIC_ID:
            return commit_errors.deleted_topic(partition)
        if code == codes.OFFSET_METADATA_TOO_LARGE:
            return commit_errors.metadata_too_long(partition)
        return fatal(code, group_id=self._group_id, request=f"OffsetCommit of {partition}")

    def _complete(self, tickets: Iterable[_Ticket], partition: TopicPartition, result: CoordinatorError | None) -> None:
        for ticket in tickets:
            ticket.complete(partition, result)
        self._completed.fire()

    async def _after_rebalance(
        self,
        entries: dict[TopicPartition, _Entry],
        tickets: list[_Ticket],
        used: Generation,
        deadline: Deadline,
        code: int,
    ) -> dict[TopicPartition, _Entry]:
        """22 or 27: wait for the sync, and keep what was held without a break."""
        if code == codes.ILLEGAL_GENERATION and self._member.generation_state == used and not self._member.rebalancing:
            # Nothing is under way that could explain it: the group went on without us.
            self._metrics.record("commit-refused")
            self._member.membership_refused(used, code, "OffsetCommit")
        else:
            if code in (codes.REBALANCE_IN_PROGRESS, codes.STALE_MEMBER_EPOCH):
                self._member.membership_refused(used, code, "OffsetCommit")
            # Fail partitions that are no longer held at once: the join may be waiting for this commit.
            entries = self._still_held(entries, tickets, code)
            if not entries:
                return {}
            self._obstacle = "the group is still rebalancing"
            try:
                await self._member.wait_for_sync(deadline)
            except RequestTimedOutError as error:
                for partition in entries:
                    self._complete(tickets, partition, RebalanceInProgressError(f"{partition}: {error}", code=code))
                return {}
        keep = self._still_held(entries, tickets, code)
        if keep:
            self._metrics.record("commit-resent")
        return keep

    def _still_held(
        self, entries: dict[TopicPartition, _Entry], tickets: list[_Ticket], code: int
    ) -> dict[TopicPartition, _Entry]:
        """What was held without a break until now; the rest fails."""
        held = self._assignment.ownerships(entries)
        keep: dict[TopicPartition, _Entry] = {}
        for partition, entry in entries.items():
            if entry.ownership is not None and held[partition] == entry.ownership:
                keep[partition] = entry
            else:
                held_then = entry.ownership is not None
                why = commit_errors.given_away if held_then else commit_errors.not_held
                self._complete(tickets, partition, why(self._group_id, partition, code))
        return keep

    # -- committed offsets --------------------------------------------------------------------------------------------

    async def committed(
        self,
        partitions: Iterable[TopicPartition],
        *,
        timeout_ms: float,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None where there are none; waits for open transactions (KIP-447).

        ``topic_ids``: of which topics they are.  Brokers of 4.1 and later then tell none of an older topic of the same name.
        Callers that ask for the same partitions at the same time share one request.
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
                # It ended at the time limit of the caller who began it, and we have more.
                continue
            return task.result()

    def _fetched(self, wanted: WantedOffsets, task: asyncio.Task[Mapping[TopicPartition, Any]]) -> None:
        if self._fetches.get(wanted) is task:
            del self._fetches[wanted]
        if not task.cancelled():
            task.exception()

    async def _fetch(self, wanted: WantedOffsets, deadline: Deadline) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        ids = dict(wanted.topic_ids)
        async for attempt in retrying(self._backoff, deadline, what="OffsetFetch"):
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
                    broker, request, timeout_ms=self._request_timeout_ms, patience_ms=max(1.0, deadline.remaining_ms)
                )
                if used.has_member_id and answer.groups and answer.groups[0].error_code in _MEMBER_REFUSED:
                    await self._fetch_refused(used, answer.groups[0].error_code, deadline)
                return self._read_fetched(answer, wanted, broker)
        raise AssertionError("retrying ends by return or raise")

    async def _fetch_refused(self, used: Generation, code: int, deadline: Deadline) -> None:
        """The coordinator does not count the member that asked, or not with that epoch; raises :class:`RetriableError`."""
        self._member.membership_refused(used, code, "OffsetFetch")
        if code == codes.STALE_MEMBER_EPOCH:
            # The answer to a heartbeat, which goes out at once, tells the present one.
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
        if code in _COORDINATOR_GONE:
            self._link.forget(broker, codes.error_name(code))
        if codes.is_retriable(code) or code == codes.UNSTABLE_OFFSET_COMMIT:
            raise RetriableError(f"committed offset of {what}: {codes.error_name(code)}", code=code)
        raise fatal(code, group_id=self._group_id, request=f"OffsetFetch of {what}")

    async def close(self, deadline: Deadline) -> None:
        """Finish what is under way, as far as ``deadline`` allows; then nothing more is taken."""
        await self.drained(deadline)
        self._closed = True
        if self._lane is not None and not self._lane.done():
            self._lane.cancel()
            await asyncio.gather(self._lane, return_exceptions=True)
        self._fail(self._waiting, ClosedError("the coordinator was closed before the commit was answered"))
        self._waiting = []
        for task in tuple(self._fetches.values()):
            task.cancel()


_REFUSED = frozenset({codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS, codes.STALE_MEMBER_EPOCH})
_COORDINATOR_GONE = frozenset({codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE})
#: An OffsetFetch that names a member (KIP-848).
_MEMBER_REFUSED = frozenset({codes.STALE_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID})
