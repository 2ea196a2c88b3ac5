"""The commits of one member (:class:`CommitLane`), which has at most one OffsetCommit in flight.

Each commit is a :class:`Ticket`, which any thread may submit. Automatic, asynchronous and synchronous commits, and the last
commit before a revocation, differ only in the code that waits for the result.

* **Order.** Tickets that arrive while a request is in flight wait for the response. Then one request carries all of these
  tickets. A later offset of a partition replaces an earlier offset, and a retry never moves an offset back.
* **Merging** happens in one place, :meth:`CommitLane._take`. If the member lost a partition and owns it again, tickets from
  before and after the loss are sent in different requests. An offset of a deleted topic fails if a later ticket has an offset
  of a new topic with the same name.
* **Results.** Each ticket completes once, for its own partitions only, at its deadline at the latest.
* **Retries.** A commit that is refused because the group is completing a rebalance (error 22 or 27 while a join or sync is in
  progress, or after the generation changed) waits for the sync. The lane then sends the commit again with the new generation,
  for the partitions that were owned without interruption. Commits of other partitions fail with
  :class:`~consumer_coord.errors.CommitFailedError`.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple, Protocol

from consumer_coord import lazy_attrs as attrs
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
from consumer_coord.final_errors import fatal
from consumer_coord.group import commit_error_texts as commit_errors
from consumer_coord.group.generation import NO_GENERATION, Generation
from consumer_coord.group.link import EXCUSED
from consumer_coord.group.member_context import MemberContext
from consumer_coord.net.group_requests import offset_commit
from consumer_coord.net.metadata import NO_TOPIC_ID, Broker, Metadata, is_other
from consumer_coord.offsets import CommitResult, OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, listed
from consumer_coord.wake_ups import WakeUp
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import (
    OFFSET_COMMIT_BY_NAME,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

#: Maximum number of callers that wait in :meth:`CommitLane.start` for one member. More callers mean that the application does
#: not await the commits.
MOST_WAITING = 10_000

#: How long a topic may be unknown because it is still new to the coordinator, in seconds. After this time, the topic counts as
#: deleted.
_UNKNOWN_TOPIC_S = 0.5

#: Seconds between two checks whether a broker has responded, while the member is being closed.
_CHECK_BROKERS_S = 0.25

#: How long a broker's topic ids count as present, in seconds. It keeps a program that commits each record from asking for the
#: ids each time, and is shorter than it takes to delete and create a topic.
_PRESENT_S = 0.02

_COMMIT = "OffsetCommit"

_REFUSED = frozenset({codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS, codes.STALE_MEMBER_EPOCH})
#: Codes of a broker that does not coordinate the group.
COORDINATOR_GONE = frozenset({codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE})


class CommitMembership(Protocol):
    """The membership of either protocol, as commits and offset fetches use it."""

    @property
    def generation_state(self) -> Generation: ...
    @property
    def rebalancing(self) -> bool: ...
    @property
    def subscribed(self) -> bool: ...

    @property
    def fetches_as(self) -> Generation:
        """The member that OffsetFetch names, so that the coordinator rejects a stale member; ``NO_GENERATION`` names none."""

    async def wait_for_sync(self, deadline: Deadline) -> None:
        """Wait until a rebalance that is required or in progress has ended, so that the commit can be sent again.

        Raise :class:`~consumer_coord.errors.RequestTimedOutError` at ``deadline``, or at once if the member leaves.
        """

    def membership_refused(self, used: Generation, code: int, request: str) -> None:
        """Apply the error of a rejected commit or offset fetch to the membership, if ``used`` is still its generation."""


class Entry(NamedTuple):
    """An offset to commit, with the ownership number and the topic id at the time of reading."""

    position: OffsetAndMetadata
    #: None if the member did not own the partition.
    ownership: int | None = None
    #: None if the topic's id is unknown.
    topic_id: uuid.UUID | None = None
    #: Whether the offset is committed without its metadata if the broker rejects the metadata as too large.
    sheds_metadata: bool = False


@attrs.define(eq=False)
class Ticket:
    """A commit, from its call to its result.

    Any thread may create and submit a :class:`Ticket` and read the result. Only the commit lane completes the ticket, on its
    loop.
    """

    entries: Mapping[TopicPartition, Entry]
    #: Creation time and deadline, in seconds of the loop's clock.
    made_at: float
    ends: float
    #: Called on the loop after completion; once for all tickets with the same ``wake`` that complete together.
    wake: Callable[[], object] | None = None
    #: Partition -> None if committed, otherwise the error; complete when :attr:`done` is true.
    answers: dict[TopicPartition, CoordinatorError | None] = attrs.field(factory=dict)
    #: Error of the whole ticket.
    failure: CoordinatorError | None = None
    #: The partitions whose metadata was too large for the broker, and was shed.
    shed: set[TopicPartition] = attrs.field(factory=set)

    @property
    def done(self) -> bool:
        """Return whether every partition has a result."""
        return len(self.answers) == len(self.entries)

    def answer(self, partition: TopicPartition, error: CoordinatorError | None) -> bool:
        """Record the first result for one partition; return whether this completes the ticket."""
        if partition in self.answers:
            return False
        self.answers[partition] = error
        return self.done

    def fail(self, error: CoordinatorError) -> None:
        """Fail every partition that has no result yet."""
        if not self.answers:
            self.failure = error
        for partition in self.entries:
            self.answers.setdefault(partition, error)


@attrs.define(eq=False)
class _Newest:
    """The newest offset of a partition, and every :class:`Ticket` that a commit of this offset completes."""

    entry: Entry
    tickets: list[Ticket]


_Offsets = dict[TopicPartition, _Newest]


class CommitLane:
    """Sends the commits of one member, one request at a time. Only :meth:`submit` may be called outside the member's loop."""

    def __init__(self, context: MemberContext, membership: CommitMembership) -> None:
        self._with = context
        self._group_id = context.config.group_id
        self._link = context.link
        self._assignment = context.assignment
        self._metrics = context.metrics
        self._member = membership
        self._loop = asyncio.get_running_loop()
        #: Submitted tickets that are not in flight; any thread appends, only the loop removes.
        self._inbox: deque[Ticket] = deque()
        #: The tickets of the request in flight.
        self._sending: list[Ticket] = []
        self._lane: asyncio.Task[None] | None = None
        #: The lane waits for this future while there are no tickets to send.
        self._idle: asyncio.Future[None] = self._loop.create_future()
        #: True if the commit task will read the queue of submitted tickets without another wake-up.
        self._awake = False
        #: The earliest deadline, in seconds of the loop's clock, for which a timer is set.
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._brokers_timer: asyncio.TimerHandle | None = None
        self._closed = False
        #: Functions to call for the tickets that completed since the last :meth:`_notify`.
        self._wakes: dict[Callable[[], object], None] = {}
        #: Fires when a ticket, or some partitions of a ticket, complete.
        self._answered = WakeUp()
        #: Partition -> the last offset that the coordinator confirmed; for statistics.
        self.confirmed: dict[TopicPartition, int] = {}
        #: Partitions of the request in flight that the coordinator does not know -> time of the first such response.
        self._unknown_since: dict[TopicPartition, float] = {}
        #: Before Kafka 4.1, the last request for topic ids: the loop time when it began, the topics, and the response.
        self._present: tuple[float, frozenset[str], Metadata] = (float("-inf"), frozenset(), Metadata())
        #: Error of the last request, while the request is sent again.
        self.obstacle: str = ""

    # -- submitting -------------------------------------------------------------------------------------------------

    def submit(self, ticket: Ticket) -> None:
        """Commit without waiting, from any thread. The :class:`Ticket` completes in any case."""
        if self._loop.is_closed():
            ticket.fail(ClosedError("the coordinator's loop is closed: commit before you close it"))
            if ticket.wake is not None:
                ticket.wake()
            return
        self._inbox.append(ticket)
        if self._awake and ticket.ends >= self._due:
            return  # The commit task is going to read the queue, and the timer is set for a time before the deadline.
        self._awake = True
        try:
            self._loop.call_soon_threadsafe(self._look, ticket.ends)
        except BaseException:
            # If a signal handler raises here, the commit task may not have been woken, so the next ticket must wake it.
            self._awake = False
            raise

    def start(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout_ms: float,
        ownerships: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] | None = None,
    ) -> asyncio.Future[CommitResult]:
        """Commit, and return a future of the result for each partition; on the loop.

        The future fails if the whole commit failed. ``ownerships``: by default the current ownership numbers. ``topic_ids``:
        the ids of the offsets' topics. Brokers from 4.1 on then reject an offset of a deleted topic, even if a new topic has
        the same name. Older brokers identify topics only by name.
        """
        future: asyncio.Future[CommitResult] = self._loop.create_future()
        # Mark the exception as retrieved, because the caller of an asynchronous commit may ignore it.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._closed:
            future.set_exception(ClosedError("the coordinator is closed: commit before closing it"))
            return future
        if not offsets:
            future.set_result({})
            return future
        if len(self._inbox) >= MOST_WAITING:
            future.set_exception(
                RetriableError(
                    f"{MOST_WAITING} commits of group {self._group_id!r} wait for the coordinator: await them, or commit less"
                    " often"
                )
            )
            return future
        owned = self._assignment.ownerships(offsets) if ownerships is None else ownerships
        ids = topic_ids or {}
        entries = {one: Entry(position, owned.get(one), ids.get(one)) for one, position in offsets.items()}
        made_at = now()

        def wake() -> None:
            if future.done():
                return
            if ticket.failure is not None:
                future.set_exception(ticket.failure)
            else:
                future.set_result(ticket.answers)

        def withdraw(done: asyncio.Future[CommitResult]) -> None:
            if done.cancelled():
                self._fail([ticket], RequestTimedOutError("the caller cancelled the commit"))
                self._notify()

        ticket = Ticket(entries, made_at, made_at + timeout_ms / 1000, wake)
        future.add_done_callback(withdraw)
        self.submit(ticket)
        return future

    # -- waiting ----------------------------------------------------------------------------------------------------

    async def answered(self, ticket: Ticket, deadline: Deadline) -> bool:
        """Wait until a :class:`Ticket` completes; return False if ``deadline`` passed first."""
        return await self._until(lambda: ticket.done, deadline)

    async def drained(self, deadline: Deadline, partitions: Iterable[TopicPartition] | None = None) -> bool:
        """Wait until all tickets submitted so far that name ``partitions`` complete; return False at ``deadline``."""
        wanted = None if partitions is None else frozenset(partitions)
        before = self._open()

        def concerns(ticket: Ticket) -> bool:
            # Wait only for these partitions. The other partitions of the same commit may wait for the rebalance, and the
            # rebalance waits for this call.
            return not ticket.done and (wanted is None or not wanted.isdisjoint(ticket.entries.keys() - ticket.answers.keys()))

        return await self._until(lambda: not any(map(concerns, before)), deadline)

    async def _until(self, condition: Callable[[], bool], deadline: Deadline) -> bool:
        # Check the queue first, because an interrupted `submit` may have left a ticket without waking the commit task.
        self._look()
        return await self._answered.until(condition, deadline)

    def _open(self) -> list[Ticket]:
        return [ticket for ticket in (*self._sending, *self._inbox.copy()) if not ticket.done]

    # -- the lane ---------------------------------------------------------------------------------------------------

    def _look(self, ends: float = math.inf) -> None:
        """Set the timer for a new deadline, and start or wake the commit task if tickets wait."""
        if self._closed:
            self._fail_waiting(ClosedError("the coordinator is closed: commit before closing it"))
            return
        # Set the timer even if the commit task has already read the ticket, because the ticket may have an earlier deadline
        # than the timer's.
        self._set_timer(ends)
        # Clear the flag before reading the inbox, so that a ticket that arrives between these two statements wakes the lane
        # again.
        self._awake = False
        self._awake = bool(self._inbox)
        if not self._inbox:
            return
        if self._lane is None or self._lane.done():
            self._lane = self._with.tasks.spawn(self._run(), "commit")
        elif not self._idle.done():
            self._idle.set_result(None)

    async def _run(self) -> None:
        while True:
            try:
                await self._wait_for_tickets()
                await self._send(self._take())
            except CoordinatorError as error:
                self._fail(self._sending, error)
            except BaseException as error:
                self._fail(self._sending, failure := CommitFailedError(f"the commit was interrupted: {error!r}"))
                self._fail_waiting(failure)
                raise
            finally:
                self._sending = []
                self._notify()

    async def _wait_for_tickets(self) -> None:
        while not self._inbox:
            self._awake = False
            if not self._inbox:
                self._idle = self._loop.create_future()
                await self._idle
        self._awake = True

    def _take(self) -> _Offsets:
        """Merge waiting tickets in their order; stop before a ticket with another ownership of a merged partition."""
        merged: _Offsets = {}
        while self._inbox and not _crosses_ownership(self._inbox[0], merged):
            ticket = self._inbox.popleft()
            if ticket.done:
                continue
            self._sending.append(ticket)
            for partition, entry in ticket.entries.items():
                newest = merged.get(partition)
                if newest is None:
                    merged[partition] = _Newest(entry, [ticket])
                elif is_other(newest.entry.topic_id, entry.topic_id):
                    self._answer(newest, partition, commit_errors.deleted_topic(partition))
                    merged[partition] = _Newest(entry, [ticket])
                else:
                    newest.entry = entry
                    newest.tickets.append(ticket)
        return merged

    async def _send(self, offsets: _Offsets) -> None:
        """Send the merged offsets until every ticket completes."""
        retries = 0
        last: CoordinatorError | None = None
        self.obstacle = ""
        self._unknown_since.clear()
        while offsets := self._fenced(_wanted(offsets)):
            if last is not None:
                self.obstacle = str(last)
            self._notify()
            deadline = Deadline(max(ticket.ends for ticket in self._sending if not ticket.done))
            used = self._member.generation_state
            offsets, last = await self._send_once(offsets, used, deadline)
            if last is not None and last.code in _REFUSED:
                offsets = await self._after_rebalance(offsets, used, deadline, last.code)
                if self._member.generation_state != used or not self._member.rebalancing:
                    retries = 0
                    continue
                # No sync happened: the member is leaving, and the group may still be completing its rebalance.
            if offsets and last is not None:
                await asyncio.sleep(deadline.within(self._with.cluster.backoff.ms(retries)) / 1000)
                retries += 1

    async def _send_once(
        self, offsets: _Offsets, used: Generation, deadline: Deadline
    ) -> tuple[_Offsets, CoordinatorError | None]:
        """Send the offsets; return those that have no outcome yet, and why."""
        started = now()
        try:
            broker = await self._link.find(deadline)
            offsets = await self._of_present_topics(offsets, broker, deadline)
            if not offsets:
                return offsets, None
            answer: OffsetCommitResponse = await self._link.ask(
                broker,
                offset_commit(self._request(offsets, used)),
                timeout_ms=self._with.config.request_timeout_ms,
                patience_ms=max(1.0, deadline.remaining_ms),
            )
        except RetriableError as error:
            return offsets, error
        self._metrics.record("commit", (now() - started) * 1000)
        last: CoordinatorError | None = self._excused(answer)
        if last is None:
            offsets, last = self._read(answer, offsets, used, broker)
        self._notify()
        return offsets, last

    def _fenced(self, offsets: _Offsets) -> _Offsets:
        """Fail offsets that the broker would accept but must not receive.

        The broker does not know the owner of a partition. An offset that was read before the partition was lost could move
        another member's commit back.
        """
        if self._member.subscribed and self._member.generation_state.generation_id < 0:
            # A commit without a generation would not be fenced by the broker (maybeAutoCommitOffsets, generationIfStable).
            refused, why = frozenset(offsets), "this member is not in the group"
        else:
            refused = self._assignment.ended({partition: newest.entry.ownership for partition, newest in offsets.items()})
            why = "the partition was lost or revoked since the offset was read"
        if not refused:
            return offsets
        self._metrics.record("commit-refused")
        for partition in sorted(refused):
            self._answer(offsets[partition], partition, commit_errors.not_committed(self._group_id, partition, why))
        return {partition: newest for partition, newest in offsets.items() if partition not in refused}

    async def _of_present_topics(self, offsets: _Offsets, broker: Broker, deadline: Deadline) -> _Offsets:
        """Fail the offsets of deleted topics if the request has topic names only, as brokers before Kafka 4.1 require.

        Such a broker would accept the offset of a deleted topic for the new topic of the same name, so ask for the present
        topic ids first. If a topic is deleted and created between the two requests, the offset is committed nevertheless.
        """
        ids = {partition: newest.entry.topic_id for partition, newest in offsets.items()}
        known = {partition: topic_id for partition, topic_id in ids.items() if topic_id is not None}
        version = self._with.cluster.version_spoken(broker, OffsetCommitRequest)
        if not known or (len(known) == len(ids) and version is not None and version > OFFSET_COMMIT_BY_NAME):
            return offsets
        topics = frozenset(partition.topic for partition in known)
        began, asked, present = self._present
        if now() - began > _PRESENT_S or not topics <= asked:
            limit_ms = min(deadline.remaining_ms, self._with.config.request_timeout_ms)
            began = now()
            present = await self._with.cluster.topic_metadata(broker, topics, timeout_ms=limit_ms)
            self._present = began, topics, present
        deleted = {partition for partition, topic_id in known.items() if is_other(topic_id, present.topic_id(partition))}
        for partition in sorted(deleted):
            self._answer(offsets[partition], partition, commit_errors.deleted_topic(partition))
        if deleted:
            self._link.refresh_metadata()
            self._notify()
        return {partition: newest for partition, newest in offsets.items() if partition not in deleted}

    def _request(self, offsets: _Offsets, generation: Generation) -> OffsetCommitRequest:
        topics: dict[tuple[str, uuid.UUID], list[OffsetCommitRequestPartition]] = {}
        for partition, newest in sorted(offsets.items(), key=itemgetter(0)):
            position, topic_id = newest.entry.position, newest.entry.topic_id
            topics.setdefault((partition.topic, topic_id or NO_TOPIC_ID), []).append(
                OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=position.offset,
                    committed_leader_epoch=position.leader_epoch,
                    committed_metadata=position.metadata,
                )
            )
        return OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=generation.generation_id,
            member_id=generation.member_id,
            group_instance_id=self._with.config.group_instance_id if generation != NO_GENERATION else None,
            topics=[
                OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=parts)
                for (topic, topic_id), parts in topics.items()
            ],
        )

    def _read(
        self, answer: OffsetCommitResponse, offsets: _Offsets, used: Generation, broker: Broker
    ) -> tuple[_Offsets, CoordinatorError | None]:
        """Complete the partitions of the response; return the offsets to send again, with the error that requires this."""
        remaining = dict(offsets)
        names = {newest.entry.topic_id: partition.topic for partition, newest in offsets.items() if newest.entry.topic_id}
        rows = (
            (TopicPartition(topic.name or names.get(topic.topic_id, str(topic.topic_id)), row.partition_index), row.error_code)
            for topic in answer.topics
            for row in topic.partitions
        )
        matched = self._with.cluster.answers.match("OffsetCommit", broker.address, offsets, rows)
        # A commit without a row in the response is not committed.
        last: CoordinatorError | None = next(iter(matched.unanswered.values()), None)
        for partition, code in matched.rows.items():
            if code in _REFUSED:
                last = commit_errors.given_away(self._group_id, partition, code)
            elif code in COORDINATOR_GONE:
                self._link.forget(broker, codes.error_name(code))
                last = RetriableError(f"{broker.address} is no longer the coordinator", code=code)
            elif code == codes.NONE:
                self.confirmed[partition] = offsets[partition].entry.position.offset
                self._answer(remaining.pop(partition), partition, None)
            elif code == codes.UNKNOWN_TOPIC_OR_PARTITION:
                last = UnknownTopicError(f"committing {partition}: {codes.error_name(code)}", code=code)
                since = self._unknown_since.setdefault(partition, now())
                if now() - since >= _UNKNOWN_TOPIC_S:
                    self._answer(remaining.pop(partition), partition, last)
            elif code == codes.OFFSET_METADATA_TOO_LARGE and offsets[partition].entry.sheds_metadata:
                self._shed_metadata(offsets[partition], partition)
            elif codes.is_retriable(code) and code != codes.UNKNOWN_TOPIC_ID:
                last = RetriableError(f"committing {partition}: {codes.error_name(code)}", code=code)
            else:
                self._answer(remaining.pop(partition), partition, self._final(code, partition, used))
        return remaining, last

    def _shed_metadata(self, newest: _Newest, partition: TopicPartition) -> None:
        """Commit the offset alone in the next request, which follows at once."""
        newest.entry = newest.entry._replace(position=attrs.evolve(newest.entry.position, metadata=""), sheds_metadata=False)
        for ticket in newest.tickets:
            ticket.shed.add(partition)

    def _excused(self, answer: OffsetCommitResponse) -> RetriableError | None:
        """Return the error with which to send the commit again, if it was refused and may be accepted on a new connection."""
        rows = (row.error_code for topic in answer.topics for row in topic.partitions)
        code = next((code for code in rows if code in EXCUSED), None)
        if code is None:
            self._link.accepted(_COMMIT)
            return None
        error = fatal(code, group_id=self._group_id, request=_COMMIT)
        return RetriableError(str(error), code=code) if self._link.excuses(error, _COMMIT) else None

    def _final(self, code: int, partition: TopicPartition, used: Generation) -> CoordinatorError:
        if code in (codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID, codes.GROUP_ID_NOT_FOUND):
            self._metrics.record("commit-refused")
            self._member.membership_refused(used, code, "OffsetCommit")
        if code in (codes.UNKNOWN_MEMBER_ID, codes.GROUP_ID_NOT_FOUND):
            return commit_errors.given_away(self._group_id, partition, code)
        if code == codes.UNKNOWN_TOPIC_ID:
            self._link.refresh_metadata()
            return commit_errors.deleted_topic(partition)
        if code == codes.OFFSET_METADATA_TOO_LARGE:
            return commit_errors.metadata_too_long(partition)
        return fatal(code, group_id=self._group_id, request=f"OffsetCommit of {partition}")

    async def _after_rebalance(self, offsets: _Offsets, used: Generation, deadline: Deadline, code: int) -> _Offsets:
        """Wait for the sync after error 22 or 27; return the offsets of partitions owned without interruption."""
        if code == codes.ILLEGAL_GENERATION and self._member.generation_state == used and not self._member.rebalancing:
            # No rebalance explains the error, so the group has continued without this member.
            self._metrics.record("commit-refused")
            self._member.membership_refused(used, code, "OffsetCommit")
        else:
            if code in (codes.REBALANCE_IN_PROGRESS, codes.STALE_MEMBER_EPOCH):
                self._member.membership_refused(used, code, "OffsetCommit")
            # Fail the commit of lost partitions at once, because the join may wait for this commit.
            offsets = self._still_owned(offsets, code)
            if not offsets:
                return {}
            self.obstacle = "the group is still rebalancing"
            try:
                await self._member.wait_for_sync(deadline)
            except RequestTimedOutError as error:
                for partition, newest in offsets.items():
                    self._answer(newest, partition, RebalanceInProgressError(f"{partition}: {error}", code=code))
                return {}
        owned = self._still_owned(offsets, code)
        if owned:
            self._metrics.record("commit-resent")
        return owned

    def _still_owned(self, offsets: _Offsets, code: int) -> _Offsets:
        """Return the offsets of partitions that the member has owned since it read the records; fail the others."""
        owned = self._assignment.ownerships(offsets)
        kept: _Offsets = {}
        for partition, newest in offsets.items():
            ownership = newest.entry.ownership
            if ownership is not None and owned[partition] == ownership:
                kept[partition] = newest
            else:
                why = commit_errors.not_held if ownership is None else commit_errors.given_away
                self._answer(newest, partition, why(self._group_id, partition, code))
        self._notify()
        return kept

    # -- results ----------------------------------------------------------------------------------------------------

    def _answer(self, newest: _Newest, partition: TopicPartition, error: CoordinatorError | None) -> None:
        for ticket in newest.tickets:
            if ticket.answer(partition, error) and ticket.wake is not None:
                self._wakes[ticket.wake] = None

    def _fail(self, tickets: Iterable[Ticket], error: CoordinatorError) -> None:
        for ticket in tickets:
            if not ticket.done:
                ticket.fail(error)
                if ticket.wake is not None:
                    self._wakes[ticket.wake] = None

    def _fail_waiting(self, error: CoordinatorError) -> None:
        # Clear the flag before reading the inbox, as in `_look`.
        self._awake = False
        while self._inbox:
            self._fail([self._inbox.popleft()], error)
        self._notify()

    def _notify(self) -> None:
        """Wake all waiters of the tickets that completed."""
        self._answered.fire()
        wakes, self._wakes = self._wakes, {}
        for wake in wakes:
            wake()

    def _set_timer(self, ends: float) -> None:
        if ends < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = ends
            self._timer = self._loop.call_at(ends, self._overdue)

    def _overdue(self) -> None:
        """Fail the tickets whose deadline has passed, in any state of the commit task."""
        self._due, self._timer = math.inf, None
        why = f": {self.obstacle}" if self.obstacle else ""
        for ticket in self._open():
            if ticket.ends <= now():
                error = RequestTimedOutError(f"the commit of {listed(ticket.entries)} did not finish in time{why}")
                self._fail([ticket], error)
        self._notify()
        self._set_timer(min((ticket.ends for ticket in self._open()), default=math.inf))

    def need_brokers(self, within_s: float) -> None:
        """From now on, fail the commits that wait whenever no broker has responded for ``within_s`` seconds; for a close."""
        if self._brokers_timer is None and not self._closed:
            self._look_for_brokers(now(), within_s)

    def _look_for_brokers(self, since: float, within_s: float) -> None:
        silent_s = now() - max(since, self._with.cluster.answered_at)
        if silent_s >= within_s:
            why = f": {self.obstacle}" if self.obstacle else ""
            self._fail(self._open(), RequestTimedOutError(f"no broker has responded for {silent_s:.0f} s{why}"))
            self._notify()
        self._brokers_timer = self._loop.call_later(_CHECK_BROKERS_S, self._look_for_brokers, since, within_s)

    async def close(self, deadline: Deadline) -> None:
        """Wait for the tickets submitted so far until ``deadline``; then fail these tickets and all later tickets."""
        await self.drained(deadline)
        self._closed = True
        if self._lane is not None and not self._lane.done():
            self._lane.cancel()
            await asyncio.gather(self._lane, return_exceptions=True)
        self._fail_waiting(ClosedError("the coordinator was closed before the commit had a response"))
        for timer in (self._timer, self._brokers_timer):
            if timer is not None:
                timer.cancel()


def _wanted(offsets: _Offsets) -> _Offsets:
    """Return the offsets of a :class:`Ticket` that have no result yet."""
    return {
        partition: newest
        for partition, newest in offsets.items()
        if any(partition not in ticket.answers for ticket in newest.tickets)
    }


def _crosses_ownership(ticket: Ticket, merged: Mapping[TopicPartition, _Newest]) -> bool:
    """Return whether a ticket has another ownership for a partition than the merged tickets."""
    for partition, entry in ticket.entries.items():
        newest = merged.get(partition)
        if newest is not None and newest.entry.ownership != entry.ownership:
            return True
    return False
