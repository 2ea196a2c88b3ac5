"""The partitions that a member acquires and releases for the topic ids of a heartbeat response."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.group.consumer_protocol.reconciliation import has_revoked
from consumer_coord.group.consumer_protocol.target_assignment import TargetAssignment, owned_by_id, reconcile
from consumer_coord.topic_partition import TopicPartition

A, B, A_AGAIN = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)
NAMES = {A: "a", B: "b"}


def _target(**rows: set[int]) -> TargetAssignment:
    ids = {"a": A, "b": B, "again": A_AGAIN}
    return TargetAssignment().following((ids[name], numbers) for name, numbers in rows.items())


def test_topic_ids_become_names() -> None:
    found = reconcile(_target(a={0, 1}, b={2}), NAMES, frozenset(), {})
    assert found.partitions == {TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2)}
    assert found.ids == {"a": A, "b": B}
    assert found.complete


def test_only_ids_that_the_metadata_does_not_know_wait() -> None:
    target = _target(a={0}, b={0})
    found = reconcile(target, {A: "a"}, frozenset(), {})
    assert found.partitions == {TopicPartition("a", 0)}
    assert found.unknown == {B}
    assert not found.complete
    assert reconcile(target, NAMES, found.partitions, found.ids).complete


@pytest.mark.behaviour(164)
def test_a_recreated_topic_is_acquired_when_no_partition_of_the_former_one_is_held() -> None:
    held = frozenset({TopicPartition("a", 0)})
    names = {A_AGAIN: "a", B: "b"}
    found = reconcile(_target(again={0}, b={0}), names, held, {"a": A})
    assert found.partitions == {TopicPartition("b", 0)}
    assert found.former == {"a"}
    assert not found.complete
    later = reconcile(_target(again={0}, b={0}), names, frozenset(), {"a": A})
    assert later.partitions == {TopicPartition("a", 0), TopicPartition("b", 0)}
    assert later.ids["a"] == A_AGAIN


@pytest.mark.behaviour(165)
def test_held_partitions_of_a_topic_missing_from_the_metadata_stay_known() -> None:
    held = frozenset({TopicPartition("a", 0), TopicPartition("a", 1)})
    found = reconcile(_target(a={0}), {}, held, {"a": A})
    assert found.partitions == {TopicPartition("a", 0)}
    assert found.complete


@pytest.mark.behaviour(166)
def test_a_target_that_is_named_again_is_the_same_target() -> None:
    target = _target(a={0, 1})
    assert target.following([(A, [0]), (A, [1]), (B, [])]) is target
    assert target.following([(A, [0])]) is not target
    assert TargetAssignment().following([]) == TargetAssignment(1)


def test_owned_partitions_are_reported_by_id_in_order() -> None:
    held = {TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("a", 0)}
    assert owned_by_id(held, {"a": A, "b": B}) == ((A, (0, 2)), (B, (1,)))


_owned = st.dictionaries(st.sampled_from([A, B]), st.frozensets(st.integers(0, 3), min_size=1)).map(
    lambda rows: tuple((topic_id, tuple(sorted(numbers))) for topic_id, numbers in rows.items())
)


@given(_owned, _owned)
def test_a_partition_that_is_no_longer_owned_counts_as_released(before: object, now: object) -> None:
    def flat(rows: object) -> set[tuple[uuid.UUID, int]]:
        return {(topic_id, number) for topic_id, numbers in rows for number in numbers}  # type: ignore[attr-defined]

    assert has_revoked(before, now) == bool(flat(before) - flat(now))  # type: ignore[arg-type]
