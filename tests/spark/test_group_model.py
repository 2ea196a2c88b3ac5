"""Several planners share a model of a group through losses, hand-overs and crashes: no record is lost, no commit goes back.

The model keeps what Kafka and Spark keep: the group's commits, fenced by who owns a partition now; each query's
checkpoint, an offset log and a commit log; and which offsets are in any member's finished batch.
"""

from __future__ import annotations

import uuid

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumer_coord.spark.batch_ends import Batch, Ends, Limits, Member, Unknown, plan
from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.ledger import Holding, Ledger
from consumer_coord.topic_partition import TopicPartition

ID = uuid.UUID(int=7)
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
QUERIES = range(3)


@attrs.define
class Query:
    """A streaming query: the ledger of its planner process, and its checkpoint, which outlives it."""

    ledger: Ledger = attrs.field(factory=lambda: Ledger("billing"))
    log: list[Offsets] = attrs.field(factory=lambda: [Offsets("billing")])
    running: bool = False
    ownership: dict[TopicPartition, int] = attrs.field(factory=dict)

    @property
    def finished(self) -> Offsets:
        return self.log[-2] if self.running else self.log[-1]


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.commits: dict[TopicPartition, int] = {}
        self.owner: dict[TopicPartition, int | None] = dict.fromkeys(PARTITIONS)
        self.epoch = dict.fromkeys(PARTITIONS, 0)
        self.queries = {number: Query() for number in QUERIES}
        self.done: dict[TopicPartition, set[int]] = {partition: set() for partition in PARTITIONS}
        self.continuity: dict[tuple[int, TopicPartition, int], int] = {}

    # -- what happens -----------------------------------------------------------------------------------------------

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 20))
    def produce(self, partition: TopicPartition, count: int) -> None:
        self.ends[partition] += count

    @rule(partition=st.sampled_from(PARTITIONS), to=st.sampled_from(QUERIES))
    def expire_and_reassign(self, partition: TopicPartition, to: int) -> None:
        """The owner's session expired: it does not know, and another one (or itself again) has the partition."""
        self.owner[partition] = to
        self.epoch[partition] += 1

    @rule(number=st.sampled_from(QUERIES), partition=st.sampled_from(PARTITIONS), to=st.sampled_from(QUERIES))
    def hand_over(self, number: int, partition: TopicPartition, to: int) -> None:
        """A rebalance between two batches: what is finished is committed, then the partition moves."""
        query = self.queries[number]
        if query.running or self.owner[partition] != number:
            return
        self.settle(number)
        query.ledger = query.ledger.release([partition])
        query.ownership.pop(partition, None)
        self.owner[partition] = to
        self.epoch[partition] += 1

    @rule(number=st.sampled_from(QUERIES), most=st.none() | st.integers(1, 15))
    def plan_batch(self, number: int, most: int | None) -> None:
        query = self.queries[number]
        if query.running:
            return
        self.settle(number)
        answer = plan(query.ledger, query.finished, Ends(self.ends), Limits(max_offsets=most), Member(1, "c"), 0)
        assert not isinstance(answer, Unknown)
        if not isinstance(answer, Batch):
            return
        query.ledger, planned = answer.ledger, answer.end
        for partition, span in planned.spans():
            key = (number, partition, query.ownership[partition])
            assert self.continuity.get(key, span.start) == span.start, "a gap or an overlap within one ownership"
            self.continuity[key] = span.end
        query.log.append(planned)
        query.running = True

    @rule(number=st.sampled_from(QUERIES))
    def finish_batch(self, number: int) -> None:
        query = self.queries[number]
        if query.running:
            for partition, span in query.log[-1].spans():
                self.done[partition].update(range(span.start, span.end))
            query.running = False

    @rule(number=st.sampled_from(QUERIES))
    def crash(self, number: int) -> None:
        """SIGKILL and a restart from the checkpoint: an unfinished batch runs again, exactly, before anything else."""
        query = self.queries[number]
        query.ledger = Ledger("billing")
        query.ownership = {}
        for partition in PARTITIONS:
            if self.owner[partition] == number:
                self.epoch[partition] += 1

    @rule(number=st.sampled_from(QUERIES))
    def spark_asks_twice(self, number: int) -> None:
        """The same batch is confirmed again and again while nothing is new."""
        query = self.queries[number]
        if not query.running:
            self.settle(number)
            self.settle(number)

    # -- a planning call --------------------------------------------------------------------------------------------

    def settle(self, number: int) -> None:
        query = self.queries[number]
        query.ledger = query.ledger.finish(query.finished, {"orders"})
        for partition, commit in query.ledger.uncommitted().items():
            if self.is_in_force(number, partition):
                assert commit.offset >= self.commits.get(partition, 0), "a commit went back"
                assert set(range(commit.offset)) <= self.done[partition], "a commit covers what no member has finished"
                self.commits[partition] = commit.offset
                query.ledger = query.ledger.committed(partition, commit)
        for partition in list(query.ledger.held):
            if not self.is_in_force(number, partition):
                query.ledger = query.ledger.release([partition])
                del query.ownership[partition]
        for partition in PARTITIONS:
            if self.owner[partition] == number and partition not in query.ledger.held:
                committed = self.commits.setdefault(partition, 0)
                position = max(committed, query.ledger.end(partition, ID) or 0)
                query.ownership[partition] = self.epoch[partition]
                held = Holding(ID, self.epoch[partition], position, committed, confirmed=position)
                query.ledger = query.ledger.accept(partition, held)

    def is_in_force(self, number: int, partition: TopicPartition) -> bool:
        return self.owner[partition] == number and self.queries[number].ownership.get(partition) == self.epoch[partition]

    # -- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def the_groups_commits_are_finished(self) -> None:
        for partition, offset in self.commits.items():
            assert set(range(offset)) <= self.done[partition]

    @precondition(lambda self: any(self.ends.values()))
    @rule(order=st.permutations(list(QUERIES)))
    def come_to_rest(self, order: list[int]) -> None:
        """Let all members finish: then every record is in a finished batch, and the lag is zero."""
        for partition in PARTITIONS:
            if self.owner[partition] is None:
                self.expire_and_reassign(partition, order[0])
        for _ in range(3):
            for number in order:
                self.finish_batch(number)
                self.plan_batch(number, None)
        for partition, end in self.ends.items():
            assert self.done[partition] == set(range(end)), f"{partition} lost {set(range(end)) - self.done[partition]}"
            assert self.commits.get(partition, 0) == end


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
