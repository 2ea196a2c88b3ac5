"""Where a newly won partition starts: one test for each way to lose records or to go back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import attrs
import pytest

from consumer_coord.errors import NoOffsetError
from consumer_coord.list_offsets import EARLIEST, LATEST, ListedOffset
from consumer_coord.metadata import Metadata, Topic
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.spark.background import count_of, position
from consumer_coord.spark.offsets import Offsets, Span, TopicSpans
from consumer_coord.spark.planner import Holding, PlannedCommit, Planner
from consumer_coord.spark.starting import Starting
from consumer_coord.spark.takeup import NO_COMMIT, Start, resolve
from consumer_coord.topic_partition import TopicPartition

ID = uuid.UUID(int=7)
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


@attrs.define
class Cluster:
    """A group's commits and a topic whose partitions reach from ``first`` to ``end``."""

    commits: dict[TopicPartition, OffsetAndMetadata] = attrs.field(factory=dict)
    partitions: int = 3
    topic_id: uuid.UUID = ID
    first: int = 5
    end: int = 100
    by_time: int = 50

    @property
    def metadata(self) -> Metadata:
        ones = (1,) * self.partitions
        return Metadata(topics={"orders": Topic("orders", self.topic_id, False, ones, ones, ((1,),) * self.partitions)})

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        return {partition: self.commits.get(partition) for partition in partitions}

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: float | None = None, *, read_committed: bool = False
    ) -> Mapping[TopicPartition, ListedOffset]:
        answers = {LATEST: self.end, EARLIEST: self.first}
        return {partition: ListedOffset(answers.get(stamp, self.by_time)) for partition, stamp in wanted.items()}


def starts(
    cluster: Cluster,
    *partitions: TopicPartition,
    starting: Starting | None = None,
    planner: Planner | None = None,
    known_topics: frozenset[str] | None = frozenset({"orders"}),
    losses: list[str] | None = None,
) -> Mapping[TopicPartition, Start]:
    return resolve(
        partitions,
        cluster,
        planner or Planner("billing"),
        starting or Starting(),
        known_topics=known_topics,
        read_committed=True,
        timeout_ms=1_000,
        on_loss=(losses if losses is not None else []).append,
    )


def commit(offset: int, count: int | None) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset) if count is None else position(PlannedCommit(offset, 1, count))


def checkpoint(**ends: int) -> Planner:
    planner = Planner("billing")
    spans = {int(name[1:]): Span(0, end, 1) for name, end in ends.items()}
    planner.confirm(Offsets("billing", "c", {"orders": TopicSpans(ID, 3, spans)}))
    return planner


def test_a_commit_notes_how_many_partitions_there_were() -> None:
    assert count_of(commit(5, 12).metadata) == 12
    assert count_of("") is None
    assert count_of("somebody else's") is None


def test_the_groups_commit_counts_first() -> None:
    start = starts(Cluster({P0: commit(42, 3)}), P0)[P0]
    assert (start.position, start.committed) == (42, 42)


def test_a_new_group_starts_as_told() -> None:
    assert starts(Cluster(), P0)[P0] == Start(100, NO_COMMIT, ID, 3)
    assert starts(Cluster(), P0, starting=Starting(word=EARLIEST))[P0].position == 5
    assert starts(Cluster(), P0, starting=Starting(offsets={"orders": {0: 23}}))[P0].position == 23
    assert starts(Cluster(), P0, starting=Starting(timestamp_ms=1))[P0].position == 50


def test_a_member_that_comes_a_little_later_starts_as_told_too() -> None:
    """The first member's commit says that there were three partitions when the group began: this is one of them."""
    assert starts(Cluster({P0: commit(100, 3)}), P1)[P1].position == 100


def test_a_partition_added_later_starts_at_the_earliest() -> None:
    assert starts(Cluster({P0: commit(100, 2)}), P2)[P2] == Start(5, NO_COMMIT, ID, 2)


def test_a_partition_added_later_is_known_from_what_is_held() -> None:
    planner = Planner("billing")
    planner.take_up(P0, Holding(ID, 2, 1, 100, 100))
    assert starts(Cluster(), P2, planner=planner)[P2].position == 5


def test_beside_commits_of_plain_consumers_nothing_is_skipped() -> None:
    assert starts(Cluster({P0: commit(100, None)}), P2)[P2].position == 5


def test_expired_commits_do_not_skip_what_the_checkpoint_knows() -> None:
    planner = checkpoint(p0=30)
    found = starts(Cluster(), P0, P1, planner=planner)
    assert found[P0].position == 30, "where this query stood"
    assert found[P1].position == 5, "somebody else had it: nobody knows how far"


def test_a_topic_that_came_later_is_read_from_its_beginning() -> None:
    assert starts(Cluster(), P0, known_topics=frozenset({"other"}))[P0].position == 5
    assert starts(Cluster(), P0, known_topics=None)[P0].position == 100


def test_checkpoint_and_commit_the_later_one() -> None:
    assert starts(Cluster({P0: commit(20, 3)}), P0, planner=checkpoint(p0=30))[P0].position == 30
    assert starts(Cluster({P0: commit(40, 3)}), P0, planner=checkpoint(p0=30))[P0].position == 40


def test_a_topic_made_again_is_no_place_for_old_offsets() -> None:
    losses: list[str] = []
    again = Cluster({P0: commit(7, 3)}, topic_id=uuid.UUID(int=8))
    assert starts(again, P0, planner=checkpoint(p0=30), losses=losses)[P0].position == 7
    assert "deleted and made again" in losses[0]


def test_a_time_after_the_last_record() -> None:
    cluster = Cluster(by_time=-1)
    with pytest.raises(NoOffsetError, match="startingOffsetsByTimestampStrategy=latest"):
        starts(cluster, P0, starting=Starting(option="startingTimestamp", timestamp_ms=9))
    after = Starting(option="startingTimestamp", timestamp_ms=9, latest_after_the_end=True)
    assert starts(cluster, P0, starting=after)[P0].position == 100
