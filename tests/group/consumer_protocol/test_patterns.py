"""The patterns that the broker resolves: those with the same meaning in Python and RE2/J."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.broker.consumer_group.regex import compile_regex
from consumer_coord.group.consumer_protocol.patterns import for_broker


@pytest.mark.parametrize(
    "pattern", ["orders.*", "^orders", "(?:^orders).*|audit\\-log", "a{2,3}", "[a-z]+\\d", "x(y|z)?", "a*?", "[^x-z]+\\."]
)
def test_the_broker_resolves_it(pattern: str) -> None:
    assert for_broker(re.compile(pattern), exclude_internal=True) == pattern
    compile_regex(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(?i)orders", "(?=a)b", "(?<!a)b", "(a)\\1", "(?P<x>a)(?P=x)", "(?>a)b", "a{1001}", "\\Aorders\\Z", "\\borders", "é", ""],
)
def test_it_is_resolved_here(pattern: str) -> None:
    assert for_broker(re.compile(pattern), exclude_internal=False) is None


def test_flags_of_python_are_not_the_brokers() -> None:
    assert for_broker(re.compile("orders", re.IGNORECASE), exclude_internal=False) is None


def test_a_pattern_that_matches_topics_of_kafkas_own_stays_here_unless_they_are_wanted() -> None:
    assert for_broker(re.compile(".*"), exclude_internal=True) is None
    assert for_broker(re.compile(".*"), exclude_internal=False) == ".*"


@given(
    st.from_regex(re.compile(r"(?:[a-c.]|\[\^?[a-c]+\]|\([a-c|]{1,3}\)|[a-c][*+?]){1,5}"), fullmatch=True),
    st.text("abcd", max_size=5),
)
def test_both_mean_the_same(pattern: str, topic: str) -> None:
    compiled = re.compile(pattern)
    told = for_broker(compiled, exclude_internal=False)
    assert told is not None
    assert bool(compiled.fullmatch(topic)) == bool(compile_regex(told).fullmatch(topic))
