"""Where a partition starts, with the look-ups: one test for each way to lose records or to go back."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, cast

import attrs
import pytest

from consumer_coord.errors import ConfigurationError, NoOffsetError, RetriableError, UnknownTopicError
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST, Listed, ListedOffset
from consumer_coord.net.metadata import NO_TOPIC_ID, Metadata, Topic
from consumer_coord.net.topic_ids import TopicIds
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.spark import start_lookups
from consumer_coord.spark.checkpoint import Offsets, Span, TopicSpans
from consumer_coord.spark.commit_metadata import topic_id_of, with_topic_id
from consumer_coord.spark.ledger import Ledger, PlannedCommit
from consumer_coord.spark.start_lookups import StartLookups
from consumer_coord.spark.start_offsets import (
    AFTER_THE_GROUP,
    AFTER_THE_QUERY,
    AT_CHECKPOINT,
    AT_COMMIT,
    NOT_IN_CHECKPOINT,
    RECREATED,
    Beginning,
    Start,
)
from consumer_coord.spark.starting_offsets_option import Starting
from consumer_coord.spark.subscribed_topics import TopicView
from consumer_coord.topic_partition import TopicPartition

ID, NEW_ID = uuid.UUID(int=7), uuid.UUID(int=8)
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
#: A look at a group without commits.
BEGINNING = Beginning({"orders": TopicView(ID, 3)}, {P0: 90, P1: 90, P2: 90})


@attrs.define
class Cluster:
    """A group's commits and a topic whose partitions reach from ``first`` to ``end``."""

    commits: dict[TopicPartition, OffsetAndMetadata] = attrs.field(factory=dict)
    partitions: int = 3
    topic_id: uuid.UUID = ID
    first: int = 5
    end: int = 100
    by_time: int = 50
    #: Number of look-ups of offsets that fail.
    failures: int = 0
    version: int = 1
    #: Whether a request for metadata brings a newer response.
    answers: bool = True

    @property
    def metadata(self) -> Metadata:
        ones = (1,) * self.partitions
        topic = Topic("orders", self.topic_id, False, ones, ones, ((1,),) * self.partitions)
        return Metadata(version=self.version, topics={"orders": topic})

    @property
    def cluster(self) -> Cluster:
        return self

    async def refresh(self, deadline: Deadline) -> Metadata:
        self.version += self.answers
        return self.metadata

    async def committed(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        topic_ids: TopicIds | None = None,
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        return {partition: self.commits.get(partition) for partition in partitions}

    async def list_offsets(
        self, cluster: object, wanted: Mapping[TopicPartition, int], deadline: Deadline, *, read_committed: bool = False
    ) -> Listed:
        if self.failures:
            self.failures -= 1
            raise RetriableError("the brokers are busy")
        answers = {LATEST: self.end, EARLIEST: self.first}
        return Listed({partition: ListedOffset(answers.get(stamp, self.by_time)) for partition, stamp in wanted.items()})


def starts(
    cluster: Cluster,
    *partitions: TopicPartition,
    starting: Starting | None = None,
    ledger: Ledger | None = None,
    beginning: Beginning | None = None,
) -> Mapping[TopicPartition, Start]:
    lookups = StartLookups(cast(Any, cluster), starting or Starting(), True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start_lookups, "list_offsets", cluster.list_offsets)
        return asyncio.run(lookups.starts(partitions, ledger or Ledger("billing"), beginning, 1_000))


def places(found: Mapping[TopicPartition, Start]) -> dict[TopicPartition, tuple[int | None, str]]:
    return {partition: (start.position, start.reason) for partition, start in found.items()}


def commit(offset: int, topic_id: uuid.UUID | None = ID) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset) if topic_id is None else with_topic_id(PlannedCommit(offset, 1, topic_id))


