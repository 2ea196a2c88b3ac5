"""Commits of a consumer: automatic ones, and asynchronous ones whose outcome a later poll tells."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import uuid
from collections import deque
from collections.abc import Callable, Mapping

import attrs

from consumer_coord.consumer.data_plane import OFFSET_INVALID
from consumer_coord.consumer.home import Home, Pending
from consumer_coord.consumer.recreated_topics import RecreatedTopics
from consumer_coord.errors import CoordinatorError, RequestTimedOutError
from consumer_coord.group.committed_offsets import CommitResult, OffsetAndMetadata
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.printable import get_logger
from consumer_coord.topic_partition import TopicPartition, listed

logger = get_logger(__name__)

Positions = Mapping[TopicPartition, OffsetAndMetadata]

#: More asynchronous commits than this wait for the coordinator: then the next one waits for the oldest.
MOST_ASYNCHRONOUS = 20_000


def outcome(wanted: Positions, pending: Pending[CommitResult]) -> CommitResult:
    """How a commit went that is done, for each partition; a foreign exception is raised."""
    error = RequestTimedOutError("the commit was given up") if pending.cancelled() else pending.exception()
    if error is None:
        return pending.result()
    if not isinstance(error, CoordinatorError):
        raise error
    return dict.fromkeys(wanted, error)


def warn_of_failed(what: str, result: CommitResult) -> None:
    """Log what could not be committed: it will be processed again if the partitions move now."""
    failed = {partition: error for partition, error in result.items() if error is not None}
    if failed:
        logger.warning("%s of %s failed: %s", what, listed(failed), next(iter(failed.values())))


#: Called with what an automatic commit is about, and the commit that is under way.
Follow = Callable[[Positions, Pending[CommitResult]], None]


@attrs.define
class _Timer:
    """Rings for the next automatic commit; holds no consumer, so that one that is dropped can be collected."""

    core: ConsumerCoordinator
    due: bool = False
    stopped: bool = False

    def ring(self) -> None:
        """It is time."""
        if not self.stopped:
            self.due = True
            self.core.application.rouse()


class AutoCommit:
    """``enable.auto.commit``: every ``auto.commit.interval.ms`` what was finished at the poll is committed."""

    def __init__(self, core: ConsumerCoordinator, home: Home, recreated: RecreatedTopics, follow: Follow | None = None) -> None:
        """``follow`` gets each commit that was started."""
        self.enabled = core.config.enable_auto_commit
        self._follow = follow
        self._core = core
        self._home = home
        self._recreated = recreated
        self._interval_s = max(0.001, core.config.auto_commit_interval_ms / 1000)
        self._timer = _Timer(core)
        self._running = False
        #: What needs no commit any more: committed, on its way, or where the group's commit was found.
        self._last: dict[TopicPartition, OffsetAndMetadata] = {}
        #: The last commit of each partition that was sent.
        self._sent: dict[TopicPartition, Pending[CommitResult]] = {}

    def begin(self) -> None:
        """Start, with the first subscription or assignment."""
        # An interval of 0 leaves the commits before partitions are given up, as in librdkafka.
        if self.enabled and not self._running and self._core.config.auto_commit_interval_ms > 0:
            self._running = True
            self._home.later(self._interval_s, self._timer.ring)

    def stop(self) -> None:
        """End."""
        self._timer.stopped = True

    @property
    def due(self) -> bool:
        """True when it is time."""
        return self._timer.due

    def started(self, committed: Positions) -> None:
        """These begin at a commit of the group."""
        self._last.update(committed)

    def began_at(self, partition: TopicPartition) -> int:
        """The group's commit that a partition began at, or the last one that was sent; ``OFFSET_INVALID`` without one."""
        at = self._last.get(partition)
        return OFFSET_INVALID if at is None else at.offset

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        """These are not read any more: another member may commit them."""
        for partition in partitions:
            self._last.pop(partition, None)
            self._sent.pop(partition, None)

    def under_way(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, Pending[CommitResult]]:
        """The commits of these that are not answered yet."""
        return {
            partition: pending
            for partition in partitions
            if (pending := self._sent.get(partition)) is not None and not pending.done()
        }

    def commit(self, finished: Positions, timeout_ms: float, *, what: str = "automatic commit") -> Pending[CommitResult] | None:
        """Start a commit of what is not committed yet; None when there is nothing.  ``what`` stands in the log if it fails."""
        wanted = {partition: at for partition, at in finished.items() if self._last.get(partition) != at}
        if not wanted:
            return None
        self._last.update(wanted)
        pending = self._recreated.commit(wanted, timeout_ms)
        self._sent.update(dict.fromkeys(wanted, pending))
        last = self._last
        pending.add_done_callback(lambda done: _answered(done, wanted, last, what))
        if self._follow is not None:
            self._follow(wanted, pending)
        return pending

    def tick(self, finished: Positions) -> None:
        """It was time: commit, without waiting for the answer, and set the timer anew."""
        self._timer.due = False
        self._home.later(self._interval_s, self._timer.ring)
        self.commit(finished, self._core.config.default_api_timeout_ms)


