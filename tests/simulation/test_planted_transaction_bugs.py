"""Bugs planted in transactions break the rules of exactly-once in drawn histories, which keep every rule without the bugs.

For each rule there are two bugs or more: in the broker, in the consumer, in the simulated producer, or in the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from consumer_coord.broker.group_offsets import OffsetCoordinator
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.producers import ProducerStates
from consumer_coord.broker.transaction import Transaction
from consumer_coord.consumer import group_metadata
from consumer_coord.consumer.reading.reader import Reader
from consumer_coord.fetch import broker_fetches as fetch_broker
from consumer_coord.fetch.broker_fetches import BrokerFetches
from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.group import committed_offsets
from consumer_coord.net.group_requests import offset_fetch
from consumer_coord.simulation import exactly_once
from consumer_coord.simulation.drawing import draw_scenario, with_protocol, with_transactions
from consumer_coord.simulation.exactly_once import Txn
from consumer_coord.simulation.play import play
from consumer_coord.simulation.producer import Produced, SimulatedProducer
from consumer_coord.simulation.scenario import Scenario
from consumer_coord.simulation.transacting_member import TransactingMember
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from tests.simulation.test_planted_message_bugs import lose_the_first_row_of_a_step
from tests.support.simulation.planting import former

SEEDS = range(60)

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]

# -- the broker


def _fence_no_producer(patch: Patch) -> None:
    """The broker takes requests of any epoch, and lets every batch in."""
    check = Transaction.check

    def generous(self: Transaction, producer: Any) -> None:
        check(self, type(producer)(producer.producer_id, self.producer_epoch))

    patch.setattr(Transaction, "check", generous)
    patch.setattr(ProducerStates, "check_epoch", lambda self, producer_id, epoch: None)
    patch.setattr(ProducerStates, "check", lambda self, header: None)


def _return_no_aborted_transactions(patch: Patch) -> None:
    """Fetch responses do not say which transactions were aborted."""
    patch.setattr(PartitionLog, "aborted_transactions", lambda self, offset: ())


def _ignore_open_transactions(patch: Patch) -> None:
    """The last stable offset is the end of the log."""
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.end_offset))


def _forget_duplicates(patch: Patch) -> None:
    """A batch that is sent again is appended again."""
    patch.setattr(ProducerStates, "duplicate_of", lambda self, header: None)
    patch.setattr(ProducerStates, "check", lambda self, header: self.check_epoch(header.producer_id, header.producer_epoch))


def _acknowledge_what_is_not_stored(patch: Patch) -> None:
    """One batch in a few dozen is acknowledged, but not stored."""
    store = former(PartitionLog, "append")
    count = 0

    def careless(self: PartitionLog, records: bytes, leader_epoch: int, *, verified: bool = False) -> int:
        nonlocal count
        count += 1
        if count % 37 == 0:
            return self.end_offset
        base: int = store(self, records, leader_epoch, verified=verified)
        return base

    patch.setattr(PartitionLog, "append", careless)
    patch.setattr(ProducerStates, "check", lambda self, header: self.check_epoch(header.producer_id, header.producer_epoch))


def _never_abort_after_the_time_out(patch: Patch) -> None:
    """The transaction of a killed process stays open until another process has its transactional id."""
    patch.setattr(Transaction, "has_timed_out", lambda self, now_ms: False)


def _accept_offsets_of_any_generation(patch: Patch) -> None:
    """The group's coordinator does not check who sends the offsets of a transaction."""
    check = former(OffsetCoordinator, "_check")

    def generous(
        self: OffsetCoordinator, group: Any, version: int, committer: Any, commits: Any, *, transactional: bool
    ) -> int:
        if transactional:
            return error_codes.NONE
        code: int = check(self, group, version, committer, commits, transactional=False)
        return code

    patch.setattr(OffsetCoordinator, "_check", generous)


def _abort_the_offsets_alone(patch: Patch) -> None:
    """Now and then, the group's coordinator is told that a transaction was aborted, which is committed everywhere else."""
    end = former(OffsetCoordinator, "end_transaction")
    count = 0

    def confused(
        self: OffsetCoordinator, partition: int, producer_id: int, producer_epoch: int, committed: bool, epoch: int = 0
    ) -> bool:
        nonlocal count
        count += 1
        done: bool = end(self, partition, producer_id, producer_epoch, committed and count % 31 > 0, epoch)
        return done

    patch.setattr(OffsetCoordinator, "end_transaction", confused)


# -- the consumer


def _ignore_aborted_transactions(patch: Patch) -> None:
    """The consumer reads the records of aborted transactions."""
    take = former(BrokerFetches, "_take_records")

    def ignorant(self: BrokerFetches, state: FetchState, row: Any, records: Any, address: str) -> None:
        take(self, state, attrs.evolve(row, aborted_transactions=()), records, address)

    patch.setattr(BrokerFetches, "_take_records", ignorant)


def _read_uncommitted(patch: Patch) -> None:
    """The consumer asks for uncommitted records, too."""
    patch.setattr(fetch_broker, "_READ_COMMITTED", 0)


def _do_not_wait_for_stable_offsets(patch: Patch) -> None:
    """A new owner begins at the last committed offset, although a transaction may commit a later one."""

    def impatient(*args: Any, **named: Any) -> Any:
        return offset_fetch(*args, **{**named, "require_stable": False})

    patch.setattr(committed_offsets, "offset_fetch", impatient)


def _name_no_generation(patch: Patch) -> None:
    """The metadata for transactions has no generation, so the coordinator fences nothing."""
    patch.setattr(group_metadata, "encode", lambda group_id, state, instance_id: group_metadata.unfenced(group_id))


