"""Gather the facts about one consumer, on its loop, and remember between two looks what has not moved.

Nothing runs between two looks. So the time for which a record is owed counts from the first look that saw it, and a partition
that is stuck is found at most one look later than it could be; a partition that moves is never taken for a stuck one. What a
leader said, and when, comes from the Fetch responses of the consumer itself, without a request. librdkafka does not tell how
old its knowledge is, so for its partitions a look asks the leaders (ListOffsets, and a small Fetch behind the position).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.partitions import Partition, Phase
from consumer_coord.fetch import LogEnd
from consumer_coord.health.judging import judge
from consumer_coord.health.values import Facts, Health, Owed, PartitionFacts, Reason
from consumer_coord.lag.first_unread import FirstUnread, Unread, first_unread
from consumer_coord.leaders.list_offsets import LATEST, list_offsets
from consumer_coord.net.answers import Results
from consumer_coord.net.metadata import by_leader
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.consumer.engine import Engine

#: How long a look waits for the leaders' answers, and for how long these are used again, in seconds.
_LOOK_UP_S: Final = 1.0

#: The phases in which a partition waits for a callback, and those in which it is handed over.
_CALLED: Final = (Phase.TAKEN, Phase.REVOKED, Phase.LOST)
_ENDING: Final = (Phase.STOPPING, Phase.COMMITTING, Phase.RELEASING)


@attrs.frozen
class _Seen:
    """The position of a partition at the last look, in which reading, and since when it has waited there (loop time)."""

    serial: int
    position: int | None
    since: float
    #: Whether records were waiting at that look, or nobody could say.
    waits: bool = True


def watch_of(engine: Engine) -> HealthWatch:
    """Return what remembers an engine's earlier answers; on its loop."""
    if not isinstance(engine.watch, HealthWatch):
        engine.watch = HealthWatch(engine)
    return engine.watch


