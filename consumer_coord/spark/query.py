"""A query as a member of its group: the look-ups and the waits between the group, the brokers and the planner.

All methods run on one loop: the background loop of the query's planner process, or the loop of a simulation. Spark calls one
method at a time, between micro-batches. Joining, heartbeats and rebalances continue in the background, even during a batch, but
the query's partitions change only in :meth:`Query.next_batch`.

:meth:`Query._attempt` sorts all errors of look-ups: a retriable error means that the answer is *unknown*, so the call waits and
asks again; every other error ends the call, and with it the query.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import RetriableError
from consumer_coord.group.apply_changes import Holder, apply_changes
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.list_offsets import LATEST, list_offsets
from consumer_coord.log_text import get_logger
from consumer_coord.net.metadata import Metadata, is_other
from consumer_coord.retry import Deadline
from consumer_coord.settings import CONSUMER
from consumer_coord.spark.batch_ends import Answer, Batch, Ends, Limits, Member, Unknown, plan
from consumer_coord.spark.checkpoint import Offsets, check_cluster, damaged
from consumer_coord.spark.commits import Commits
from consumer_coord.spark.errors import CheckpointError, DataLossError, MissingTopicError
from consumer_coord.spark.ledger import Holding, Key, Ledger, PlannedCommit
from consumer_coord.spark.log_ends import REQUEST_TIMEOUT_MS, EndOffsets
from consumer_coord.spark.options import Options
from consumer_coord.spark.start_lookups import StartLookups
from consumer_coord.spark.start_offsets import Beginning
from consumer_coord.spark.status import Status
from consumer_coord.spark.subscribed_topics import View, fresh_view
from consumer_coord.spark.topic_check import AGAIN_S, TopicCheck, missing_topics
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)

T = TypeVar("T")

#: Time between two planning calls, in seconds. Below this time, Spark repeats the call because the query is idle.
SPIN_S = 0.05
#: Longest time between two look-ups of an idle query, in seconds. A query that has just become idle looks more often: the time
#: between two look-ups is this part of the time since the last records.
IDLE_LOOK_S = 0.1
IDLE_PART = 0.1
#: Time that a planning call waits for newer end offsets, in seconds, before it plans with the known ones.
VIEW_WAIT_S = 2.0
#: Time to wait for partitions that other members must revoke, when the first assignment is empty, in seconds. Without the wait,
#: the first batch would be empty, and the partitions would wait until the next trigger.
SHARE_WAIT_S = 3.0
#: Time after which a query that was in the group records in its checkpoint that it lost its partitions, in seconds, instead of
#: waiting to join again. Another source of the same query may have to answer Spark before the group can rebalance.
REJOIN_WAIT_S = 10.0
#: Time that one attempt waits for a join, in milliseconds.
JOIN_LOOK_MS = 1_000
#: First and longest interval between two attempts to find an answer, in seconds.
LOOK_EVERY_S = 0.02
MOST_BETWEEN_LOOKS_S = 0.5
#: Time for which an answer must be unknown until the reason is reported, in seconds.
REPORT_AFTER_S = 1.5
#: The number of checks of a log that ends before the planned end of a batch, and the interval between them, in seconds.
LOOKS_AT_A_CUT = 4
CUT_LOOK_EVERY_S = 1.0
#: Part of max.poll.interval.ms after which a query that waits for its trigger counts as polling.
ALIVE_PART = 0.25


class Query(Holder):
    """One query's membership, ledger and look-ups. Create the object on its loop, and call :meth:`begin` once."""

    def __init__(self, core: ConsumerCoordinator, options: Options, status: Status) -> None:
        self.core = core
        self.status = status
        self.ledger: Ledger = Ledger(options.group)
        self._options = options
        self._limits = Limits(options.max_offsets, options.min_offsets, options.max_trigger_delay_ms)
        self._read_committed = options.config().read_committed
        self._ends = EndOffsets(core.cluster, read_committed=self._read_committed)
        self._topics = TopicCheck(core.cluster, self._lose)
        self._commits = Commits(core, status, self._topics.hint, self._committed)
        self._lookups = StartLookups(core, options.starting, self._read_committed)
        #: The look-up of the group's commits and of the cluster, which begins before this query joins the group.
        self._looking: asyncio.Task[Beginning | None] | None = None
        self._beginning: Beginning | None = None
        #: Why the next batch is not known: the attempt that failed -> its reason.
        self._unknown: dict[str, Unknown] = {}
        self._unknown_since: dict[str, float] = {}
        self._deadline = Deadline(now())
        self._called_s = now()
        #: The end of the last finished batch, after the ledger has recorded it.
        self._finished: Offsets | None = None
        self._runs_once = False
        self._joined_s: float | None = None
        self._checkpoint_checked = False
        self._shared = False
        #: Subscribed topics that did not exist when a run began.
        self._missing: frozenset[str] = frozenset()
        self._adopts_s = float("-inf")
        self._answered_s = self._busy_s = float("-inf")
        self._seen_target = self._seen_metadata = -1
        self._alive: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Subscribe. The member joins in the background."""
        options = self._options
        if options.pattern is not None:
            self.core.subscribe_pattern(re.compile(options.pattern))
        else:
            self.core.subscribe(options.topics)
        # The look-up begins before this member joins, so queries that start at the same time all see a group without commits.
        self._look_at_beginning()
        self._alive = asyncio.get_running_loop().create_task(self._stay_alive(), name="query waits for its trigger")

    def end(self) -> None:
        """End the background tasks; the member leaves on its own."""
        self._ends.forget()
        for task in (self._alive, self._looking):
            if task is not None:
                task.cancel()

    async def _stay_alive(self) -> None:
        """Count as polling while Spark waits for its trigger, but not during a batch, which may hang."""
        while True:
            await asyncio.sleep(ALIVE_PART * self.core.config.max_poll_interval_ms / 1000)
            if self.ledger.batch is None:
                self.core.application.waited()

    def _look_at_beginning(self) -> None:
        options = self._options
        work = self._lookups.beginning(options.topics, options.pattern, REQUEST_TIMEOUT_MS)
        self._looking = asyncio.get_running_loop().create_task(work, name="group's beginning")
        self._looking.add_done_callback(lambda one: one.cancelled() or one.exception())

    # -- planning calls ---------------------------------------------------------------------------------------------

    async def next_batch(self, start: Offsets, *, once: bool = False) -> Offsets | None:
        """Commit the finished batch that ends at ``start``, take part in rebalances, and plan the next batch.

        Return None if there is nothing new. ``once``: this is the only planning call of a run (Trigger.Once), whose batch has
        everything, regardless of limits. Raise ``RetriableError`` with the reason if the answer is still unknown after
        ``default.api.timeout.ms``.
        """
        called_s = self._called_s = now()
        spinning = called_s - self._answered_s < SPIN_S and self.ledger.batch is None
        if start is not self._finished:
            self.ledger = self.ledger.finish(start, self._subscribed(start.topics))
            self._finished = start if self.ledger.batch is None else None
        if once and not self.ledger.bounded:
            await self.prepare_available_now()
        self._runs_once = once or self.ledger.bounded
        limits = Limits(complete=True) if once else self._limits
        if spinning:
            await asyncio.sleep(min(IDLE_LOOK_S, (called_s - self._busy_s) * IDLE_PART))
        answer = await self._known(lambda: self._answer(start, limits, called_s))
        planned = None
        if isinstance(answer, Batch):
            self.ledger, planned, self._finished = answer.ledger, answer.end, None
            self._busy_s = now()
        elif self.ledger.bounded:
            # This was the run's last planning call.
            await self._commits.drain()
        self._answered_s = now()
        core = self.core
        self.status.update(self.ledger.held, self._ends.view.ends, core.generation, core.member_id)
        return planned

    async def _known(self, look: Callable[[], Awaitable[T | Unknown]]) -> T:
        """Repeat ``look`` until it returns an answer; raise ``RetriableError`` with the reason when time runs out."""
        began_s = since_s = now()
        pause_s, last_limit_s = LOOK_EVERY_S, None
        default_s = self.core.config.default_api_timeout_ms / 1000
        while True:
            self._deadline = Deadline(since_s + default_s)
            found = await look()
            if not isinstance(found, Unknown):
                self.status.report("planning", None)
                return found
            if not self._unknown and now() - began_s > REPORT_AFTER_S:
                self.status.report("planning", found.why)
            limit_s = default_s if found.limit_s is None else found.limit_s
            if limit_s != last_limit_s and last_limit_s is not None:
                # Another reason: after a join that took long, the look-ups have their own time.
                since_s = now()
            last_limit_s = limit_s
            if now() + pause_s > min(since_s + limit_s, began_s + 2 * max(limit_s, default_s)):
                raise RetriableError(
                    f"the query of group {self._options.group!r} does not know after {limit_s:g} s which records are new:"
                    f" {found.why}. Remove the cause, then start the query again: it continues at its checkpoint"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, MOST_BETWEEN_LOOKS_S)

    async def _attempt(self, name: str, work: Coroutine[Any, Any, Unknown | None]) -> bool:
        """Await a look-up, and report what keeps it from an answer; return whether it is complete."""
        try:
            found = await work
        except RetriableError as error:
            found = Unknown(str(error))
        if found is None:
            self._unknown_since.pop(name, None)
            self.status.report(name, None)
            return True
        self._unknown[name] = found
        if now() - self._unknown_since.setdefault(name, self._called_s) > REPORT_AFTER_S:
            self.status.report(name, found.why)
        return False

    def _limit_ms(self) -> float:
        # An attempt with too little time would only tell that it had too little time.
        return max(1_000.0, self._deadline.within(REQUEST_TIMEOUT_MS))

    async def _answer(self, start: Offsets, limits: Limits, called_s: float) -> Answer:
        self._unknown.clear()
        if await self._attempt("group", self._join(start)):
            self._check_checkpoint(start)
            await self._attempt("topics of the checkpoint", self._check_topics())
            await self._attempt("starts", self._adopt())
            self._commit()
            if self._starting():
                await self._commits.drain()
            if self.ledger.bounded:
                await self._attempt("owners", self._find_owners())
            await self._attempt("end offsets", self._look_up_ends(called_s))
        self._report_missing_topics()
        return self._plan(start, limits, called_s)

    def _plan(self, start: Offsets, limits: Limits, called_s: float) -> Answer:
        first = next(iter(self._unknown.values()), None)
        owners = self._unknown.get("owners")
        if owners is not None:
            # Records of partitions that move to another member must not be read here.
            return owners
        if undecided := self._topics.undecided(self.ledger):
            return first or _existence_unknown(undecided)
        view, doubted = self._ends.view, self._topics.doubted
        known = {one: end for one, end in view.ends.items() if one.topic not in doubted}
        problem = view.problem or ("; ".join(f"whether topic {name!r} still exists" for name in sorted(doubted)) or None)
        ends = Ends(known, view.at_s >= called_s, problem)
        cluster = self.core.cluster.metadata.cluster_id or ""
        member = Member(self.core.generation, cluster, None if first is None else first.why)
        answer = plan(self.ledger, start, ends, limits, member, now() * 1000)
        if isinstance(answer, Unknown) and first is not None:
            return attrs.evolve(answer, limit_s=first.limit_s)
        return answer

    # -- the group --------------------------------------------------------------------------------------------------

    async def _join(self, start: Offsets) -> Unknown | None:
        """Take part in the group's rebalances; return why this query may still get partitions."""
        core, config = self.core, self.core.config
        try:
            core.application.record_poll()
        except RetriableError as error:
            # The member retries in the background, and the query continues with the partitions that it owns.
            self.status.report("membership", error)
        else:
            if core.generation >= 0 and not core.application.failures.obstacle:
                self.status.report("membership", None)
        waiting = None
        if not (core.protocol.joined or core.assignment.held):
            waiting = await self._wait_for_group()
        if waiting is None:
            await self._settle()
            if not (core.protocol.joined or core.assignment.held):
                waiting = self._not_joined("the group rebalances")
        if waiting is not None:
            leaves_waiting = start.topics and self._joined_s is not None and not self._runs_once
            return None if leaves_waiting and now() - self._called_s > REJOIN_WAIT_S else waiting
        self._joined_s = now() if self._joined_s is None else self._joined_s
        if not self._shared and not self.ledger.bounded:
            self._shared = (
                bool(core.assignment.target.partitions) or now() - self._joined_s > SHARE_WAIT_S or bool(self._absent())
            )
            if not self._shared:
                return Unknown("no member has revoked partitions for this query yet", config.default_api_timeout_ms / 1000)
        return None

    async def _wait_for_group(self) -> Unknown | None:
        core = self.core
        try:
            await core.join_group_if_needed(max(1.0, self._deadline.within(JOIN_LOOK_MS)))
        except RetriableError as error:
            return self._not_joined(str(error))
        return None

    def _not_joined(self, why: str) -> Unknown:
        """Return the reason with the time limit of a join; a rebalance may wait for other members."""
        config, options = self.core.config, self._options
        rebalance_ms = 0 if config.group_protocol == CONSUMER else config.rebalance_timeout_ms
        return Unknown(
            f"{why}. The query could not join group.id={options.group!r} with {options.subscription()} at"
            f" kafka.bootstrap.servers={options.bootstrap_servers!r}: is the address right, and are the brokers up?",
            (config.default_api_timeout_ms + rebalance_ms) / 1000,
        )

    async def _settle(self) -> None:
        """Apply the changes of the assignment: lost, revoked and added partitions."""
        core = self.core
        for _ in range(10):
            target = core.assignment.target
            if target.generation >= 0 and target.number != self._seen_target:
                self._seen_target = target.number
                self.status.rebalances += 1
            await apply_changes(core, self)
            if not core.assignment.change():
                break

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop planning these partitions, because another member may already read them."""
        try:
            waiting = self.ledger.uncommitted()
            self._commits.lost({one: waiting[one] for one in partitions & waiting.keys()})
            self.status.record("lost", partitions, self.core.generation)
        finally:
            self._release(partitions)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit all finished offsets and stop planning these partitions, so that the next owner continues at the commits."""
        try:
            self._commit()
            await self._commits.drain()
            self.status.record("revoked", partitions, self.core.generation)
        finally:
            self._release(partitions)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Record the new partitions. :meth:`_adopt` finds their start offsets."""
        self.status.record("assigned", partitions, self.core.generation)
        self._adopts_s = float("-inf")

    def _release(self, partitions: frozenset[TopicPartition]) -> None:
        self.ledger = self.ledger.release(partitions)
        self._topics.released()
        self._commits.forget(partitions)

    # -- starts -----------------------------------------------------------------------------------------------------

    async def _adopt(self) -> Unknown | None:
        """Add the owned partitions that the ledger does not hold yet, at their start offsets."""
        assignment = self.core.assignment
        added = assignment.held - self.ledger.held.keys()
        if added and now() >= self._adopts_s:
            starts = await self._lookups.starts(added, self.ledger, await self._find_beginning(), self._limit_ms())
            ownerships = assignment.ownerships(starts)
            for partition, start in starts.items():
                ownership = ownerships[partition]
                if ownership is None:
                    continue  # The partition was already lost again. The next change of the assignment reports the loss.
                assert start.position is not None
                # The checkpoint proves that everything before its end is finished, so this may be committed at once.
                holding = Holding(start.topic_id, ownership, start.position, start.committed, confirmed=start.position)
                self.ledger = self.ledger.accept(partition, holding)
            self._ends.forget()
            # Topics that do not exist have no start; they may be created again before the group revokes their partitions.
            self._adopts_s = now() + AGAIN_S
        return None

    def _starting(self) -> frozenset[TopicPartition]:
        """Return the owned partitions whose start is not committed yet."""
        return frozenset(self.ledger.held.keys() - self.ledger.ready.keys())

    async def _find_beginning(self) -> Beginning | None:
        """Return the cluster as it was before the group's first commit.

        Return None if the group had commits before this query joined, or if the checkpoint has batches of this query.
        """
        if self._looking is not None and not self.ledger.began:
            await asyncio.wait({self._looking}, timeout=self._limit_ms() / 1000)
            if not self._looking.done():
                raise RetriableError("the look-up of the group's commits has not ended")
            try:
                self._beginning = self._looking.result()
            except RetriableError:
                # This query has committed nothing yet, so a later look-up gives the same answer.
                self._look_at_beginning()
                raise
        self._looking = None
        return self._beginning

    def _commit(self) -> None:
        """Commit the start offsets and the finished offsets, without waiting for the response."""
        self._commits.collect()
        self._commits.submit(self.ledger.uncommitted())

    def _committed(self, partition: TopicPartition, commit: PlannedCommit) -> None:
        self.ledger = self.ledger.committed(partition, commit)

    # -- end offsets ------------------------------------------------------------------------------------------------

    async def _look_up_ends(self, called_s: float) -> Unknown | None:
        ledger = self.ledger
        positions = {partition: holding.position for partition, holding in ledger.ready.items()}
        starting = self._starting()
        late = Unknown(f"the start offsets of {listed(starting)} are not committed yet") if starting else None
        if not positions:
            self._ends.forget()
            return late
        if not await self._ends.look(positions, ledger.topics, called_s, VIEW_WAIT_S):
            return Unknown("the brokers have not answered ListOffsets yet")
        view = self._ends.view
        behind = {one: view.ends[one] for one, at in positions.items() if view.ends.get(one, at) < at}
        if behind:
            await self._check_behind(behind)
        return Unknown(str(view.problem)) if view.problem is not None else late

    async def _check_behind(self, behind: Mapping[TopicPartition, int]) -> None:
        """Handle partitions that end before the query's positions: the topic was recreated, or the log was truncated."""
        before = self.ledger.held
        self._topics.hint()
        await self._check_topics()
        for partition, end in behind.items():
            holding = self.ledger.held.get(partition)
            if holding is None or holding != before[partition] or partition.topic in self._topics.doubted:
                continue
            self._lose(
                f"topic {partition.topic!r}, partition {partition.partition}: its log was truncated at offset {end}, although"
                f" this query had read up to offset {holding.position} (an unclean leader election?)"
            )
            self.ledger = self.ledger.moved_to({partition: end})
        self._ends.forget()

    # -- topics -----------------------------------------------------------------------------------------------------

    async def _check_topics(self) -> Unknown | None:
        """End the entries whose topics are gone; a run waits until it knows this of all entries."""
        self.ledger = await self._topics.settle(self.ledger, self._ends.view.ids, self._limit_ms())
        if self.ledger.bounded:
            self._check_missing()
            if doubtful := {key for key in self.ledger.open if not self.ledger.entries[key].unread}:
                return _existence_unknown(doubtful)
        return None

    def _check_missing(self) -> None:
        """Raise ``MissingTopicError`` for a subscribed topic that did not exist at the run's start, and does not exist now.

        A topic that the checkpoint names did exist, so its records were lost, which is another error.
        """
        known = {key.partition.topic for key in self.ledger.entries}
        missing = sorted(self._missing - known)
        if missing:
            raise MissingTopicError(
                f"{', '.join(missing)}: the topic does not exist, and a run of Trigger.AvailableNow or Trigger.Once"
                " cannot wait for it; correct the option subscribe, or create the topic"
            )

    def _absent(self) -> str | None:
        """Return the problem of a subscription to topics that do not exist; the query waits for them."""
        metadata, options = self.core.cluster.metadata, self._options
        # ``errors`` contains only topics that this member requested. The first metadata may be older than the subscription.
        missing = sorted(set(options.topics) & metadata.errors.keys() - metadata.topics.keys())
        if missing:
            return f"{', '.join(missing)}: the topic does not exist; the query reads it once it exists (option subscribe)"
        if options.pattern is not None and not metadata.matching(re.compile(options.pattern), exclude_internal=True):
            return f"{options.subscription()} matches no topic; the query reads a matching topic once it exists"
        return None

    def _report_missing_topics(self) -> None:
        metadata = self.core.cluster.metadata
        if metadata.version != self._seen_metadata:
            self._seen_metadata = metadata.version
            self.status.report("topics", self._absent())

    def _subscribed(self, topics: Mapping[str, object]) -> frozenset[str]:
        pattern = self._options.pattern
        if pattern is not None:
            return frozenset(topic for topic in topics if re.compile(pattern).fullmatch(topic))
        return frozenset(self._options.topics) & topics.keys()

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"data loss in {what}. To continue with the remaining records, set failOnDataLoss=false")
        logger.warning("data loss in %s; continuing, because failOnDataLoss=false", what)

    # -- the checkpoint ---------------------------------------------------------------------------------------------

    def _check_checkpoint(self, start: Offsets) -> None:
        if self._checkpoint_checked:
            return
        self._checkpoint_checked = True
        check_cluster(start, self.core.cluster.metadata.cluster_id, self._options.bootstrap_servers)
        if start.topics and not self._subscribed(start.topics):
            raise CheckpointError(
                f"checkpointLocation belongs to a query of {', '.join(sorted(start.topics))}, but this query has"
                f" {self._options.subscription()}: restore the former subscription, or give this query a separate checkpoint"
            )

    async def check_replay(self, end: Offsets) -> Offsets:
        """Return the part of a recorded batch that can be read again, from the same topics and up to the ends of the logs."""
        limit_ms = self.core.config.default_api_timeout_ms
        try:
            metadata = await self.core.cluster.refresh(Deadline.after(limit_ms))
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
        return await self._within_logs(attrs.evolve(end, topics=kept), metadata, limit_ms)

    async def _within_logs(self, batch: Offsets, metadata: Metadata, limit_ms: float) -> Offsets:
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
                await asyncio.sleep(CUT_LOOK_EVERY_S)
            wanted = dict.fromkeys(asked, LATEST)
            found = (await list_offsets(self.core.cluster, wanted, Deadline.after(limit_ms))).complete()
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
            self.ledger = self.ledger.cut(partition, span.end, end)
            topics[partition.topic] = attrs.evolve(part, spans={**part.spans, partition.partition: shorter})
        return attrs.evolve(batch, topics=topics)

    # -- runs that end ----------------------------------------------------------------------------------------------

    async def prepare_available_now(self) -> None:
        """Promise the records that exist now. The query reads no record that is written after this call."""
        self._called_s = now()
        if missing_topics(await self._known(self._complete_view), self._options.topics):
            # A broker that has just started may not know a topic yet.
            await asyncio.sleep(AGAIN_S)
        self.ledger = await self._known(self._targets)

    async def _targets(self) -> Ledger | Unknown:
        """Return the ledger with the ends of all logs as targets. A topic that is deleted meanwhile is not a target."""
        view = await self._complete_view()
        if isinstance(view, Unknown):
            return view
        self._missing = missing_topics(view, self._options.topics)
        wanted = dict.fromkeys(view.partitions, LATEST)
        deadline = Deadline.after(self._limit_ms())
        found = await list_offsets(self.core.cluster, wanted, deadline, read_committed=self._read_committed)
        try:
            ends = {partition: one.offset for partition, one in found.complete().items()}
        except RetriableError as error:
            return Unknown(f"the end offsets of {self._options.subscription()}: {error}")
        return self.ledger.promise(ends, view)

    async def _complete_view(self) -> View | Unknown:
        """Return a complete view of the subscribed topics, from metadata that was requested after the member joined."""
        self._unknown.clear()
        waiting = None if self.core.protocol.joined else await self._wait_for_group()
        if waiting is not None:
            self.core.application.record_poll()
            return waiting
        options = self._options
        try:
            return await fresh_view(self.core.cluster, options.topics, options.pattern, self._deadline)
        except RetriableError as error:
            return Unknown(f"the topics of {options.subscription()}: {error}")

    async def _find_owners(self) -> Unknown | None:
        """Return Unknown until this query or another member owns each partition with unread records.

        The run ends when this query has read its own partitions. Wait also for partitions that the group is moving to this
        query.
        """
        from consumer_coord.spark.available_now import unowned

        config, ledger = self.core.config, self.ledger
        limit_s = (config.default_api_timeout_ms + config.session_timeout_ms) / 1000
        left = await unowned(self.core, ledger.held.keys(), ledger.targets, self._limit_ms())
        waited_s = now() - self._called_s
        # Wait longer if some of the partitions belong to this query: they may move to another source of the same query. Until
        # that source answers, Spark runs no batch, so the query does not revoke partitions.
        limit_here_s = limit_s / 2 if left & ledger.held.keys() else SHARE_WAIT_S
        if not left or (waited_s > limit_here_s and ledger.unread):
            return None
        return Unknown(
            f"Trigger.AvailableNow: the group has not assigned {listed(left)} yet, although unread records remain. Another"
            " member delays a rebalance, because it is in a long batch or does not poll; start the query again, or give it a"
            " separate group",
            limit_s,
        )


def _existence_unknown(keys: Iterable[Key]) -> Unknown:
    return Unknown(f"whether the topics of {listed({key.partition for key in keys})} still exist is not known")