def _skip_a_row(patch: Patch) -> None:
    """A call that takes several rows loses the second one, now and then."""
    pull = Reader.pull
    count = 0

    def careless(self: Reader, most: int) -> None:
        nonlocal count
        pull(self, most)
        count += len(self.ready) > 2
        if len(self.ready) > 2 and count % 11 == 0:
            del self.ready[1]

    patch.setattr(Reader, "pull", careless)


# -- the producer


def _send_old_records_in_the_next_transaction(patch: Patch) -> None:
    """An abort neither drops the records in the queue, nor waits for them."""
    abort = SimulatedProducer.abort_transaction

    async def hasty(self: SimulatedProducer, timeout: float = -1.0) -> None:
        kept = tuple(self._queue)
        await abort(self, timeout)
        self._queue.extend(kept)

    patch.setattr(SimulatedProducer, "abort_transaction", hasty)


def _believe_that_a_batch_arrives(patch: Patch) -> None:
    """A batch that a broker refuses for the moment counts as sent."""
    ask = former(SimulatedProducer, "_ask")

    async def believing(self: SimulatedProducer, leader: Any, at: TopicPartition, batch: Any, identity: Any) -> tuple[int, int]:
        code, offset = await ask(self, leader, at, batch, identity)
        if error_codes.is_retriable(code):
            self._sequences[at] = self._sequences.get(at, 0) - len(batch)
            return error_codes.NONE, offset
        return code, offset

    patch.setattr(SimulatedProducer, "_ask", believing)


def _send_the_last_record_first(patch: Patch) -> None:
    """Now and then, the records of a batch are in the opposite order."""
    deliver = former(SimulatedProducer, "_delivered")
    count = 0

    async def backwards(self: SimulatedProducer, partition: TopicPartition, batch: Sequence[Produced], deadline: Any) -> Any:
        nonlocal count
        count += 1
        return await deliver(self, partition, batch[::-1] if count % 23 == 0 else batch, deadline)

    patch.setattr(SimulatedProducer, "_delivered", backwards)


def _commit_before_everything_is_sent(patch: Patch) -> None:
    """A commit does not wait for the records in the queue."""

    async def hasty(self: SimulatedProducer, deadline: Any) -> None:
        return

    patch.setattr(SimulatedProducer, "_until_idle", hasty)


# -- the program


def _do_not_go_back(patch: Patch) -> None:
    """After an abort, the program reads on."""

    async def stay(self: TransactingMember, consumer: Any) -> None:
        self._is_ahead = False

    patch.setattr(TransactingMember, "_go_back", stay)


def _commit_what_was_revoked(patch: Patch) -> None:
    """The program commits although a partition was revoked since it read from it."""
    patch.setattr(Txn, "doomed", property(lambda self: False, lambda self, value: None), raising=False)


#: (rule, the bug that breaks it, the seed of a history that finds it).
PLANTED: Sequence[tuple[str, Plant, int]] = (
    ("G0", _fence_no_producer, 16),
    ("G0", _send_old_records_in_the_next_transaction, 2),
    ("G1a", _return_no_aborted_transactions, 0),
    ("G1a", _ignore_aborted_transactions, 0),
    ("G1b", _ignore_open_transactions, 2),
    ("G1b", _read_uncommitted, 51),
    ("G1c", _ignore_open_transactions, 23),
    ("G1c", _read_uncommitted, 23),
    ("lost-write", _acknowledge_what_is_not_stored, 0),
    ("lost-write", _commit_before_everything_is_sent, 0),
    ("lost-write", _believe_that_a_batch_arrives, 7),
    ("lost-write", _do_not_go_back, 0),
    ("int-send-skip", _forget_duplicates, 3),
    ("int-send-skip", _send_the_last_record_first, 0),
    ("int-poll-skip", _skip_a_row, 0),
    ("int-poll-skip", lose_the_first_row_of_a_step, 0),
    ("exactly-once", _commit_what_was_revoked, 0),
    ("exactly-once", _abort_the_offsets_alone, 0),
    ("exactly-once", _do_not_wait_for_stable_offsets, 1),
    ("liveness", _never_abort_after_the_time_out, 0),
    ("fencing", _accept_offsets_of_any_generation, 0),
    ("fencing", _name_no_generation, 0),
)


def scenario_of(seed: int) -> Scenario:
    """Return the history of a seed."""
    return with_transactions(with_protocol(draw_scenario(seed), "any"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rule", "plant", "seed"),
    PLANTED,
    ids=[f"{rule}: {plant.__name__.strip('_').replace('_', ' ')}" for rule, plant, _ in PLANTED],
)
def test_a_planted_bug_is_found(rule: str, plant: Plant, seed: int, monkeypatch: Patch) -> None:
    """A bug may break several rules. If the drawing changes, other seeds are played until a history breaks this one."""
    plant(monkeypatch)
    outcomes = (play(scenario_of(one)) for one in (seed, *SEEDS))
    found = next((one for one in outcomes if one.violation is not None and one.violation.rule == rule), None)
    assert found is not None, f"{rule} went unnoticed in {len(SEEDS)} histories"
    monkeypatch.undo()
    assert play(found.scenario).violation is None, "the same history keeps every rule without the bug"


def test_each_rule_has_two_bugs_or_more() -> None:
    rules = re.findall(r"^``([\w-]+)``", exactly_once.__doc__ or "", re.MULTILINE)
    assert len(rules) == 8
    for rule in rules:
        assert len({plant for one, plant, _ in PLANTED if one == rule}) >= 2, rule