class HealthWatch:
    """Answers how healthy one consumer is; on its loop."""

    def __init__(self, engine: Engine) -> None:
        """Watch the consumer of ``engine``."""
        self._engine = engine
        self._clock = engine.core.application.clock
        moment = self._clock()
        self._polls, self._polled_at, self._delivered_at = engine.core.application.polls, moment, moment
        self._outside_since: float | None = None
        self._seen: Mapping[TopicPartition, _Seen] = {}
        #: What the leaders answered, while the data plane does not tell; and the look-up that is in progress or was the last.
        self._answers: Mapping[TopicPartition, LogEnd] = {}
        self._look_up: asyncio.Task[None] | None = None
        self._asked_at = -math.inf

    async def look(self, limit_s: float) -> Health:
        """Return the health now; see :func:`~consumer_coord.health.judging.judge`. With librdkafka, wait about a second."""
        if self._engine.reader.log_ends() is None:
            await self._ask()
        return self.judged(limit_s)

    def judged(self, limit_s: float) -> Health:
        """Return the health by what is known without a request; of librdkafka's partitions, by the last answers of leaders."""
        ends = self._engine.reader.log_ends()
        facts = self._facts(self._answers if ends is None else ends)
        health = judge(facts, limit_s)
        waits = {(one.topic, one.partition): one.owed is not Owed.NO for one in health.partitions}
        self._seen = {one: attrs.evolve(seen, waits=waits[one]) for one, seen in self._seen.items()}
        return health

    # -- facts --------------------------------------------------------------------------------------------------------

    def _facts(self, ends: Mapping[TopicPartition, LogEnd]) -> Facts:
        engine = self._engine
        core, table, moment = engine.core, engine.table, self._clock()
        application, protocol = core.application, core.protocol
        if application.polls != self._polls:
            self._polls, self._polled_at = application.polls, moment
        outside = protocol.subscribed and not protocol.joined
        self._outside_since = (self._outside_since or moment) if outside else None
        reached, handling = self._positions(table), engine.handling()
        self._note_positions(table, reached, moment)
        lease_s = math.inf if engine.manual else core.lease.until - core.lease.clock()
        failure = application.failures.current if application.failures.final else None
        return Facts(
            now=moment,
            state="manual assignment" if engine.manual else protocol.state.value,
            joined=protocol.joined,
            outside_since=self._outside_since,
            outside_because=application.failures.obstacle,
            lease_s=lease_s if math.isfinite(lease_s) else None,
            polled_at=self._polled_at,
            delivered_at=self._delivered_at,
            max_poll_interval_s=core.config.max_poll_interval_ms / 1000,
            failure="" if failure is None else str(failure),
            partitions=tuple(
                PartitionFacts(
                    partition=partition,
                    position=reached.get(partition),
                    since=self._seen[partition].since,
                    log=ends.get(partition),
                    handling_s=handling.get(partition),
                    obstacle=obstacle,
                    detail=detail,
                )
                for partition, one in table.items()
                for obstacle, detail in (_obstacle(engine, partition, one),)
            ),
        )

    def _positions(self, table: Mapping[TopicPartition, Partition]) -> Mapping[TopicPartition, int]:
        return self._engine.reader.reached(table)

    def _note_positions(
        self, table: Mapping[TopicPartition, Partition], reached: Mapping[TopicPartition, int], moment: float
    ) -> None:
        seen: dict[TopicPartition, _Seen] = {}
        for partition, one in table.items():
            before, position = self._seen.get(partition), reached.get(partition)
            if before is not None and before.serial == one.serial:
                if before.position == position and before.waits:
                    seen[partition] = before
                    continue
                if before.position not in (None, position):
                    self._delivered_at = moment
            seen[partition] = _Seen(one.serial, position, moment)
        self._seen = seen

    # -- what leaders answer ------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        """Look up the ends of the logs, unless this was done a moment ago; wait for the answers."""
        table = self._engine.table
        wanted = {one: at for one, at in self._positions(table).items() if table[one].phase is Phase.READING}
        old = self._clock() - self._asked_at >= _LOOK_UP_S or bool(wanted.keys() - self._answers.keys())
        if self._look_up is None or (old and self._look_up.done()):
            self._asked_at = self._clock()
            self._look_up = self._engine.core.look_up(lambda: self._ends(wanted))
        # The look-up ends at its deadline; the close of the consumer cancels it.
        await asyncio.wait({self._look_up}, timeout=2 * _LOOK_UP_S)
        if self._look_up.done() and not self._look_up.cancelled():
            self._look_up.result()

    async def _ends(self, wanted: Mapping[TopicPartition, int]) -> None:
        cluster, committed = self._engine.core.cluster, self._engine.read_committed
        deadline = Deadline.after(_LOOK_UP_S * 1000)
        listed = await list_offsets(cluster, dict.fromkeys(wanted, LATEST), deadline, read_committed=committed)
        ahead = {one: Unread(wanted[one], at.offset) for one, at in listed.found.items() if wanted[one] < at.offset}
        # Without this, the marker of a transaction at the end of the log would be a record that is owed for ever.
        unread = await first_unread(cluster, ahead, deadline, read_committed=committed) if ahead else Results[FirstUnread]()
        failed, moment = {**listed.failed, **unread.failed}, self._clock()
        leading = {one: broker.id for broker, each in by_leader(cluster.metadata, wanted)[0].items() for one in each}
        answers: dict[TopicPartition, LogEnd] = {}
        for partition, position in wanted.items():
            leader = leading.get(partition)
            answer = self._answers.get(partition) or LogEnd(
                fetched=None, end=None, high_watermark=None, answered_at=self._asked_at, wait_s=_LOOK_UP_S
            )
            if partition in failed:
                answer = attrs.evolve(answer, broker=leader, obstacle=str(failed[partition]))
            else:
                first = unread.found.get(partition)
                none = first is not None and first.offset is None
                end = position if none else listed.found[partition].offset
                answer = attrs.evolve(answer, end=end, answered_at=moment, broker=leader, obstacle="")
            answers[partition] = answer
        self._answers = answers


def _obstacle(engine: Engine, partition: TopicPartition, one: Partition) -> tuple[Reason | None, str]:
    """Return why the consumer does not fetch a partition, with a text; None if it does."""
    if one.paused:
        return Reason.PAUSED, ""
    if one.declined or not engine.reader.selects(partition):
        return Reason.NOT_SELECTED, ""
    if one.phase in _CALLED:
        if partition in engine.called:
            return Reason.CALLBACK, f"the callback for {one.phase.value} partitions runs"
        return Reason.APPLICATION_BUSY, "a callback is due in the next poll"
    if one.phase in _ENDING:
        return Reason.REVOKING, f"{one.phase.value}, until its last commit has ended"
    if one.phase is not Phase.READING:
        return Reason.LOOKING_UP, "" if one.retry is None else str(one.retry.error)
    return None, ""
