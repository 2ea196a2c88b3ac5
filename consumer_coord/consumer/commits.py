"""Commits of a consumer: automatic ones, and asynchronous ones whose outcome a later poll tells."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import attrs

from consumer_coord.consumer.home import Home, Pending
from consumer_coord.errors import CoordinatorError, RequestTimedOutError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.offsets import CommitResult, OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes

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
    """The clock of ``enable.auto.commit``: the engine commits at the poll after :attr:`due` became true."""

    def __init__(self, core: ConsumerCoordinator, home: Home) -> None:
        self.enabled = core.config.enable_auto_commit
        self._home = home
        # An interval of 0 leaves the commits before partitions are revoked, as in librdkafka.
        self._interval_s = core.config.auto_commit_interval_ms / 1000
        self._timer = _Timer(core)
        self._running = False

    def begin(self) -> None:
        """Start, with the first subscription or assignment."""
        if self.enabled and not self._running and self._interval_s > 0:
            self._running = True
            self._home.later(self._interval_s, self._timer.ring)

    def stop(self) -> None:
        """End."""
        self._timer.stopped = True

    @property
    def due(self) -> bool:
        """Whether the interval has passed."""
        return self._timer.due

    def rearm(self) -> None:
        """Start the next interval."""
        self._timer.due = False
        self._home.later(self._interval_s, self._timer.ring)


def _of_another_topic(topic_ids: Mapping[TopicPartition, uuid.UUID], before: Mapping[TopicPartition, uuid.UUID]) -> bool:
    """Whether a partition in both is of another topic: it was deleted and made again."""
    return any(before.get(partition, topic_id) != topic_id for partition, topic_id in topic_ids.items())


#: Returns the ownerships and the topic ids of partitions.
OwnedAs = Callable[[Iterable[TopicPartition]], tuple[Mapping[TopicPartition, int | None], Mapping[TopicPartition, uuid.UUID]]]

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

    def __init__(self, core: ConsumerCoordinator, home: Home, tell: Tell, owned_as: OwnedAs) -> None:
        """``owned_as`` returns the ownerships and topic ids of positions, at the moment of the call."""
        self._core = core
        self._owned_as = owned_as
        self._home = home
        self._tell = tell
        self._flying: deque[_Call] = deque()
        #: Noted and not taken up yet; appended to by any thread, emptied on the loop.
        self._noted: deque[_Call] = deque()
        #: True while the loop will look at the notes without being told.
        self._expected = False

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
        self.take_up()
        sent = call.sent
        assert sent is not None
        own = asyncio.wrap_future(sent) if isinstance(sent, concurrent.futures.Future) else sent
        assert isinstance(own, asyncio.Future)
        await asyncio.wait({own})

    def start(self, wanted: Positions) -> None:
        """Commit, without waiting."""
        ownerships, topic_ids = self._owned_as(wanted)
        call = _Call(wanted, self._home.now(), ownerships=ownerships, topic_ids=topic_ids)
        # In this order: an interrupt in between leaves a commit that is not told of, and none that is waited for in vain.
        self._noted.append(call)
        self._flying.append(call)
        if not self._expected:
            self._expected = True
            self._home.later(0, self.take_up)

    def follow(self, wanted: Positions, pending: Pending[CommitResult]) -> None:
        """Tell of this commit, too, when it is answered."""
        self._flying.append(_Call(wanted, self._home.now(), pending))
        pending.add_done_callback(lambda _: self._core.application.rouse())

    def take_up(self) -> None:
        """On the loop: commit all that was noted."""
        # First the flag and then the look: what is noted in between is taken up now, or tells the loop again.
        self._expected = False
        while self._noted:
            self._expected = True
            self._send_notes()

    def look_up_unknown(self, pending: Pending[CommitResult]) -> None:
        """Refresh the metadata when the brokers no longer know the id of a topic."""
        cluster, home = self._core.cluster, self._home

        def look_up(done: Pending[CommitResult]) -> None:
            if done.cancelled() or done.exception() is not None:
                return
            if any(error is not None and error.code == error_codes.UNKNOWN_TOPIC_ID for error in done.result().values()):
                home.later(0, lambda: cluster.refresh_later(0))

        pending.add_done_callback(look_up)

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
        self.look_up_unknown(sent)
        sent.add_done_callback(self._on_answer)

    def _on_answer(self, _: Pending[CommitResult]) -> None:
        self._core.application.rouse()
        self.take_up()

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
