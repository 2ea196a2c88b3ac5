"""The rule ``health``: what ``consumer.health()`` says agrees with the logs, while faults last and when they have ended.

About once a second, the rule asks each member, and compares the answer with what the
brokers' logs have beyond the records that the member has delivered. The rule draws no random number and starts no timer, so it
changes no history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from consumer_coord.consumer.health_watch import watch_of
from consumer_coord.health import Health, Owed, PartitionHealth, Reason
from consumer_coord.simulation.application import MemberProcess
from consumer_coord.simulation.brokers import SimulatedCluster
from consumer_coord.simulation.checkers import Checkers, Violation
from consumer_coord.simulation.consumer import SimulatedConsumer
from consumer_coord.simulation.holdings import Holding
from consumer_coord.topic_partition import TopicPartition

#: The limit that members are asked with, and how much later they must have noticed, in seconds. A broker may delay the response
#: to a Fetch for 5 s, the response may be a second late, and a look may come a few seconds after the last one.
LIMIT_S: Final = 5.0
_NOTICED_S: Final = 10.0
#: The time between two looks, in seconds.
_EVERY_S: Final = 1.0


@attrs.frozen
class _Stuck:
    """The next record of a holding, in the state that the member's engine had, and since when it has not been delivered."""

    offset: int
    state: object
    since: float


@attrs.define(eq=False)
class _Member:
    """What the rule knows about one member."""

    stuck: dict[TopicPartition, _Stuck] = attrs.field(factory=dict)
    #: The number of each holding -> its position at the last look.
    positions: dict[int, int] = attrs.field(factory=dict)
    #: How often the application had polled at the last look.
    polls: int = -1
    #: The time of the last look at which this number had grown.
    polled_at: float = 0.0
    #: The time of the last look at which the application had received a record.
    delivered_at: float = 0.0
    #: The time of the last look, on the member's clock.
    looked_at: float = 0.0


