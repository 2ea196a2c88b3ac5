"""A query's membership in the group, inside the query's planner process, which Spark starts.

Calls come from the planner's main thread, one at a time, between micro-batches. Joining, heartbeats and rebalances run on the
coordinator's daemon thread, even during a batch. But the query's partitions change only in :meth:`QueryMembership.next_batch`.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError, FatalError, RetriableError
from consumer_coord.group.carry_out import Holder, carry_out, run_through
from consumer_coord.leaders.list_offsets import LATEST
from consumer_coord.net.metadata import Metadata, is_other
from consumer_coord.printable import get_logger
from consumer_coord.runtime.blocking_coordinator import BlockingCoordinator
from consumer_coord.runtime.outcome import Outcome
from consumer_coord.spark.checkpoint import Offsets, check_cluster, damaged
from consumer_coord.spark.commits import Commits
from consumer_coord.spark.end_offsets import REQUEST_TIMEOUT_MS, EndOffsets, EndsView
from consumer_coord.spark.errors import CheckpointError, DataLossError
from consumer_coord.spark.first_join import LOOK_EVERY_S, SHARE_WAIT_S, Joining, pause
from consumer_coord.spark.identity import TopicIdentity
from consumer_coord.spark.options import Options
from consumer_coord.spark.planner import Holding, Limits, PlannedCommit, Planner
from consumer_coord.spark.start_lookups import look, resolve
from consumer_coord.spark.start_offsets import NO_COMMIT, Beginning, Start, View, view_of
from consumer_coord.spark.status import Status
from consumer_coord.spark.user_code import with_callbacks
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)

#: Maximum age of known end offsets in seconds, for a busy and for an idle query. Spark calls an idle query every 10 ms, so
#: most calls read known end offsets.
FRESH_S = 0.02
IDLE_FRESH_S = 0.1
#: Time that a planning call waits for new end offsets, in seconds, unless the query is idle.
VIEW_WAIT_S = 2.0
#: Time between two planning calls, in seconds. Below this time, Spark repeats the call because the query is idle.
SPIN_S = 0.05
#: The number of checks of a log that ends before the planned end of a batch, and the interval between them, in seconds.
LOOKS_AT_A_CUT = 4
CUT_LOOK_EVERY_S = 1.0
#: Time limit for leaving the group, in milliseconds, so that leaving does not delay the end of the process.
LEAVE_TIMEOUT_MS = 1_500


class QueryMembership(Holder):
    """The membership of one query. The constructor does no I/O; the first call that needs the group joins the group."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._planner = Planner(options.group)
        self._limits = Limits(options.max_offsets, options.min_offsets, options.max_trigger_delay_ms)
        self._read_committed = options.config().read_committed
        self.status: Status = Status(options.group)
        self._joining = Joining(options, self.status)
        self._coordinator: BlockingCoordinator | None = None
        self._ends: EndOffsets | None = None
        #: The start of each partition that is about to be added to this query.
        self._starts: Mapping[TopicPartition, Start] = {}
        self._checkpoint_checked = False
        #: The look-up of the group's commits and of the cluster, which begins before this query joins the group.
        self._looking: Outcome[Beginning | None] | None = None
        self._beginning: Beginning | None = None
        self._looked = False
        self._identity = TopicIdentity()
        self._commits = Commits(options, self._planner, self.status, self._identity, lambda: self._member, self._committed)
        #: Owned partitions whose start offset is not committed yet. Batches contain none of their records.
        self._starting: dict[TopicPartition, Holding] = {}
        self._target_ends: Mapping[TopicPartition, int] | None = None
        self._last_call_s = float("-inf")
        self._seen_target = -1
        #: Protects the order of joining and leaving. After leaving, the query never joins again.
        self._gate = threading.Lock()
        self._left = False

    # -- joining and leaving ----------------------------------------------------------------------------------------

    def open(self) -> BlockingCoordinator:
        """Subscribe at the first call, and return the coordinator. The member joins in the background."""
        if self._coordinator is not None and not self._left:
            return self._coordinator
        options = self._options
        assignors = options.assignors()
        with self._gate:
            if self._left:
                raise FatalError("this query has left its group")
            self._coordinator = coordinator = BlockingCoordinator(with_callbacks(options.settings), assignors=assignors)
            self._ends = EndOffsets(coordinator, read_committed=self._read_committed)
            if options.pattern is not None:
                coordinator.subscribe_pattern(re.compile(options.pattern))
            else:
                coordinator.subscribe(options.topics)
            # The look-up begins before this member joins, so queries that start at the same time all see a group without
            # commits.
            self._looking = self._look(coordinator)
        return coordinator

    def _look(self, coordinator: BlockingCoordinator) -> Outcome[Beginning | None]:
        options = self._options
        return coordinator.submit(
            lambda: look(
                coordinator.core,
                options.topics,
                options.pattern,
                options.starting,
                read_committed=self._read_committed,
                timeout_ms=REQUEST_TIMEOUT_MS,
            )
        )

    def _find_beginning(self, coordinator: BlockingCoordinator) -> Beginning | None:
        """Return the cluster as it was before the group's first commit.

        Return None if the group had commits before this query joined, or if the checkpoint has batches of this query.
        """
        if not self._looked:
            if not self._planner.history.began:
                assert self._looking is not None
                try:
                    self._beginning = self._looking.result()
                except RetriableError:
                    # This query has committed nothing yet, so a later look-up gives the same answer.
                    self._looking = self._look(coordinator)
                    raise
            self._looked = True
        return self._beginning

    def leave(self) -> None:
        """Leave the group within about a second, without further commits. Any thread may call this method.

        All callers wait for the end of one common operation.
        """
        with self._gate:
            self._left = True
        if self._coordinator is not None:
            try:
                self._coordinator.close(LEAVE_TIMEOUT_MS)
            except CoordinatorError as error:
                logger.info(
                    "leaving group %r: %s; the broker removes the member when its session expires", self._options.group, error
                )

    def _poll(self, coordinator: BlockingCoordinator) -> None:
        try:
            coordinator.polled()
        except RetriableError as error:
            # The coordinator retries, and the query continues with the partitions that it owns.
            self.status.report("group", error)
        else:
            if coordinator.generation >= 0 and not coordinator.core.application.failures.obstacle:
                self.status.report("group", None)

    # -- planning ---------------------------------------------------------------------------------------------------

    def next_batch(self, start: Offsets, limits: Limits | None = None) -> Offsets | None:
        """Commit the finished batch that ends at ``start``, take part in rebalances, and plan the next batch.

        Return None if there is no batch.
        """
        coordinator = self.open()
        assert self._ends is not None
        now_s = time.monotonic()
        spinning = now_s - self._last_call_s < SPIN_S and self._planner.unfinished is None
        self._planner.confirm(start)
        self._poll(coordinator)
        if not self._joining.join(coordinator):
            return None
        self._joining.report_missing_topics(coordinator)
        if not self._checkpoint_checked:
            self._check_checkpoint(coordinator, start)
            self._checkpoint_checked = True
        if self._target_ends is None:
            self._joining.await_share(coordinator, SHARE_WAIT_S)
            self._settle(coordinator)
            self._commits.finished()
            view = self._current_view(self._ends, now_s, spinning)
        else:
            view = self._await_records(coordinator, self._ends, self._target_ends)
        self._check_topics(coordinator, view)
        ends = self._readable(self._ends, view)
        cluster = coordinator.metadata.cluster_id or ""
        planned = self._planner.plan(
            start,
            ends,
            self._current_limits(limits),
            cluster=cluster,
            generation=coordinator.generation,
            now_ms=time.monotonic() * 1000,
        )
        if planned is None and self._target_ends is not None:
            # With Trigger.AvailableNow, this was the last planning call.
            self._commits.drain()
        self._last_call_s = time.monotonic()
        self.status.update(self._planner.held, ends, coordinator.generation, coordinator.member_id)
        return planned

    def _current_limits(self, limits: Limits | None) -> Limits:
        chosen = self._limits if limits is None else limits
        # With Trigger.AvailableNow, the last records may be fewer than the minimum.
        return chosen if self._target_ends is None else attrs.evolve(chosen, min_offsets=None)

    def _check_checkpoint(self, coordinator: BlockingCoordinator, start: Offsets) -> None:
        check_cluster(start, coordinator.metadata.cluster_id, self._options.bootstrap_servers)
        topics = start.topics.keys()
        pattern = self._options.pattern
        if pattern is not None:
            mine = {topic for topic in topics if re.compile(pattern).fullmatch(topic)}
        else:
            mine = topics & set(self._options.topics)
        if topics and not mine:
            raise CheckpointError(
                f"checkpointLocation belongs to a query of {', '.join(sorted(topics))}, but this query has"
                f" {self._options.subscription()}: restore the former subscription, or give this query a separate checkpoint"
            )

    # -- the assignment ---------------------------------------------------------------------------------------------

    def _settle(self, coordinator: BlockingCoordinator) -> None:
        """Apply the changes of the assignment: lost, revoked and added partitions."""
        for _ in range(10):
            target = coordinator.core.assignment.target
            if target.generation >= 0 and target.number != self._seen_target:
                self._seen_target = target.number
                self.status.rebalances += 1
            if not run_through(carry_out(coordinator.core, self)):
                return
            if not coordinator.change():
                break
        self._commit_starts(coordinator)

    @property
    def _member(self) -> BlockingCoordinator:
        assert self._coordinator is not None
        return self._coordinator

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop planning these partitions, because another member may already read them."""
        try:
            self._commits.lost(partitions)
            self.status.record("lost", partitions, self._member.generation)
        finally:
            self._release(partitions)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit all finished offsets and stop planning these partitions, so that the next owner continues at the commits."""
        try:
            self._commits.finished()
            self._commits.drain()
            self.status.record("revoked", partitions, self._member.generation)
            self._check_deleted(self._member, partitions)
        finally:
            self._release(partitions)

    async def may_hold(self, partitions: frozenset[TopicPartition]) -> bool:
        """Find the start offsets of these partitions. If a start is not known yet, report the problem and return False."""
        try:
            self._starts = {**self._starts, **self._resolve(self._member, partitions)}
        except RetriableError as error:
            self.status.report("starts", f"the start offsets of {listed(partitions)} are unknown: {error}")
            return False
        self.status.report("starts", None)
        return True

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Start to plan these partitions from the start offsets that were found."""
        assert self._ends is not None
        self._hold(self._member, {partition: self._starts[partition] for partition in partitions})
        self._starts = {}
        self.status.record("owned", partitions, self._member.generation)
        self._ends.forget()

    def _release(self, partitions: frozenset[TopicPartition]) -> None:
        self._planner.drop(partitions)
        for partition in partitions:
            self._starting.pop(partition, None)
        self._commits.forget(partitions)

    def _resolve(self, coordinator: BlockingCoordinator, added: frozenset[TopicPartition]) -> Mapping[TopicPartition, Start]:
        if not added:
            return {}
        history = self._planner.history
        starts = resolve(
            added,
            coordinator,
            history,
            self._find_beginning(coordinator),
            self._options.starting,
            read_committed=self._read_committed,
            timeout_ms=REQUEST_TIMEOUT_MS,
            on_loss=self._lose,
        )
        for partition, start in starts.items():
            before = history.topic_id(partition.topic)
            if before is not None and is_other(before, start.topic_id):
                # Forget the topic only after the look-up succeeded, because a repeated look-up must give the same result.
                self._planner.forget(partition.topic)
        return starts

    def _hold(self, coordinator: BlockingCoordinator, starts: Mapping[TopicPartition, Start]) -> None:
        ownerships = coordinator.core.assignment.ownerships(starts)
        for partition, start in starts.items():
            ownership = ownerships[partition]
            if ownership is None:
                continue  # The partition was already lost again. The next change of the assignment reports the loss.
            assert start.position is not None
            holding = Holding(start.topic_id, ownership, start.position, start.committed)
            if start.committed == NO_COMMIT:
                self._starting[partition] = holding
            else:
                self._planner.take_up(partition, holding)

    def _commit_starts(self, coordinator: BlockingCoordinator) -> None:
        """Commit the start offsets, so that the next owner does not look up different starts later."""
        commits = {
            partition: PlannedCommit(holding.position, holding.ownership, holding.topic_id)
            for partition, holding in self._starting.items()
        }
        if commits:
            self._commits.submit(commits)
            self._commits.drain()

    def _committed(self, partition: TopicPartition, commit: PlannedCommit) -> None:
        """Record an accepted commit. If this commit was the start of the partition, start to plan the partition."""
        holding = self._starting.get(partition)
        if holding is None:
            self._planner.committed(partition, commit)
        elif commit == PlannedCommit(holding.position, holding.ownership, holding.topic_id):
            self._planner.take_up(partition, attrs.evolve(self._starting.pop(partition), committed=commit.offset))

    # -- end offsets ------------------------------------------------------------------------------------------------

    def _current_view(self, looked_up: EndOffsets, now_s: float, spinning: bool) -> EndsView:
        positions = {partition: holding.position for partition, holding in self._planner.held.items()}
        if not positions:
            return EndsView()
        view = looked_up.view()
        if now_s - view.at_s > (IDLE_FRESH_S if spinning else FRESH_S):
            if spinning:
                looked_up.look(positions)
            else:
                view = looked_up.wait(positions, VIEW_WAIT_S)
        self.status.report("end offsets", looked_up.problem)
        return view

    def _readable(self, looked_up: EndOffsets, view: EndsView) -> Mapping[TopicPartition, int]:
        ends = view.ends
        behind = {
            partition: ends[partition]
            for partition, holding in self._planner.held.items()
            if partition in ends and ends[partition] < holding.position
        }
        if behind:
            self._check_behind(looked_up, view, behind)
        if self._target_ends is not None:
            # Read no record that was written after this run began: a partition that did not exist when the run began has the
            # end offset 0.
            targets = self._target_ends
            ends = {partition: min(end, targets.get(partition, 0)) for partition, end in ends.items()}
        return ends

    # -- loss of data -----------------------------------------------------------------------------------------------

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"data loss in {what}. To continue with the remaining records, set failOnDataLoss=false")
        logger.warning("data loss in %s; continuing, because failOnDataLoss=false", what)

    def _check_topics(self, coordinator: BlockingCoordinator, view: EndsView) -> None:
        """Check whether the topic of an owned partition was deleted and created again."""
        held = {**self._starting, **self._planner.held}
        ids: dict[str, set[uuid.UUID]] = {}
        for partition, holding in held.items():
            ids.setdefault(partition.topic, set()).add(holding.topic_id)
        try:
            found = self._identity.recreated(
                ids, coordinator.metadata, view.ids, lambda: coordinator.refresh_metadata(REQUEST_TIMEOUT_MS)
            )
            for topic, now in found.items():
                again = {
                    partition: holding
                    for partition, holding in held.items()
                    if partition.topic == topic and is_other(holding.topic_id, now)
                }
                self._recreated(coordinator, again, now)
        except RetriableError as error:
            self.status.report("topic ids", f"the topic ids are unknown: {error}")
        else:
            self.status.report("topic ids", None)

    def _recreated(self, coordinator: BlockingCoordinator, held: Mapping[TopicPartition, Holding], topic_id: uuid.UUID) -> None:
        """Restart these partitions: the topic was recreated under the same name, so all recorded offsets are invalid."""
        topic, before = next((partition.topic, holding.topic_id) for partition, holding in held.items())
        unread = ", ".join(f"{partition.partition} from {holding.position}" for partition, holding in sorted(held.items()))
        self._lose(
            f"topic {topic!r}: it was deleted and created again (topic id {before}, now {topic_id}); unread records of its"
            f" partitions ({unread}) are gone"
        )
        finished = self._planner.history.topic_id(topic)
        if finished is not None and is_other(finished, topic_id):
            self._planner.forget(topic)
        starts = self._resolve(coordinator, frozenset(held))
        self._identity.replaced(before)
        self._release(frozenset(held))
        self._hold(coordinator, starts)
        assert self._ends is not None
        self._ends.forget()
        self._commit_starts(coordinator)

    def _check_behind(self, looked_up: EndOffsets, view: EndsView, behind: Mapping[TopicPartition, int]) -> None:
        """Handle a partition that ends before the query's position: the topic was recreated, or the log was truncated."""
        before = dict(self._planner.held)
        self._identity.hint()
        self._check_topics(self._member, view)
        for partition, end in behind.items():
            holding = self._planner.held.get(partition)
            if holding is None or holding != before[partition]:
                continue
            self._lose(
                f"topic {partition.topic!r}, partition {partition.partition}: its log was truncated at offset {end}, although"
                f" this query had read up to offset {holding.position} (an unclean leader election?)"
            )
            self._planner.move(partition, end)
        looked_up.forget()

    def _check_deleted(self, coordinator: BlockingCoordinator, revoked: frozenset[TopicPartition]) -> None:
        present, wanted = coordinator.metadata.topics, self._options.topics
        gone = [row for row in revoked if row.topic not in present and (not wanted or row.topic in wanted)]
        if gone:
            self._lose(f"{listed(gone)}: the topic was deleted, and its unread records are gone")

    # -- other calls ------------------------------------------------------------------------------------------------

    def is_planned(self, end: Offsets) -> bool:
        """Return True for the last planned batch until the batch is finished."""
        return self._planner.unfinished == end

    def check_replay(self, end: Offsets) -> Offsets:
        """Return the part of a recorded batch that can be read again, from the same topics and up to the ends of the logs."""
        coordinator = self.open()
        limit_ms = coordinator.config.coordinator.default_api_timeout_ms
        try:
            metadata = coordinator.refresh_metadata(limit_ms)
        except RetriableError as error:
            raise type(error)(
                f"{error}: the unfinished batch of the checkpoint cannot be read;"
                f" are the brokers of kafka.bootstrap.servers={self._options.bootstrap_servers!r} up?"
            ) from error
        check_cluster(end, metadata.cluster_id, self._options.bootstrap_servers)
        kept = dict(end.topics)
        for name, part in end.topics.items():
            topic = metadata.topics.get(name)
            if topic is not None and is_other(part.id, topic.id):
                self._lose(
                    f"topic {name!r}: the unfinished batch of the checkpoint was planned for topic id {part.id}, but the"
                    f" topic was deleted and created again with id {topic.id}"
                )
                del kept[name]
        return self._within_logs(coordinator, attrs.evolve(end, topics=kept), metadata, limit_ms)

    def _within_logs(self, coordinator: BlockingCoordinator, batch: Offsets, metadata: Metadata, limit_ms: float) -> Offsets:
        """Shorten a batch to the ends of the logs, because an unclean leader election may have removed the last records.

        A new leader may report an older high watermark for a moment, so the query repeats the look-up if an end is too low.
        """
        counts = metadata.partitions(batch.topics)
        asked = {partition: span for partition, span in batch.spans() if span.start < span.end and partition.topic in counts}
        unknown = [partition for partition in asked if partition.partition >= counts[partition.topic]]
        if unknown:
            raise damaged(self._options.group, listed(unknown), "the topic has fewer partitions")
        ends: Mapping[TopicPartition, int] = {}
        for attempt in range(LOOKS_AT_A_CUT):
            if attempt:
                pause(CUT_LOOK_EVERY_S)
            found = coordinator.list_offsets(dict.fromkeys(asked, LATEST), limit_ms) if asked else {}
            ends = {partition: one.offset for partition, one in found.items() if one.offset < asked[partition].end}
            if not ends:
                return batch
        topics = dict(batch.topics)
        for partition, end in ends.items():
            span = asked[partition]
            self._lose(
                f"topic {partition.topic!r}, partition {partition.partition}, offsets {span.start} to {span.end}: out of"
                f" range, because its log was truncated at offset {end} (an unclean leader election, or a disk that lost its"
                " last writes?)"
            )
            part = topics[partition.topic]
            shorter = attrs.evolve(span, end=max(span.start, end))
            self._planner.cut(partition, span.end, end)
            topics[partition.topic] = attrs.evolve(part, spans={**part.spans, partition.partition: shorter})
        return attrs.evolve(batch, topics=topics)

    def prepare_available_now(self) -> None:
        """Set the end offsets of a Trigger.AvailableNow run. The query reads no record that is written after this call."""
        coordinator = self.open()
        self._poll(coordinator)
        while not self._joining.join(coordinator):
            continue
        view = self._complete_view(coordinator)
        every = dict.fromkeys(view.partitions, LATEST)
        found = coordinator.list_offsets(every, read_committed=self._read_committed)
        self._target_ends = {partition: listed_offset.offset for partition, listed_offset in found.items()}

    def _complete_view(self, coordinator: BlockingCoordinator) -> View:
        """Wait for a complete view of the subscribed topics and return the view; raise ``RetriableError`` if time runs out."""
        limit_ms = coordinator.config.coordinator.default_api_timeout_ms
        end_s = time.monotonic() + limit_ms / 1000
        while True:
            asked_version = coordinator.metadata.version + 1
            view = view_of(coordinator.refresh_metadata(limit_ms), self._options.topics, self._options.pattern)
            incomplete = view.incomplete(asked_version)
            if incomplete is None:
                return view
            if time.monotonic() > end_s:
                raise RetriableError(
                    f"the end offsets of {self._options.subscription()} are not known after {limit_ms / 1000:g} s:"
                    f" {incomplete}; start the query again"
                )
            pause(LOOK_EVERY_S)

    # -- Trigger.AvailableNow -----------------------------------------------------------------------------------------

    def _await_records(
        self, coordinator: BlockingCoordinator, looked_up: EndOffsets, targets: Mapping[TopicPartition, int]
    ) -> EndsView:
        """Wait until the owners of partitions with unread records, and the end offsets of this query's, are known.

        The run ends if a batch would have no records. So unknown end offsets must not count as no records. Raise
        ``RetriableError`` after the time limit.
        """
        limit_ms = coordinator.config.coordinator.default_api_timeout_ms
        end_s = time.monotonic() + limit_ms / 1000
        while True:
            self._await_owners(coordinator, targets)
            view = self._current_view(looked_up, time.monotonic(), spinning=False)
            unknown = self._unread(targets) - view.ends.keys()
            if not unknown:
                return view
            if time.monotonic() > end_s:
                raise RetriableError(
                    f"the end offsets of {listed(unknown)} are not known after {limit_ms / 1000:g} s:"
                    f" {looked_up.problem or 'the brokers do not answer'}; start the query again"
                )
            pause(LOOK_EVERY_S)
            self._poll(coordinator)

    def _await_owners(self, coordinator: BlockingCoordinator, targets: Mapping[TopicPartition, int]) -> None:
        """Wait until this query or another member owns each partition with unread records.

        The run ends when this query has read its own partitions. Wait also for partitions that the group is moving to this
        query. Raise ``RetriableError`` if a partition has no owner after the time limit.
        """
        from consumer_coord.spark.available_now import unowned

        config = coordinator.config.coordinator
        limit_s = (config.default_api_timeout_ms + config.session_timeout_ms) / 1000
        began_s = time.monotonic()
        while True:
            self._settle(coordinator)
            self._commits.finished()
            left = unowned(coordinator, self._planner.held.keys(), targets)
            waited_s = time.monotonic() - began_s
            # Wait longer if some of the partitions belong to this query: they may move to another source of the same query.
            # Until that source answers, Spark runs no batch, so the query does not revoke partitions.
            limit_here_s = limit_s / 2 if left & self._planner.held.keys() else SHARE_WAIT_S
            if not left or (waited_s > limit_here_s and self._unread(targets)):
                self.status.report("owners", None)
                return
            problem = f"Trigger.AvailableNow: the group has not assigned {listed(left)} yet, although unread records remain"
            if waited_s > limit_s:
                raise RetriableError(
                    f"{problem} after {limit_s:g} s. Another member delays a rebalance, because it is in a long batch or does"
                    " not poll; start the query again, or give it a separate group"
                )
            self.status.report("owners", problem)
            pause(LOOK_EVERY_S)
            self._poll(coordinator)

    def _unread(self, targets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        held = self._planner.held.items()
        return frozenset(partition for partition, holding in held if holding.position < targets.get(partition, 0))
