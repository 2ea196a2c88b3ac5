"""Where partitions start, under everything that a cluster and several queries do: no record that the guarantee names is unread.

The model has topics that are created, grown and created again, brokers whose metadata lags, and queries of one group with
``startingOffsets=latest`` that look, join, take partitions, finish batches, stop, crash and come back from their checkpoints.
A record *must* be read if it was written after the group began, which is when its first start was committed.

Each of the old rules that lost records is planted below, and the model finds it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from consumer_coord.leaders.list_offsets import EARLIEST
from consumer_coord.spark.checkpoint import Offsets, Span, TopicSpans
from consumer_coord.spark.ledger import Ledger
from consumer_coord.spark.start_offsets import Beginning, Commit, Start, start_offsets
from consumer_coord.spark.starting_offsets_option import Starting
from consumer_coord.spark.subscribed_topics import TopicView, View
from consumer_coord.topic_partition import TopicPartition

NAMES = st.sampled_from(["orders-a", "orders-b"])
NUMBERS = st.integers(0, 1)
QUERIES = st.sampled_from([0, 1])

#: A partition of one topic, whatever topic has the name later.
Log = tuple[uuid.UUID, int]


class Rules:
    """The rules of a query; derived classes contain mistakes."""

    def starts(
        self,
        partition: TopicPartition,
        view: View,
        asked_version: int,
        ledger: Ledger,
        commits: Mapping[TopicPartition, Commit],
        beginning: Beginning | None,
        ends: Mapping[TopicPartition, int],
    ) -> Start | None:
        """Return the start of ``partition``, None while it is undecided; ``ends`` are those of the log now."""
        found = start_offsets(
            [partition],
            view=view,
            asked_version=asked_version,
            ledger=ledger,
            commits=commits,
            beginning=beginning,
            starting=Starting(),
        )
        return found.decided.get(partition)

    def shows_all(self, view: View, asked_version: int) -> bool:
        """Return whether the view can fix what an AvailableNow run reads."""
        return view.incomplete(asked_version) is None


class WhileJoiningAllIsOld(Rules):
    """Fault 1: a query that joins does not know which topics are new, and applies ``startingOffsets`` to all of them."""

    def starts(self, partition, view, asked_version, ledger, commits, beginning, ends):  # type: ignore[no-untyped-def]
        if not ledger.began and beginning is None:
            beginning = Beginning(view.topics, ends)
        return super().starts(partition, view, asked_version, ledger, commits, beginning, ends)


class TheCheckpointProvesNothing(Rules):
    """Fault 2: a restarted query applies ``startingOffsets`` to partitions that its checkpoint does not name."""

    def starts(self, partition, view, asked_version, ledger, commits, beginning, ends):  # type: ignore[no-untyped-def]
        if ledger.began and beginning is None:
            beginning = Beginning(view.topics, ends)
        return super().starts(partition, view, asked_version, ledger, commits, beginning, ends)


class AnyViewWillDo(Rules):
    """Fault 3: a response from before the subscription says which topics an AvailableNow run reads."""

    def shows_all(self, view: View, asked_version: int) -> bool:
        return True


class TheIdsAreIgnored(Rules):
    """A commit of a topic that was deleted counts for the next one of that name."""

    def starts(self, partition, view, asked_version, ledger, commits, beginning, ends):  # type: ignore[no-untyped-def]
        nameless = {one: attrs.evolve(commit, topic_id=None) for one, commit in commits.items()}
        return super().starts(partition, view, asked_version, ledger, nameless, beginning, ends)


@attrs.define
class Query:
    """A query: its checkpoint, which outlives it, and what its planner process knows while it runs."""

    checkpoint: Offsets = attrs.field(factory=lambda: Offsets("billing"))
    running: bool = False
    ledger: Ledger = attrs.field(factory=lambda: Ledger("billing"))
    #: How far the look is: None before it, then metadata, ends, done.
    look: str | None = None
    seen: Mapping[str, TopicView] = attrs.field(factory=dict)
    ends: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    beginning: Beginning | None = None
    held: dict[TopicPartition, tuple[uuid.UUID, int]] = attrs.field(factory=dict)


class Model(RuleBasedStateMachine):
    deciding: Rules = Rules()

    def __init__(self) -> None:
        super().__init__()
        self.ids = 0
        self.version = 1
        self.topics: dict[str, TopicView] = {}
        self.before: dict[str, TopicView] = {}
        self.ends: dict[Log, int] = {}
        self.must_from: dict[Log, int] = {}
        self.read: dict[Log, set[int]] = {}
        self.commits: dict[TopicPartition, Commit] = {}
        self.begun = False
        self.queries = [Query(), Query()]
        self.create_or_create_again("orders-a", 2, False)
        self.produce("orders-a", 0, 3)

    # -- the cluster --------------------------------------------------------------------------------------------------

    def set_topic(self, name: str, topic: TopicView) -> None:
        self.before = dict(self.topics)
        self.topics[name] = topic
        self.version += 1
        for number in range(topic.count):
            log = (topic.id, number)
            if log not in self.ends:
                self.ends[log] = 0
                self.read[log] = set()
                if self.begun:
                    self.must_from[log] = 0

    @rule(name=NAMES, count=st.integers(1, 2), keeps_commits=st.booleans())
    def create_or_create_again(self, name: str, count: int, keeps_commits: bool) -> None:
        self.ids += 1
        if not keeps_commits:
            self.commits = {one: commit for one, commit in self.commits.items() if one.topic != name}
            if not self.commits and not any(query.checkpoint.cluster for query in self.queries):
                # Nothing says any longer that there was a group: the next start is the first one of a new group.
                self.begun, self.must_from = False, {}
        for query in self.queries:
            # The old topic's partitions are revoked, and a batch of the old topic never finishes.
            query.held = {one: held for one, held in query.held.items() if one.topic != name}
        self.set_topic(name, TopicView(uuid.UUID(int=self.ids), count))

    @rule(name=NAMES)
    def grow(self, name: str) -> None:
        if name in self.topics:
            self.set_topic(name, TopicView(self.topics[name].id, 2))

    @rule(name=NAMES, number=NUMBERS, count=st.integers(1, 3))
    def produce(self, name: str, number: int, count: int) -> None:
        if name in self.topics and number < self.topics[name].count:
            self.ends[self.topics[name].id, number] += count

    def ends_now(self, topics: Mapping[str, TopicView]) -> dict[TopicPartition, int]:
        return {
            TopicPartition(name, number): self.ends[topic.id, number]
            for name, topic in topics.items()
            for number in range(topic.count)
        }

    # -- a query starts -----------------------------------------------------------------------------------------------

    @rule(number=QUERIES, lagging=st.booleans(), at_once=st.booleans())
    def start(self, number: int, lagging: bool, at_once: bool) -> None:
        """Start a query, possibly with old metadata (``lagging``). ``at_once``: nothing else happens during the start."""
        query = self.queries[number]
        if self.begun and not self.commits and not query.checkpoint.cluster:
            # Only the checkpoints of others say that the group has begun: the guarantee does not name this query.
            return
        if not query.running:
            ledger = Ledger("billing").finish(query.checkpoint, ())
            seen = dict(self.before if lagging else self.topics)
            self.queries[number] = Query(query.checkpoint, True, ledger, "metadata", seen)
            for _ in range(2 if at_once else 0):
                self.look_on(number)

    @precondition(lambda self: any(query.look in ("metadata", "ends") for query in self.queries))
    @rule(number=QUERIES)
    def look_on(self, number: int) -> None:
        """Ends, and then commits."""
        query = self.queries[number]
        if not query.running or query.look == "done":
            return
        if query.look == "metadata":
            query.ends = self.ends_now(query.seen)
            query.look = "ends"
        else:
            if not self.commits and not query.ledger.began:
                query.beginning = Beginning(query.seen, query.ends)
            query.look = "done"

    # -- it takes partitions and reads them ---------------------------------------------------------------------------

    @rule(number=QUERIES)
    def take_all(self, number: int) -> None:
        for name, topic in self.topics.items():
            for partition in range(topic.count):
                self.take(number, name, partition, True)

    @rule(number=QUERIES, name=NAMES, partition=NUMBERS, fresh=st.booleans())
    def take(self, number: int, name: str, partition: int, fresh: bool) -> None:
        query, one = self.queries[number], TopicPartition(name, partition)
        if not query.running or query.look != "done" or any(one in other.held for other in self.queries):
            return
        if name not in self.topics or partition >= self.topics[name].count:
            return
        view = View(self.version if fresh else self.version - 1, dict(self.topics if fresh else self.before))
        commits = {other: commit for other, commit in self.commits.items() if other.topic == name}
        start = self.deciding.starts(
            one, view, self.version, query.ledger, commits, query.beginning, self.ends_now(view.topics)
        )
        if start is None:
            assert not fresh, "a complete view decides"
            return
        assert start.topic_id == self.topics[name].id
        position = start.position
        if position is None:
            assert start.timestamp == EARLIEST
            position = 0
        if not self.begun and query.beginning is not None and query.beginning.topics.get(name) == self.topics[name]:
            assert position == query.ends[one], "a new group that asks for the latest records reads old ones"
        query.held[one] = (start.topic_id, position)
        self.commits[one] = Commit(position, start.topic_id)
        if not self.begun:
            self.begun = True
            self.must_from = dict(self.ends)

    def read_up_to(self, query: Query, ends: Mapping[TopicPartition, int]) -> None:
        """Plan, run and finish a batch."""
        topics: dict[str, dict[int, Span]] = {}
        for one, (topic_id, position) in query.held.items():
            end = max(position, ends.get(one, 0))
            topics.setdefault(one.topic, {})[one.partition] = Span(position, end, 1)
            self.read[topic_id, one.partition].update(range(position, end))
            query.held[one] = (topic_id, end)
        spans = {name: TopicSpans(self.topics[name].id, numbers) for name, numbers in topics.items()}
        query.checkpoint = Offsets("billing", "c", spans)
        query.ledger = query.ledger.finish(query.checkpoint, ())

    @rule(number=QUERIES, commits=st.booleans())
    def batch(self, number: int, commits: bool) -> None:
        query = self.queries[number]
        if query.running and query.held:
            self.read_up_to(query, self.ends_now(self.topics))
            if commits:
                self.commit(query)

    def commit(self, query: Query) -> None:
        for one, (topic_id, position) in query.held.items():
            self.commits[one] = Commit(position, topic_id)

    @rule(number=QUERIES, name=NAMES)
    def hand_over(self, number: int, name: str) -> None:
        """After a commit."""
        query = self.queries[number]
        self.commit(query)
        query.held = {one: held for one, held in query.held.items() if one.topic != name}

    @rule(number=QUERIES)
    def stop_or_crash(self, number: int) -> None:
        query = self.queries[number]
        self.queries[number] = Query(query.checkpoint)

    @precondition(lambda self: all(query.checkpoint.cluster and not query.running for query in self.queries))
    @rule()
    def commits_expire(self) -> None:
        """While no query runs; each has a checkpoint."""
        self.commits = {}

    @rule(number=QUERIES, early=st.booleans())
    def run_available_now(self, number: int, early: bool) -> None:
        """Read up to what was there at the start, in the partitions that this query owns; ``early``: with an early response."""
        query = self.queries[number]
        if not query.running or not query.held:
            return
        view = View(1, {}) if early else View(self.version, self.topics)
        if not self.deciding.shows_all(view, max(2, self.version)):
            view = View(self.version, self.topics)
        self.read_up_to(query, self.ends_now(view.topics))
        for one, (topic_id, position) in query.held.items():
            unread = set(range(position, self.ends[topic_id, one.partition])) - self.read[topic_id, one.partition]
            assert not unread, f"the run reports success and left {unread} of {one}"

    # -- what must hold -----------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """One query gets everything: then every record that must be read is."""
        if not self.begun:
            return
        number = self.version % 2
        if not self.commits and not self.queries[number].checkpoint.cluster:
            number = 1 - number
        self.stop_or_crash(1 - number)
        self.start(number, False, True)
        while self.queries[number].look != "done":
            self.look_on(number)
        self.take_all(number)
        self.batch(number, True)
        for name, topic in self.topics.items():
            for partition in range(topic.count):
                log = (topic.id, partition)
                unread = set(range(self.must_from.get(log, self.ends[log]), self.ends[log])) - self.read[log]
                assert not unread, f"no query reads {unread} of {name}-{partition}"


TestModel: Any = Model.TestCase
TestModel.settings = settings(max_examples=300, stateful_step_count=25, deadline=None)


def _flag(random: Random) -> bool:
    return random.random() < 0.5


#: rule -> its arguments, drawn.
DRAWN: Mapping[str, Callable[[Random], Mapping[str, object]]] = {
    "create_or_create_again": lambda r: {"name": _name(r), "count": r.randint(1, 2), "keeps_commits": _flag(r)},
    "grow": lambda r: {"name": _name(r)},
    "produce": lambda r: {"name": _name(r), "number": r.randint(0, 1), "count": r.randint(1, 3)},
    "start": lambda r: {"number": r.randint(0, 1), "lagging": _flag(r), "at_once": _flag(r)},
    "look_on": lambda r: {"number": r.randint(0, 1)},
    "take_all": lambda r: {"number": r.randint(0, 1)},
    "take": lambda r: {"number": r.randint(0, 1), "name": _name(r), "partition": r.randint(0, 1), "fresh": _flag(r)},
    "batch": lambda r: {"number": r.randint(0, 1), "commits": _flag(r)},
    "hand_over": lambda r: {"number": r.randint(0, 1), "name": _name(r)},
    "stop_or_crash": lambda r: {"number": r.randint(0, 1)},
    "run_available_now": lambda r: {"number": r.randint(0, 1), "early": _flag(r)},
}


def _name(random: Random) -> str:
    return random.choice(["orders-a", "orders-b"])


def _play(model: Model, random: Random) -> None:
    for _ in range(20):
        name = random.choice(list(DRAWN))
        getattr(model, name)(**DRAWN[name](random))
    model.teardown()


@pytest.mark.parametrize("rules", [WhileJoiningAllIsOld, TheCheckpointProvesNothing, AnyViewWillDo, TheIdsAreIgnored])
def test_the_model_finds_each_old_mistake(rules: type[Rules]) -> None:
    """Use numbered plays, because the plays of hypothesis differ from one file to another."""
    mistaken = type("Mistaken", (Model,), {"deciding": rules()})
    found = None
    for seed in range(20_000):
        try:
            _play(mistaken(), Random(seed))
        except AssertionError as error:
            found = str(error)
            break
    assert found is not None
    assert "no query reads" in found or "reports success" in found


def test_the_plays_that_find_mistakes_find_none_in_the_rules() -> None:
    for seed in range(2_000):
        _play(Model(), Random(seed))