def _answered(done: Pending[CommitResult], wanted: Positions, last: dict[TopicPartition, OffsetAndMetadata], what: str) -> None:
    if done.cancelled():
        return
    result = outcome(wanted, done)
    warn_of_failed(what, result)
    for partition, error in result.items():
        if error is not None and last.get(partition) == wanted[partition]:
            last.pop(partition, None)


def _of_another_topic(topic_ids: Mapping[TopicPartition, uuid.UUID], before: Mapping[TopicPartition, uuid.UUID]) -> bool:
    """Whether a partition in both is of another topic: it was deleted and made again."""
    return any(before.get(partition, topic_id) != topic_id for partition, topic_id in topic_ids.items())


#: Called with what was to be committed and how it went.
Tell = Callable[[Positions, CommitResult], None]


@attrs.define(eq=False)
class _Call:
    """One asynchronous commit of the application's, or an automatic one that it is told of."""

    wanted: Positions
    #: Of the home's clock.
    asked_at: float
    #: The request that carries it; None until the loop has taken it up.
    sent: Pending[CommitResult] | None = None
    ownerships: Mapping[TopicPartition, int | None] = attrs.field(factory=dict)
    topic_ids: Mapping[TopicPartition, uuid.UUID] = attrs.field(factory=dict)

    def outcome(self) -> CommitResult:
        """For its own partitions alone: a request may carry those of many calls."""
        assert self.sent is not None
        result = outcome(self.wanted, self.sent)
        return {partition: result[partition] for partition in self.wanted}


