"""Checkpoint offsets: stable as text, self-describing, and never taken for another query's."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.spark.checkpoint import Offsets, Span, TopicSpans, check_cluster, from_json
from consumer_coord.spark.errors import CheckpointError

SPANS = st.builds(
    lambda start, size, generation: Span(start, start + size, generation),
    st.integers(0, 2**62),
    st.integers(0, 2**40),
    st.integers(-1, 2**31 - 1),
)
TOPICS = st.builds(TopicSpans, st.uuids(), st.dictionaries(st.integers(0, 200), SPANS, max_size=20))
OFFSETS = st.builds(
    Offsets, st.text(min_size=1), st.text(min_size=1), st.dictionaries(st.from_regex(r"[a-z._-]{1,9}", fullmatch=True), TOPICS)
)


@given(OFFSETS)
def test_what_is_written_is_read_back(offsets: Offsets) -> None:
    text = json.dumps(offsets.to_json())
    assert from_json(json.loads(text), offsets.group) == offsets


@given(OFFSETS)
def test_equal_offsets_are_equal_texts(offsets: Offsets) -> None:
    """Spark compares offsets as text, so the order in which the query received its partitions must not change the text."""
    shuffled = Offsets(
        offsets.group,
        offsets.cluster,
        {
            topic: TopicSpans(part.id, dict(reversed(list(part.spans.items()))))
            for topic, part in reversed(list(offsets.topics.items()))
        },
    )
    text = json.dumps(offsets.to_json())
    assert json.dumps(shuffled.to_json()) == text
    assert json.dumps(json.loads(text), sort_keys=True) == text


def test_the_first_offset_needs_no_cluster() -> None:
    first = Offsets("billing")
    assert first.to_json() == {"cluster": None, "group": "billing", "topics": {}, "v": 1}
    assert from_json(first.to_json(), "billing") == first


ID = str(uuid.UUID(int=7))


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ({"orders": {"0": 23}}, "Spark's own Kafka source"),
        ({"logOffset": 4}, "another source"),
        ("4", "another source"),
        ({"v": 2, "group": "billing"}, "version 2, but this release reads version 1"),
        (
            {"v": 1, "group": "payments", "cluster": "c", "topics": {}},
            "belongs to group 'payments', but the option group.id is",
        ),
        ({"v": 1, "group": "billing", "cluster": "c"}, "damaged offset"),
        ({"v": 1, "group": "billing", "cluster": None, "topics": {"t": {"id": ID, "p": {}}}}, "damaged"),
        ({"v": 1, "group": "billing", "cluster": "c", "topics": {"t": {"id": ID, "p": {"0": [5, 4, 1]}}}}, "damaged"),
        ({"v": 1, "group": "billing", "cluster": "c", "topics": {"t": {"id": ID, "p": {"0": [5]}}}}, "damaged"),
        ({"v": 1, "group": "billing", "cluster": "c", "topics": {"t": {"id": "?", "p": {}}}}, "damaged"),
        ({"v": 1, "group": "billing", "cluster": "c", "topics": []}, "damaged"),
    ],
)
def test_a_foreign_checkpoint_is_refused(read: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        from_json(read, "billing")
    assert "checkpoint" in str(caught.value)


def test_a_checkpoint_of_another_cluster_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"cluster a, .*'host:1' leads to b"):
        check_cluster(Offsets("billing", "a"), "b", "host:1")
    check_cluster(Offsets("billing", "a"), "a", "host:1")
    check_cluster(Offsets("billing"), "b", "host:1")
