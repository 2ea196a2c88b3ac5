"""Where a newly won partition starts: one test for each way to lose records or to go back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import attrs
import pytest

from consumer_coord.errors import NoOffsetError, RetriableError
from consumer_coord.group.committed_offsets import OffsetAndMetadata
from consumer_coord.list_offsets import EARLIEST, LATEST, ListedOffset
from consumer_coord.net.metadata import NO_TOPIC_ID, Metadata, Topic
from consumer_coord.spark.checkpoint import Offsets, Span, TopicSpans
from consumer_coord.spark.identity import TopicIds
from consumer_coord.spark.notes import Note, note_of, position
from consumer_coord.spark.planner import Holding, PlannedCommit, Planner
from consumer_coord.spark.starting import Starting
from consumer_coord.spark.takeup import NO_COMMIT, Start, resolve
from consumer_coord.topic_partition import TopicPartition

ID, NEW_ID = uuid.UUID(int=7), uuid.UUID(int=8)
KNOWN = {"orders": ID}
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
    #: So many look-ups of offsets fail.
    failures: int = 0

    @property
    def metadata(self) -> Metadata:
        ones = (1,) * self.partitions
        return Metadata(topics={"orders": Topic("orders", self.topic_id, False, ones, ones, ((1,),) * self.partitions)})

    def committed(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        return {partition: self.commits.get(partition) for partition in partitions}

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: float | None = None, *, read_committed: bool = False
    ) -> Mapping[TopicPartition, ListedOffset]:
        if self.failures:
            self.failures -= 1
            raise RetriableError("the brokers are busy")
        answers = {LATEST: self.end, EARLIEST: self.first}
        return {partition: ListedOffset(answers.get(stamp, self.by_time)) for partition, stamp in wanted.items()}


def starts(
    cluster: Cluster,
    *partitions: TopicPartition,
    starting: Starting | None = None,
    planner: Planner | None = None,
    known_topics: TopicIds | None = KNOWN,
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


def commit(offset: int, count: int | None, topic_id: uuid.UUID = ID) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset) if count is None else position(PlannedCommit(offset, 1, topic_id, count))


def checkpoint(**ends: int) -> Planner:
    planner = Planner("billing")
    spans = {int(name[1:]): Span(0, end, 1) for name, end in ends.items()}
    planner.confirm(Offsets("billing", "c", {"orders": TopicSpans(ID, 3, spans)}))
    return planner


def test_a_commit_notes_its_topic_and_how_many_partitions_that_had() -> None:
    assert note_of(commit(5, 12).metadata) == Note(12, ID)
    for other in ("", "another client's", "kafka_group n=12"):
        assert note_of(other) is None


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
    assert found[P1].position == 5, "another member had it: how far is unknown"


def test_a_topic_that_came_later_is_read_from_its_beginning() -> None:
    assert starts(Cluster(), P0, known_topics={"other": ID})[P0] == Start(5, NO_COMMIT, ID, 0)
    assert starts(Cluster(), P0, known_topics=None)[P0].position == 100


def test_checkpoint_and_commit_the_later_one() -> None:
    assert starts(Cluster({P0: commit(20, 3)}), P0, planner=checkpoint(p0=30))[P0].position == 30
    assert starts(Cluster({P0: commit(40, 3)}), P0, planner=checkpoint(p0=30))[P0].position == 40


def test_a_topic_made_again_starts_at_the_earliest_whatever_the_options_say() -> None:
    for starting in (Starting(), Starting(offsets={"orders": {0: 23}}), Starting(timestamp_ms=1)):
        losses: list[str] = []
        planner = checkpoint(p0=30)
        found = starts(Cluster(topic_id=NEW_ID), P0, P1, planner=planner, known_topics=None, losses=losses, starting=starting)
        assert found == {P0: Start(5, NO_COMMIT, NEW_ID, 0), P1: Start(5, NO_COMMIT, NEW_ID, 0)}
        assert "deleted and made again" in losses[0]


def test_a_topic_made_again_goes_on_at_a_commit_of_its_own() -> None:
    cluster = Cluster({P0: commit(7, 0, NEW_ID)}, topic_id=NEW_ID)
    assert starts(cluster, P0, planner=checkpoint(p0=30))[P0] == Start(7, 7, NEW_ID, 0)


def test_a_commit_of_the_old_topic_that_came_too_late_says_nothing() -> None:
    """Neither to a query that knew the old one nor to one that comes new."""
    cluster = Cluster({P0: commit(70, 3), P1: commit(60, 3)}, topic_id=NEW_ID)
    for known_topics in (None, {"orders": NEW_ID}):
        found = starts(cluster, P0, P2, known_topics=known_topics)
        assert found == {P0: Start(5, NO_COMMIT, NEW_ID, 0), P2: Start(5, NO_COMMIT, NEW_ID, 0)}


def test_a_partition_of_another_member_in_a_topic_made_again_starts_at_the_earliest() -> None:
    """No record of the old one was this query's to lose; but those of the new one must not be skipped."""
    losses: list[str] = []
    found = starts(Cluster(topic_id=NEW_ID), P0, known_topics=KNOWN, losses=losses)
    assert found == {P0: Start(5, NO_COMMIT, NEW_ID, 0)}
    assert losses == []


def test_a_member_that_joins_after_a_topic_was_made_again_hears_it_from_the_commits() -> None:
    cluster = Cluster({P0: commit(7, 0, NEW_ID)}, topic_id=NEW_ID)
    assert starts(cluster, P1, known_topics=None)[P1] == Start(5, NO_COMMIT, NEW_ID, 0)


def test_a_look_up_that_fails_forgets_nothing() -> None:
    planner = checkpoint(p0=30)
    cluster = Cluster(topic_id=NEW_ID, failures=1)
    with pytest.raises(RetriableError):
        starts(cluster, P0, planner=planner, known_topics=None)
    assert starts(cluster, P0, planner=planner, known_topics=None)[P0].position == 5


def test_brokers_without_topic_ids_have_one_topic_of_a_name() -> None:
    cluster = Cluster({P0: commit(70, 3)}, topic_id=NO_TOPIC_ID)
    losses: list[str] = []
    assert starts(cluster, P0, planner=checkpoint(p0=30), losses=losses)[P0].position == 70
    assert losses == []


def test_a_time_after_the_last_record() -> None:
    cluster = Cluster(by_time=-1)
    with pytest.raises(NoOffsetError, match="startingOffsetsByTimestampStrategy=latest"):
        starts(cluster, P0, starting=Starting(option="startingTimestamp", timestamp_ms=9))
    after = Starting(option="startingTimestamp", timestamp_ms=9, latest_after_the_end=True)
    assert starts(cluster, P0, starting=after)[P0].position == 100
