"""A hundred stories with altered responses; ``fuzz_answers.py`` lists what must not happen in them."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from tests.support.group.fuzz_answers import play

#: Stories per test, so that workers share them.
CHUNK = 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_bent_answers_cost_little_and_raise_our_errors_only(first: int) -> None:
    bent: Counter[str] = Counter()
    logging.disable()
    try:
        for seed in range(first, first + CHUNK):
            result = play(seed)
            assert result.wrong == [], f"python -m tests.support.group.fuzz_answers --first {seed}"
            bent += result.bent
    finally:
        logging.disable(logging.NOTSET)
    assert bent.total() > CHUNK, "the stories alter responses"
    assert {"Metadata", "FindCoordinator", "JoinGroup"} <= bent.keys()