def checkpoint(**ends: int) -> Ledger:
    spans = {int(name[1:]): Span(0, end, 1) for name, end in ends.items()}
    return Ledger("billing").finish(Offsets("billing", "c", {"orders": TopicSpans(ID, spans)}), ["orders"])


def test_a_commit_names_its_topics_id() -> None:
    assert topic_id_of(commit(5).metadata) == ID
    for other in ("", "another client's", "kafka_group n=12"):
        assert topic_id_of(other) is None


def test_the_groups_commit_counts_first() -> None:
    start = starts(Cluster({P0: commit(42)}), P0, beginning=BEGINNING)[P0]
    assert (start.position, start.committed, start.reason) == (42, 42, AT_COMMIT)


def test_a_new_group_starts_as_configured() -> None:
    def first(starting: Starting) -> int | None:
        return starts(Cluster(), P0, starting=starting, beginning=BEGINNING)[P0].position

    assert first(Starting()) == 90, "the end when the query started, not the end now"
    assert first(Starting(word=EARLIEST)) == 5
    assert first(Starting(offsets={"orders": {0: 23, 1: LATEST, 2: EARLIEST}})) == 23
    assert first(Starting(timestamp_ms=1)) == 50


def test_a_group_that_has_begun_skips_nothing_of_what_came_later() -> None:
    assert places(starts(Cluster({P0: commit(100)}), P2)) == {P2: (5, AFTER_THE_GROUP)}
    grown = Beginning({"orders": TopicView(ID, 2)}, {P0: 90, P1: 90})
    assert places(starts(Cluster(), P2, beginning=grown)) == {P2: (5, AFTER_THE_QUERY)}
    assert places(starts(Cluster(), P2, beginning=Beginning({}))) == {P2: (5, AFTER_THE_QUERY)}
    assert places(starts(Cluster(), P2, ledger=checkpoint(p0=30))) == {P2: (5, NOT_IN_CHECKPOINT)}


def test_next_to_commits_of_plain_consumers_nothing_is_skipped() -> None:
    assert starts(Cluster({P0: commit(100, None)}), P2)[P2].position == 5


def test_expired_commits_do_not_skip_what_the_checkpoint_knows() -> None:
    found = places(starts(Cluster(), P0, P1, ledger=checkpoint(p0=30)))
    assert found == {P0: (30, AT_CHECKPOINT), P1: (5, NOT_IN_CHECKPOINT)}, "another member had P1: how far is unknown"


def test_checkpoint_and_commit_the_later_one() -> None:
    assert places(starts(Cluster({P0: commit(20)}), P0, ledger=checkpoint(p0=30))) == {P0: (30, AT_CHECKPOINT)}
    assert places(starts(Cluster({P0: commit(40)}), P0, ledger=checkpoint(p0=30))) == {P0: (40, AT_COMMIT)}


def test_a_topic_made_again_starts_at_the_earliest_whatever_the_options_say() -> None:
    for starting in (Starting(), Starting(offsets={"orders": {0: 23}}), Starting(timestamp_ms=1)):
        found = starts(Cluster(topic_id=NEW_ID), P0, P1, ledger=checkpoint(p0=30), starting=starting)
        assert places(found) == {P0: (5, RECREATED), P1: (5, RECREATED)}


def test_a_topic_made_again_goes_on_at_a_commit_of_its_own() -> None:
    cluster = Cluster({P0: commit(7, NEW_ID)}, topic_id=NEW_ID)
    start = starts(cluster, P0, ledger=checkpoint(p0=30))[P0]
    assert (start.position, start.committed, start.topic_id) == (7, 7, NEW_ID)


def test_a_commit_of_the_old_topic_that_came_too_late_says_nothing() -> None:
    """Neither to a query that knew the old one nor to one that comes new."""
    cluster = Cluster({P0: commit(70), P1: commit(60)}, topic_id=NEW_ID)
    for beginning in (None, Beginning({"orders": TopicView(NEW_ID, 3)}, {P0: 90, P1: 90, P2: 90})):
        assert places(starts(cluster, P0, P2, beginning=beginning)) == {P0: (5, RECREATED), P2: (5, RECREATED)}


