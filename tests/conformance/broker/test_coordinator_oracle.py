"""Parts of our coordinator compared with Kafka's classes: broker-side assignors, regular expressions, the hash of topics."""

from __future__ import annotations

import json
import re
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer_coord.broker.consumer_group.assignors.range import RangeAssignor
from consumer_coord.broker.consumer_group.assignors.spec import GroupSpec, MemberSpec, ServerAssignor
from consumer_coord.broker.consumer_group.assignors.uniform import UniformAssignor
from consumer_coord.broker.consumer_group.member import Partitions
from consumer_coord.broker.consumer_group.regex import compile_regex
from consumer_coord.broker.consumer_group.xxh3 import xxh3_64
from consumer_coord.broker.errors import GroupError
from tests.support.java import JavaProgram
from tests.support.line_process import LineProcess

pytestmark = pytest.mark.kafka


class Oracle:
    """Kafka's classes in a Java process."""

    def __init__(self, process: LineProcess) -> None:
        self._process = process

    def ask(self, **question: Any) -> Any:
        """A question as JSON."""
        self._process.send(json.dumps(question))
        answer = json.loads(self._process.receive())
        assert "error" not in answer, answer
        return answer

    def order(self, topic_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
        """The order in which a Java hash set has topic ids."""
        if not topic_ids:
            return []
        return [_from_java(text) for text in self.ask(order=[_to_java(one) for one in topic_ids])["order"]]


@pytest.fixture(scope="module")
def oracle(kafka_libs: Path) -> Iterator[Oracle]:
    with JavaProgram(kafka_libs, "CoordinatorOracle").start() as process:
        yield Oracle(process)


def _to_java(topic_id: uuid.UUID) -> str:
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def _from_java(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=urlsafe_b64decode(text + "=="))


# -- assignors


@st.composite
def groups(draw: st.DrawFn) -> GroupSpec:
    """Any group: a few members, topics and targets from before, one of whose members may be new and one gone."""
    topic_ids = draw(st.lists(st.uuids(version=4), min_size=1, max_size=4, unique=True))
    partitions = {topic_id: draw(st.integers(1, 12)) for topic_id in topic_ids}
    ids = draw(st.lists(st.text("abcdefghij", min_size=1, max_size=6), min_size=1, max_size=7, unique=True))
    homogeneous = draw(st.booleans())
    subscribed = draw(st.lists(st.sampled_from(topic_ids), unique=True)) if homogeneous else []
    owners: dict[str, dict[uuid.UUID, set[int]]] = {}
    for topic_id, count in partitions.items():
        for number in range(count):
            owner = draw(st.sampled_from([*ids, None, None]))
            if owner is not None:
                owners.setdefault(owner, {}).setdefault(topic_id, set()).add(number)
    members = {}
    for number, member_id in enumerate(ids):
        topics = subscribed if homogeneous else draw(st.lists(st.sampled_from(topic_ids), unique=True))
        instance_id = f"i{number % 3}-{number}" if draw(st.booleans()) else None
        target = {topic_id: frozenset(numbers) for topic_id, numbers in owners.get(member_id, {}).items()}
        members[member_id] = MemberSpec({topic_id: str(topic_id) for topic_id in topics}, target, instance_id)
    assigned: dict[uuid.UUID, frozenset[int]] = {}
    for member in members.values():
        for topic_id, taken in member.target.items():
            assigned[topic_id] = assigned.get(topic_id, frozenset()) | taken
    return GroupSpec(members=members, homogeneous=homogeneous, partitions=partitions, assigned=assigned)


def in_java_order(spec: GroupSpec, oracle: Oracle) -> GroupSpec:
    """The same group with its topics in the order that Kafka's classes take them in."""
    order = oracle.order(list(spec.partitions))

    def arranged(member: MemberSpec) -> MemberSpec:
        mine = [topic_id for topic_id in order if topic_id in member.topics]
        # Kafka's set has just the member's topics in it, so that their order may be another one.
        return attrs.evolve(member, topics={topic_id: member.topics[topic_id] for topic_id in oracle.order(mine)})

    return attrs.evolve(spec, members={member_id: arranged(member) for member_id, member in spec.members.items()})


@pytest.mark.parametrize("assignor", [UniformAssignor(), RangeAssignor()], ids=lambda one: one.name)
def test_any_group_is_assigned_as_kafka_assigns_it(oracle: Oracle, assignor: ServerAssignor) -> None:
    @given(groups())
    @settings(max_examples=150, deadline=None)
    def compare(drawn: GroupSpec) -> None:
        spec = in_java_order(drawn, oracle)
        theirs = oracle.ask(
            assignor=assignor.name,
            homogeneous=spec.homogeneous,
            topics={_to_java(topic_id): count for topic_id, count in spec.partitions.items()},
            members={
                member_id: {
                    "instance": member.instance_id,
                    "topics": [_to_java(topic_id) for topic_id in member.topics],
                    "target": {_to_java(topic_id): sorted(numbers) for topic_id, numbers in member.target.items()},
                }
                for member_id, member in spec.members.items()
            },
        )["plan"]
        assert _plain(assignor.assign(spec)) == {
            (member_id, _from_java(topic), number)
            for member_id, topics in theirs.items()
            for topic, numbers in topics.items()
            for number in numbers
        }

    compare()


def _plain(plan: Mapping[str, Partitions]) -> set[tuple[str, uuid.UUID, int]]:
    return {
        (member_id, topic_id, number)
        for member_id, topics in plan.items()
        for topic_id, numbers in topics.items()
        for number in numbers
    }


# -- regular expressions

NAMES = ("orders", "orders-2", "payments", "a", "aa", "a.b", "A_b-1", "x1", "__internal", "42")
PIECES = (
    *("a", "o", "orders", "pay", "x", "1", ".", "-", "_", ".*", ".+", "a*", "[a-z]", "[^a-z]", "[a-z0-9_]+", "[[:alpha:]]"),
    *("[^[:digit:]]", "\\d", "\\w+", "\\W", "\\.", "(a|b)", "(?:orders|payments)", "(?i:A)", "(?P<n>a)", "(?<n>a)", "a{2}"),
    *("a{0,3}", ".{3,}", "a{1001}", "^", "$", "\\b", "\\A", "\\z", "\\Qa.b\\E", "(?=a)", "(?!a)", "(?<=a)", "(?>a)", "\\1"),
    *("(", ")", "[", "]", "*", "+", "?", "{", "|", "\\", "a**", "a*+", "a*?", "(?P=n)", "(?#c)", "[]a]", "[a", "(?U)a", "\\Z"),
    *("\\pL", "\\p{L}+", "\\C", "\\x41", "\\x{41}", "\\07", "\\e", "\\h", "(?x)a", "(?a)a", "(?L)a", "a{,3}", "x{2}{3}", "\\G"),
)


def test_expressions_are_legal_where_re2_says_so_and_match_the_same_topics(oracle: Oracle) -> None:
    @given(st.lists(st.sampled_from(PIECES), max_size=4).map("".join))
    @settings(max_examples=600, deadline=None)
    def compare(expression: str) -> None:
        theirs = oracle.ask(regex=expression, names=NAMES)
        try:
            matches = compile_regex(expression).fullmatch
        except GroupError:
            ours = None
        else:
            ours = [name for name in NAMES if matches(name)]
        assert ours == (None if "invalid" in theirs else theirs["matches"]), f"{expression!r}: {theirs}"

    compare()


def test_what_is_legal_for_python_only_is_refused() -> None:
    for expression in ("(?=a)b", "(a)\\1", "a*+", "(?>a)", "(?#x)", "a{1001}"):
        re.compile(expression)
        with pytest.raises(GroupError):
            compile_regex(expression)


# -- the hash of topics


def test_bytes_of_any_length_have_the_hash_that_kafka_gives_them(oracle: Oracle) -> None:
    for length in (*range(0, 260), 511, 512, 513, 1023, 1024, 1025, 4096, 5000):
        data = bytes(number * 7 + 3 & 0xFF for number in range(length))
        assert oracle.ask(hash=data.hex())["hash"] == xxh3_64(data), length
