"""Bugs that one rule alone finds, each by a small history; without its bug each history keeps every rule."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final

import attrs
import pytest

from consumer_coord.broker.group_offsets import Commit, OffsetCoordinator
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.reading.chunks import Chunk
from consumer_coord.consumer.reading.reader import Reader
from consumer_coord.consumer.stored_positions import StoredPositions
from consumer_coord.environment import now
from consumer_coord.fetch import FetchedRecords, Fetcher, FetchStart
from consumer_coord.fetch.broker_fetches import BrokerFetches
from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.net.connections import Connections
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Backoff
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Fault, Scenario
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from tests.support.simulation.planting import former
from tests.support.simulation.small_history import history

Patch = pytest.MonkeyPatch


def _confirm_what_is_not_written(patch: Patch) -> None:
    """The broker answers a commit well, and writes nothing."""

    async def append(self: OffsetCoordinator, shard: Any, committer: Any, commits: Sequence[Commit], *producer: int) -> Any:
        return [(commit, error_codes.NONE) for commit in commits]

    patch.setattr(OffsetCoordinator, "_append", append)


def _begin_although_the_lease_has_passed(patch: Patch) -> None:
    """A member delivers what it has fetched although its session has ended, be it the first record or a later one."""
    patch.setattr(Engine, "suspended", property(lambda self: False))
    patch.setattr(Engine, "_may_deliver", lambda self, leased_until: True)


def _remember_what_was_stored_before_a_revoke(patch: Patch) -> None:
    """When a partition returns to a member, the member commits the position at which it revoked the partition before."""
    begin, end = StoredPositions.begin, StoredPositions.end
    stored: dict[tuple[int, TopicPartition], OffsetAndMetadata] = {}

    def noting(self: StoredPositions, partition: TopicPartition) -> None:
        if (at := self.position(partition)) is not None:
            stored[id(self), partition] = at
        end(self, partition)

    def remembering(self: StoredPositions, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        begin(self, wanted)
        for one in wanted:
            if (at := stored.get((id(self), one))) is not None:
                self.put(one, at)

    patch.setattr(StoredPositions, "end", noting)
    patch.setattr(StoredPositions, "begin", remembering)


def _keep_what_was_held_when_the_membership_is_gone(patch: Patch) -> None:
    """A member that the group removed joins again, and keeps its former partitions in addition to the assigned ones."""
    patch.setattr(AssignmentState, "lose", lambda self: False)


def _take_a_partition_for_another(patch: Patch) -> None:
    """Of two partitions that are fetched from the same offset, the records of one are delivered as those of the other."""
    deliver = Fetcher.deliver

    def confused(self: Fetcher, state: FetchState, records: FetchedRecords, size: int, count: int) -> None:
        others = [one for one in self._states.values() if one is not state and one.offset == records.offset]
        taken = others[0] if others and records.offset else state
        deliver(self, taken, attrs.evolve(records, partition=taken.partition, serial=taken.serial), size, count)

    patch.setattr(Fetcher, "deliver", confused)


def _deliver_in_the_order_of(patch: Patch, key: Callable[[Any, Any], Any]) -> None:
    """Deliver what has arrived in the order of ``key(next item, item)``."""
    pull = Reader.pull

    def sorting(self: Reader, most: int) -> None:
        waiting = list(self._queue)[self._decoded :]
        for number, item in enumerate(sorted(waiting, key=lambda one: key(waiting[0], one))):
            self._queue[self._decoded + number] = item
        pull(self, most)

    patch.setattr(Reader, "pull", sorting)


def _deliver_the_first_partition_first(patch: Patch) -> None:
    """The records of the first partition are delivered first, even if those of another have waited for long."""
    _deliver_in_the_order_of(patch, lambda _, item: item.at)


def _stay_with_a_partition(patch: Patch) -> None:
    """The partition whose records are next is read until no record of it is left."""
    _deliver_in_the_order_of(patch, lambda first, item: item.at != first.at)


def _keep_records_by_the_name_of_the_topic(patch: Patch) -> None:
    """What was fetched of a former topic is delivered where the offsets of the later topic of the same name arrive at it."""
    ids: dict[int, uuid.UUID] = {}
    kept: list[Chunk] = []
    assign, end, pull = Fetcher.assign, former(Reader, "_end"), Reader.pull

    def noting(self: Fetcher, starts: Mapping[TopicPartition, FetchStart]) -> None:
        ids.update({start.serial: start.topic_id for start in starts.values()})
        assign(self, starts)

    def keeping(self: Reader, gone: Collection[TopicPartition]) -> None:
        kept.extend(one for one in self._queue if isinstance(one, Chunk) and one.at in gone)
        end(self, gone)

    def reviving(self: Reader, most: int) -> None:
        for chunk in kept:
            reading = self._readings.get(chunk.at)
            if reading is None or not reading.on or ids.get(reading.serial) == ids[chunk.serial]:
                continue
            if chunk.records.offset <= self.cursors[chunk.at].next < chunk.end:
                again = Chunk(attrs.evolve(chunk.records, serial=reading.serial), self._check_crcs, self._read_committed)
                self._queue.insert(self._decoded, again)
                self._added += again.size
                kept.remove(chunk)
                break
        pull(self, most)

    patch.setattr(Fetcher, "assign", noting)
    patch.setattr(Reader, "_end", keeping)
    patch.setattr(Reader, "pull", reviving)


def _wait_a_minute_for_a_fetch(patch: Patch) -> None:
    """A Fetch on a connection that is silently dead is given up only after a minute."""
    begin = former(BrokerFetches, "_begin")
    patch.setattr(BrokerFetches, "_begin", lambda self, lane, ask: begin(self, lane, ask) + 60_000)


def _back_off_for_a_minute(patch: Patch) -> None:
    """A partition that a Fetch response leaves out is fetched again after a minute, whatever ``retry.backoff.max.ms`` is."""

    def back_off(self: BrokerFetches, state: FetchState) -> None:
        state.not_before = now() + 60

    patch.setattr(BrokerFetches, "_back_off", back_off)


def _connect_again_after_a_minute(patch: Patch) -> None:
    """After a failed connection attempt, the next one follows after a minute, whatever ``reconnect.backoff.max.ms`` is."""
    create = Connections.__init__

    def patient(self: Connections, *about: Any, **named: Any) -> None:
        create(self, *about, **named)
        self._reconnect = Backoff(60_000, 60_000, Random(1))

    patch.setattr(Connections, "__init__", patient)


#: An application that needs half a minute for what it has fetched.
_SLOW: Final[Mapping[str, Any]] = {
    "protocol": "classic",
    "topics": (1,),
    "batch": 1,
    "poll_every_ms": 2_500,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 2_000,
    "commit": "async",
}

#: The rule, and what the bug does -> the bug, and the history that reveals it.
#: An application that is slower than the producers: records wait in each partition.
_BEHIND = history(Fault(25_000, "commit"), members=1, batch=1, poll_every_ms=400)

PLANTED: dict[str, tuple[Callable[[Patch], None], Scenario]] = {
    "identity: another partition": (_take_a_partition_for_another, history(members=1)),
    "identity: a former topic": (
        _keep_records_by_the_name_of_the_topic,
        history(
            *(Fault(at_ms, "recreate", 0, 8) for at_ms in range(5_000, 30_000, 5_000)),
            batch=1,
            poll_every_ms=1_000,
            protocol="classic",
        ),
    ),
    "freshness: a minute for a Fetch": (
        _wait_a_minute_for_a_fetch,
        history(*(Fault(10_000, "swallow", 0, pick) for pick in range(6)), Fault(12_000, "commit"), members=1),
    ),
    "freshness: a minute of back-off": (
        _back_off_for_a_minute,
        history(*(Fault(9_000, "lack-fetch", 0, third, 3_000) for third in range(3)), members=1),
    ),
    "lease: frames pass in one direction": (
        _begin_although_the_lease_has_passed,
        history(
            # No frame of the broker reaches the first member.
            Fault(14_000, "one-way", 1, 2, 25_000),
            **_SLOW,
        ),
    ),
    "lease: a pair of hosts is split": (
        _begin_although_the_lease_has_passed,
        history(Fault(14_000, "split", 1, 2, 25_000), **_SLOW),
    ),
    "freshness: a minute until the next connection": (
        _connect_again_after_a_minute,
        history(Fault(8_000, "one-way", 1, 3, 20_000), members=1),
    ),
    "freshness: the first partition first": (_deliver_the_first_partition_first, _BEHIND),
    "freshness: one partition until its end": (_stay_with_a_partition, _BEHIND),
    "durability": (_confirm_what_is_not_written, history(members=1, protocol="classic")),
    "twice": (
        _begin_although_the_lease_has_passed,
        # The first member has its partitions, but reads nothing in the first 25 s. The other member closes during this time.
        history(
            Fault(6_000, "hang", 0, 0, 25_000),
            Fault(24_000, "stop", 1, 0),
            protocol="classic",
            poll_every_ms=2_000,
            session_timeout_ms=6_000,
        ),
    ),
    "rewind": (
        _remember_what_was_stored_before_a_revoke,
        history(Fault(3_000, "start", 0, 0), Fault(9_000, "stop", 1, 0), members=1, protocol="classic", commit="store"),
    ),
    "exclusive": (
        _keep_what_was_held_when_the_membership_is_gone,
        history(Fault(4_000, "hang", 0, 0, 13_000), protocol="classic"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_rule_finds_a_bug_of_its_own(name: str, monkeypatch: Patch) -> None:
    (plant, scenario), rule = PLANTED[name], name.split(":")[0]
    assert play(scenario).violation is None, "the same history keeps every rule without the bug"
    plant(monkeypatch)
    found = play(scenario)
    assert found.violation is not None, f"unnoticed\n{found.history.tail(60)}"
    assert found.violation.rule == rule, f"{found.violation}\n{found.history.tail(40)}"
