"""The groups that the benchmark gives to every assignor."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs

from assignors import Cluster, Member

#: The member that leaves every group, and the member that joins with the same subscription.
LEAVES = "consumer-0003"
JOINS = "consumer-new"


@attrs.frozen
class Case:
    """A group that is assigned for the first time, and then again after one member left and one joined.

    ``subscribe``: "all", "half" (each member subscribes to a random half of the topics) or "odd" (all members but one have the
    same subscription).
    """

    name: str
    members: int
    partitions: int
    topics: int
    subscribe: str = "all"

    def cluster(self) -> Cluster:
        """Return topics that have equal numbers of partitions."""
        return Cluster(dict.fromkeys(self._topics(), self.partitions // self.topics))

    def group(self) -> dict[str, Member]:
        """Return the members as they are before the first assignment."""
        return {f"consumer-{number:04d}": Member(self._subscription(number)) for number in range(self.members)}

    def newcomer(self) -> Member:
        """Return the member that joins when the other member leaves."""
        return Member(self._subscription(3))

    def _topics(self) -> list[str]:
        return [f"topic-{number:03d}" for number in range(self.topics)]

    def _subscription(self, number: int) -> Sequence[str]:
        topics = self._topics()
        if self.subscribe == "half":
            return sorted(random.Random(number).sample(topics, len(topics) // 2))
        if self.subscribe == "odd" and number == 7:
            return topics[: len(topics) // 2]
        return topics


CASES = (
    Case("uniform 100 x 1,000", 100, 1_000, 10),
    Case("uniform 500 x 20,000", 500, 20_000, 100),
    Case("uniform 1,000 x 100,000", 1_000, 100_000, 500),
    Case("uniform 2,000 x 1,000,000", 2_000, 1_000_000, 500),
    Case("halves 1,000 x 10,000", 1_000, 10_000, 100, "half"),
    Case("halves 2,000 x 100,000", 2_000, 100_000, 500, "half"),
    Case("one odd 1,001 x 100,000", 1_001, 100_000, 500, "odd"),
)