def test_a_partition_of_another_member_in_a_topic_made_again_starts_at_the_earliest() -> None:
    """No record of the old one was this query's to lose; but those of the new one must not be skipped."""
    assert places(starts(Cluster(topic_id=NEW_ID), P0, beginning=BEGINNING)) == {P0: (5, RECREATED)}


def test_a_look_up_that_fails_is_repeated_and_finds_the_same() -> None:
    cluster = Cluster(topic_id=NEW_ID, failures=1)
    with pytest.raises(RetriableError):
        starts(cluster, P0, ledger=checkpoint(p0=30))
    assert starts(cluster, P0, ledger=checkpoint(p0=30))[P0].position == 5


def test_an_old_view_decides_nothing() -> None:
    with pytest.raises(UnknownTopicError, match="version 1 is too old: version 2 or later is needed"):
        starts(Cluster(answers=False), P0, beginning=BEGINNING)
    with pytest.raises(UnknownTopicError, match=r"no start offset for orders-2 yet: .* does not name the partition"):
        starts(Cluster(partitions=2), P2, beginning=BEGINNING)


def test_brokers_without_topic_ids_have_one_topic_of_a_name() -> None:
    cluster = Cluster({P0: commit(70)}, topic_id=NO_TOPIC_ID)
    assert starts(cluster, P0, ledger=checkpoint(p0=30))[P0].position == 70


def test_a_time_after_the_last_record() -> None:
    cluster = Cluster(by_time=-1)
    with pytest.raises(NoOffsetError, match="startingOffsetsByTimestampStrategy=latest"):
        starts(cluster, P0, starting=Starting(option="startingTimestamp", timestamp_ms=9), beginning=BEGINNING)
    after = Starting(option="startingTimestamp", timestamp_ms=9, latest_after_the_end=True)
    assert starts(cluster, P0, starting=after, beginning=BEGINNING)[P0].position == 90


def test_an_offset_after_the_end_of_the_log_is_an_error_and_not_the_start() -> None:
    """The query would commit the offset, so a corrected option would have no effect."""
    beyond = Starting(offsets={"orders": {0: 101, 1: 100, 2: -1}})
    with pytest.raises(NoOffsetError, match="startingOffsets: orders-0 at 101, but the log ends at 100; choose"):
        starts(Cluster(), P0, P1, P2, starting=beyond, beginning=BEGINNING)
    assert starts(Cluster(), P1, starting=beyond, beginning=BEGINNING)[P1].position == 100
    assert starts(Cluster({P0: commit(70)}), P0, starting=beyond)[P0].position == 70


def test_json_that_leaves_a_partition_out_is_refused_at_the_first_start_only() -> None:
    """Spark's own source refuses it, too.  A partition that is added later starts at the earliest."""
    incomplete = Starting(offsets={"orders": {0: 23}})
    with pytest.raises(ConfigurationError, match=r"startingOffsets leaves out orders-1, orders-2: .*-2 for the earliest"):
        starts(Cluster(), P0, starting=incomplete, beginning=BEGINNING)
    by_time = Starting(option="startingOffsetsByTimestamp", timestamps_ms={"orders": {0: 23}})
    with pytest.raises(ConfigurationError, match="startingOffsetsByTimestamp leaves out"):
        starts(Cluster(), P0, starting=by_time, beginning=BEGINNING)
    assert starts(Cluster(), P1, starting=incomplete, ledger=checkpoint(p0=30))[P1].position == 5


def test_the_log_says_where_each_partition_starts_and_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        starts(Cluster({P0: commit(42)}), P0, P1, P2)
    assert f"starting {AT_COMMIT}: orders-0 at 42" in caplog.text
    assert f"starting {AFTER_THE_GROUP}: orders-1 at 5, orders-2 at 5" in caplog.text
