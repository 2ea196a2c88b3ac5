"""Judge the health of a consumer from facts: a pure function.

The question for each partition is whether its leader has records that were not delivered, since when, and why. What is not
known stays unknown: a leader that does not answer has not said that it has no records. A partition makes its consumer unhealthy
if records are owed, or nothing is known, for longer than the limit, unless the reason is the application's: it paused the
partition, or it works on records, for which it has ``max.poll.interval.ms``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consumer_coord.health.values import Facts, Health, Owed, PartitionFacts, PartitionHealth, Reason

if TYPE_CHECKING:
    from consumer_coord.fetch import LogEnd

#: How much later than it had to a response may come before its absence counts, in seconds.
_LATE_S: Final = 1.0
#: The application counts as busy if it has not polled for this time, in seconds.
_BUSY_S: Final = 1.0


def judge(facts: Facts, limit_s: float) -> Health:
    """Return the health. For ``limit_s`` seconds, a partition may owe records, and the member may be outside its group."""
    partitions = tuple(_partition(one, facts, limit_s) for one in sorted(facts.partitions, key=lambda one: one.partition))
    problems = [facts.failure] if facts.failure else []
    idle_s = facts.now - facts.polled_at
    if facts.outside_since is not None and not _BUSY_S < idle_s <= facts.max_poll_interval_s:
        outside_s = facts.now - facts.outside_since
        if outside_s > limit_s:
            because = f": {facts.outside_because}" if facts.outside_because else ""
            problems.append(f"not in the group for {outside_s:.1f} s ({facts.state}){because}")
    problems += [one.text for one in partitions if one.owed is not Owed.NO and not one.excused and one.since_s > limit_s]
    overdue = any(
        one.reason is not None and one.reason.of_handler and not one.excused and one.since_s > limit_s for one in partitions
    )
    # A member whose application does not poll has lost its partitions, and is outside the group.
    gone = facts.outside_since is not None and idle_s > facts.max_poll_interval_s
    return Health(
        healthy=not problems,
        live=not (facts.failure or overdue or gone),
        state=facts.state,
        joined=facts.joined,
        lease_s=facts.lease_s,
        partitions=partitions,
        problems=tuple(problems),
    )


def _partition(one: PartitionFacts, facts: Facts, limit_s: float) -> PartitionHealth:
    owed, records = _owed(one, facts)
    topic, number = one.partition
    if owed is Owed.NO:
        return PartitionHealth(topic=topic, partition=number, owed=owed, records=0, since_s=0.0, reason=None)
    reason, detail = _reason(one, facts, limit_s)
    since = one.since
    if owed is Owed.UNKNOWN and one.log is not None and not one.log.held_back:
        # The last response is the last time at which anything was known.
        since = min(since, one.log.answered_at)
    return PartitionHealth(
        topic=topic,
        partition=number,
        owed=owed,
        records=records,
        since_s=max(0.0, facts.now - since),
        reason=reason,
        excused=reason.of_application or (reason.of_handler and _within_poll_interval(one, facts, reason)),
        detail=detail,
    )


def _within_poll_interval(one: PartitionFacts, facts: Facts, reason: Reason) -> bool:
    busy_s = facts.now - facts.polled_at
    if reason is Reason.HANDLER_BUSY and one.handling_s is not None:
        busy_s = one.handling_s
    return busy_s <= facts.max_poll_interval_s


def _owed(one: PartitionFacts, facts: Facts) -> tuple[Owed, int | None]:
    """Return whether records are owed, and how many offsets they may have."""
    log, position = one.log, one.position
    if log is None or position is None:
        return Owed.UNKNOWN, None
    last = max((end for end in (log.fetched, log.end, log.high_watermark) if end is not None), default=position)
    if position < last:
        return Owed.YES, last - position
    if log.end is None or log.held_back or _is_silent(log, facts):
        return Owed.UNKNOWN, None
    return Owed.NO, 0


def _is_silent(log: LogEnd, facts: Facts) -> bool:
    return facts.now - log.answered_at > log.wait_s + _LATE_S


def _reason(one: PartitionFacts, facts: Facts, limit_s: float) -> tuple[Reason, str]:
    """Return why records are not delivered, or why nothing is known; with a text."""
    log, position = one.log, one.position
    if one.handling_s is not None and one.obstacle in (Reason.PAUSED, Reason.NOT_SELECTED):
        # The processor does not read partitions of which its handlers have enough records.
        return _handling(one.handling_s)
    if one.obstacle is not None:
        return one.obstacle, one.detail
    if facts.lease_s is not None and facts.lease_s <= 0:
        return Reason.LEASE_ENDED, "the coordinator does not answer, so the partition may belong to another member"
    if log is None or position is None:
        if one.handling_s is not None:
            # The handlers have enough records of this partition, so it is not fetched.
            return _handling(one.handling_s)
        idle_s = facts.now - facts.polled_at
        return _busy(idle_s) if idle_s > _BUSY_S else (Reason.UNDELIVERED, "not fetched yet")
    if (log.fetched is not None and position < log.fetched) or log.held_back:
        return _waits_for_application(one, facts, limit_s)
    return _waits_for_leader(one, log, position, facts, limit_s)


def _waits_for_leader(one: PartitionFacts, log: LogEnd, position: int, facts: Facts, limit_s: float) -> tuple[Reason, str]:
    """Return why no records have arrived."""
    if log.broker is None:
        return Reason.NO_LEADER, log.obstacle or "the metadata names no leader"
    if log.throttled_until > facts.now:
        return Reason.THROTTLED, f"by broker {log.broker} for {log.throttled_until - facts.now:.1f} s more"
    if _is_silent(log, facts):
        silent = f"broker {log.broker} has not answered for {facts.now - log.answered_at:.1f} s"
        return Reason.LEADER_SILENT, f"{silent}: {log.obstacle}" if log.obstacle else silent
    if log.obstacle:
        return Reason.LEADER_REFUSES, log.obstacle
    if log.end is not None and position >= log.end:
        return Reason.OPEN_TRANSACTION, f"the last stable offset is {log.end}"
    if log.fetched is None:
        return _waits_for_application(one, facts, limit_s)
    return Reason.UNDELIVERED, "not fetched yet"


def _waits_for_application(one: PartitionFacts, facts: Facts, limit_s: float) -> tuple[Reason, str]:
    """Return why the application has not received records that were fetched."""
    if one.handling_s is not None:
        return _handling(one.handling_s)
    idle_s = facts.now - facts.polled_at
    if idle_s > _BUSY_S:
        return _busy(idle_s)
    if facts.now - facts.delivered_at <= limit_s:
        return Reason.APPLICATION_BUSY, "the application works on other records"
    return Reason.UNDELIVERED, "the application polls, and does not receive them"


def _handling(handling_s: float) -> tuple[Reason, str]:
    return Reason.HANDLER_BUSY, f"a handler has worked for {handling_s:.1f} s"


def _busy(idle_s: float) -> tuple[Reason, str]:
    return Reason.APPLICATION_BUSY, f"the application has not polled for {idle_s:.1f} s"