class HealthRule:
    """The rule ``health`` of one run: what ``health()`` returns must agree with the logs and the deliveries."""

    def __init__(self, checkers: Checkers, cluster: SimulatedCluster) -> None:
        """Compare with the logs of ``cluster``, and with the deliveries that ``checkers`` know."""
        self._checkers = checkers
        self._cluster = cluster
        self._looked_at = 0.0
        self._members: dict[MemberProcess, _Member] = {}
        #: How many answers were compared, and how many of them said that a member is unhealthy.
        self.looks: int = 0
        self.unhealthy: int = 0

    def look(self, members: Iterable[MemberProcess], moment: float) -> None:
        """Ask all members, if the last look was a second ago; raise :class:`Violation`."""
        if moment - self._looked_at < _EVERY_S:
            return
        paused = moment - self._looked_at > 3 * _EVERY_S
        self._looked_at = moment
        for member in members:
            consumer, known = _asked(member), self._members.get(member)
            leapt = known is not None and member.process.time() - known.looked_at > 3 * _EVERY_S
            if consumer is None or paused or leapt:
                # A frozen process answers nothing, and a look after a long time cannot know what happened between.
                self._members.pop(member, None)
                continue
            health = watch_of(consumer.engine).judged(LIMIT_S)
            self.looks += 1
            self.unhealthy += not health.healthy
            self._compare(member, consumer, health, member.process.time())

    def _compare(self, member: MemberProcess, consumer: SimulatedConsumer, health: Health, moment: float) -> None:
        known = self._members.setdefault(member, _Member(polled_at=moment, delivered_at=moment))
        known.looked_at = moment
        if known.polls != consumer.engine.core.application.polls:
            known.polls, known.polled_at = consumer.engine.core.application.polls, moment
        said = {TopicPartition(one.topic, one.partition): one for one in health.partitions}
        for partition, one in said.items():
            self._must_know_of_callback(member, partition, one)
        stuck = {holding.partition: self._stuck(holding, consumer) for holding in member.holdings}
        positions = {holding.number: holding.position for holding in member.holdings}
        if any(known.positions.get(number, 0) != position for number, position in positions.items()):
            known.delivered_at = moment
        known.positions = positions
        now: dict[TopicPartition, _Stuck] = {}
        for partition, at in stuck.items():
            if at is None:
                continue
            before = known.stuck.get(partition)
            same = before is not None and (before.offset, before.state) == (at.offset, at.state)
            now[partition] = before if same and before is not None else attrs.evolve(at, since=moment)
            stuck_s = moment - now[partition].since
            if stuck_s > LIMIT_S + _NOTICED_S:
                self._must_be_named(member, said.get(partition), partition, health, stuck_s)
                self._must_not_be_excused(known, said[partition], moment)
        known.stuck = now

    def _stuck(self, holding: Holding, consumer: SimulatedConsumer) -> _Stuck | None:
        """Return the next record that the holding must deliver; None if the log has none, or the engine lets go of it."""
        value = consumer.engine.table.get(holding.partition)
        end, offset = self._cluster.end_offset(holding.partition), self._checkers.next_offset(holding)
        if value is None or end is None or not 0 <= offset < end:
            return None
        if holding.owner.reset != "earliest" and self._checkers.position(holding) < self._cluster.log_start(holding.partition):
            # Retention removed the position, and the member continues where its reset policy says.
            return None
        # A new reading begins anew for the member, too; and to pass the records of an aborted transaction is progress, or to
        # deliver fetched records that the log no longer has.
        cursor, position = consumer.engine.reader.cursors.get(holding.partition), self._checkers.position(holding)
        return _Stuck(offset, (value.serial, value.phase, value.start, cursor and cursor.next, position), 0.0)

    @staticmethod
    def _must_be_named(
        member: MemberProcess, said: PartitionHealth | None, partition: TopicPartition, health: Health, stuck_s: float
    ) -> None:
        what = f"{member.name} has not delivered the next record of {partition} for {stuck_s:.0f} s, and says: "
        if said is None:
            raise Violation("health", f"{what}nothing about the partition")
        if said.owed is Owed.NO or said.since_s <= LIMIT_S:
            raise Violation("health", what + said.text)
        if not said.excused and (health.healthy or said.text not in health.problems):
            raise Violation("health", f"{what}healthy, although {said.text}")

    @staticmethod
    def _must_know_of_callback(member: MemberProcess, partition: TopicPartition, said: PartitionHealth) -> None:
        """Check that a callback that runs is not said to be due in the next poll."""
        if member.runs_callback(partition) and said.reason is Reason.APPLICATION_BUSY and "callback is due" in said.text:
            raise Violation("health", f"{member.name} runs a callback for {partition}, and says: {said.text}")

    @staticmethod
    def _must_not_be_excused(known: _Member, said: PartitionHealth, moment: float) -> None:
        """Check that the application is the reason only if it decided so, or received records or did not poll."""
        if not said.excused or said.reason in (Reason.PAUSED, Reason.NOT_SELECTED, Reason.CALLBACK):
            return
        if moment - known.polled_at < _EVERY_S and moment - known.delivered_at > LIMIT_S + _NOTICED_S:
            raise Violation("health", f"the application polls, and receives nothing, but is the reason: {said.text}")

    def all_read(self, members: Iterable[MemberProcess]) -> None:
        """Check the members of a group that has read everything; raise :class:`Violation`."""
        for member in members:
            consumer = _asked(member)
            if consumer is None:
                continue
            for one in watch_of(consumer.engine).judged(LIMIT_S).partitions:
                read = any(
                    self._checkers.next_offset(holding) == self._cluster.end_offset(holding.partition)
                    for holding in member.holdings
                    if holding.partition == (one.topic, one.partition)
                )
                if read and one.owed is Owed.YES and one.reason is not Reason.OPEN_TRANSACTION:
                    raise Violation("health", f"{member.name} has delivered everything, and says: {one.text}")


def _asked(member: MemberProcess) -> SimulatedConsumer | None:
    """Return the consumer of a member that can be asked, and whose application delivers what it receives in order."""
    consumer = member.consumer
    if (
        not member.alive
        or member.closing
        or member.process.frozen
        or consumer is None
        or not consumer.begun
        or member.spec.process
        or member.spec.transactions
    ):
        return None
    return consumer
