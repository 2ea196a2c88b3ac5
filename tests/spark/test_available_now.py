"""The partitions that move between members, according to the coordinator's description of the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from consumer_coord.admin.groups import CLASSIC, CONSUMER, GroupDescription, MemberDescription
from consumer_coord.net.metadata import Broker
from consumer_coord.spark.available_now import on_their_way
from consumer_coord.topic_partition import TopicPartition

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
ALL = {P0, P1, P2}


def member(name: str, owned: Sequence[int], target: Sequence[int] | None = None) -> MemberDescription:
    def by_topic(numbers: Sequence[int]) -> Mapping[str, tuple[int, ...]]:
        return {"orders": tuple(numbers)} if numbers else {}

    return MemberDescription(name, None, "c", "h", by_topic(owned), None, target=None if target is None else by_topic(target))


def group(
    kind: str, *members: MemberDescription, state: str = "Stable", epoch: int = 3, target_epoch: int = 3
) -> GroupDescription:
    epochs = (epoch, target_epoch) if kind == CONSUMER else (None, None)
    return GroupDescription("billing", kind, "consumer", state, "any", Broker(1, "h", 1), tuple(members), *epochs)


@pytest.mark.parametrize(
    ("described", "held", "expected"),
    [
        pytest.param(group(CLASSIC, member("me", [0]), member("other", [1, 2])), {P0}, set(), id="all have an owner"),
        pytest.param(group(CLASSIC, member("me", []), member("other", [1, 2])), set(), {P0}, id="revoked, not yet given"),
        pytest.param(group(CLASSIC, member("me", [0]), member("other", [1, 2])), set(), {P0}, id="mine, not taken yet"),
        pytest.param(group(CLASSIC, member("me", [0]), member("other", [])), ALL, {P1, P2}, id="mine, to be revoked"),
        pytest.param(group(CLASSIC, member("me", []), state="PreparingRebalance"), {P0}, ALL, id="a rebalance"),
        pytest.param(
            group(CONSUMER, member("me", [0], [0]), member("other", [1, 2], [1, 2])), {P0}, set(), id="targets are reached"
        ),
        pytest.param(
            group(CONSUMER, member("me", [], [0]), member("other", [0, 1, 2], [1, 2])), set(), {P0}, id="the owner still has it"
        ),
        pytest.param(
            group(CONSUMER, member("me", [0, 1, 2], [0]), member("other", [], [1, 2])),
            ALL,
            {P1, P2},
            id="this one still has it",
        ),
        pytest.param(
            group(CONSUMER, member("me", [], []), member("other", [0, 1, 2], [0, 1, 2]), epoch=4),
            set(),
            ALL,
            id="no target yet",
        ),
    ],
)
def test_a_partition_between_two_owners_is_on_its_way(
    described: GroupDescription, held: set[TopicPartition], expected: set[TopicPartition]
) -> None:
    assert on_their_way(described, "me", held, ALL) == expected