class AsynchronousCommits:
    """Asynchronous commits: the outcome of each is reported exactly once, in the order of the calls.

    A call only notes what it wants.  The loop takes up all notes there are with one commit, in which the later offset of a
    partition replaces an earlier one, and takes up further ones when that is answered: the coordinator has one OffsetCommit
    of a member under way at a time in any case.  So an application that commits each message pays little more than the note.
    """

    def __init__(self, core: ConsumerCoordinator, home: Home, tell: Tell, recreated: RecreatedTopics) -> None:
        self._core = core
        self._recreated = recreated
        self._home = home
        self._tell = tell
        self._flying: deque[_Call] = deque()
        #: Noted and not taken up yet; appended to by any thread, emptied on the loop.
        self._noted: deque[_Call] = deque()
        #: True while the loop will look at the notes without being told.
        self._expected = False
        recreated.earlier = self._take_up

    @property
    def asked_at(self) -> float:
        """When the oldest one was asked for whose outcome is still to come, of the home's clock; infinity without one."""
        return self._flying[0].asked_at if self._flying else math.inf

    @property
    def full(self) -> bool:
        """True when the next one has to wait for the oldest."""
        return len(self._flying) >= MOST_ASYNCHRONOUS

    async def make_room(self) -> None:
        """Wait for the oldest, and tell of it."""
        ends = self._home.now() + self._core.config.default_api_timeout_ms / 1000
        while self.full and self._home.now() < ends:
            await self._answered(self._flying[0], ends)
            self.tell()

    async def _answered(self, call: _Call, ends: float) -> bool:
        """Wait for a call's answer until ``ends``; False when it did not come."""
        pending = self._home.start(lambda: self._until_answered(call))
        return await self._home.wait(pending, max(0.0, ends - self._home.now()))

    async def _until_answered(self, call: _Call) -> None:
        # Also what an interrupt left between its note and the message to the loop.
        self._take_up()
        sent = call.sent
        assert sent is not None
        own = asyncio.wrap_future(sent) if isinstance(sent, concurrent.futures.Future) else sent
        assert isinstance(own, asyncio.Future)
        await asyncio.wait({own})

    def start(self, wanted: Positions) -> None:
        """Commit, without waiting."""
        call = _Call(
            wanted, self._home.now(), ownerships=self._core.assignment.ownerships(wanted), topic_ids=self._recreated.of(wanted)
        )
        # In this order: an interrupt in between leaves a commit that is not told of, and none that is waited for in vain.
        self._noted.append(call)
        self._flying.append(call)
        if not self._expected:
            self._expected = True
            self._home.later(0, self._take_up)

    def follow(self, wanted: Positions, pending: Pending[CommitResult]) -> None:
        """Tell of this commit, too, when it is answered."""
        self._flying.append(_Call(wanted, self._home.now(), pending))
        pending.add_done_callback(lambda _: self._core.application.rouse())

    def _take_up(self) -> None:
        """On the loop: commit all that was noted."""
        # First the flag and then the look: what is noted in between is taken up now, or tells the loop again.
        self._expected = False
        while self._noted:
            self._expected = True
            self._send_notes()

    def _send_notes(self) -> None:
        """One commit for all notes, up to one of another topic of the same name: the lane of commits tells those apart."""
        calls = []
        wanted: dict[TopicPartition, OffsetAndMetadata] = {}
        ownerships: dict[TopicPartition, int | None] = {}
        topic_ids: dict[TopicPartition, uuid.UUID] = {}
        while self._noted and not _of_another_topic(self._noted[0].topic_ids, topic_ids):
            call = self._noted.popleft()
            calls.append(call)
            wanted.update(call.wanted)
            ownerships.update(call.ownerships)
            for partition in call.wanted:
                topic_ids.pop(partition, None)
            topic_ids.update(call.topic_ids)
        core = self._core
        sent: Pending[CommitResult]
        try:
            sent = core.start_commit(
                wanted, timeout_ms=core.config.default_api_timeout_ms, ownerships=ownerships, topic_ids=topic_ids
            )
        except CoordinatorError as error:
            failed: asyncio.Future[CommitResult] = asyncio.get_running_loop().create_future()
            failed.set_result(dict.fromkeys(wanted, error))
            sent = failed
        for call in calls:
            call.sent = sent
        self._recreated.look_up_unknown(sent)
        sent.add_done_callback(self._on_answer)

    def _on_answer(self, _: Pending[CommitResult]) -> None:
        self._core.application.rouse()
        self._take_up()

    def tell(self) -> None:
        """Tell of those that were answered."""
        flying = self._flying
        while flying and flying[0].sent is not None and flying[0].sent.done():
            call = flying.popleft()
            self._tell(call.wanted, call.outcome())

    async def finish(self, ends: float) -> None:
        """Wait for all of them until ``ends``, of the home's clock, and tell of all; before close."""
        while self._flying:
            if await self._answered(self._flying[0], ends):
                self.tell()
                continue
            call = self._flying.popleft()
            late = RequestTimedOutError("the commit was not answered before the consumer was closed")
            self._tell(call.wanted, dict.fromkeys(call.wanted, late))
