"""Queries as members of a group, against a real broker."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.functions import spark_partition_id

from consumer_coord.spark import GroupListener, by_value, progress
from consumer_coord.spark.packing import Packing, Range, Task
from consumer_coord.spark.progress import OwnershipEvent, all_progress
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.admin import set_consumer_timeouts
from tests.support.members import Members
from tests.support.spark.assignors import Failing, ToTheFirst
from tests.support.spark.producing import produce
from tests.support.spark.queries import DEADLINE_S, Queries, Rows, await_end, kinds, owned, until
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_available_now_reads_everything_commits_it_and_leaves(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]
) -> None:
    name = topic(partitions=3)
    for number in range(3):
        fill(name, number, 50)
    query, rows = queries.start(name, {"maxOffsetsPerTrigger": "60"}, now=True)
    await_end(query)
    assert [rows.offsets(number) for number in range(3)] == [list(range(50))] * 3
    assert [progress_["numInputRows"] for progress_ in query.recentProgress][:2] == [60, 60]
    assert queries.committed(name, 3) == {0: 50, 1: 50, 2: 50}
    until(lambda: queries.member_count() == 0, "the end of the membership")


def test_a_restarted_query_goes_on_where_it_stood(queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]) -> None:
    name = topic(partitions=2)
    fill(name, 0, 10)
    first, rows = queries.start(name, checkpoint="same", now=True)
    await_end(first)
    fill(name, 0, 10, first=10)
    fill(name, 1, 5)
    second, more = queries.start(name, checkpoint="same", now=True)
    await_end(second)
    assert rows.offsets() == list(range(10))
    assert (more.offsets(0), more.offsets(1)) == (list(range(10, 20)), list(range(5)))


def test_two_queries_and_two_plain_consumers_share_a_topic(
    queries: Queries, members: Members, topic: NewTopicFactory, fill: Callable[..., None]
) -> None:
    name = topic(partitions=8)
    first, rows = queries.start(name)
    until(lambda: len(owned(first)) == 8, "one query with everything", [first])
    second, more = queries.start(name)
    theirs = members.start("confluent-kafka", queries.group, [name], assignors=["cooperative-sticky"])
    ours = members.start("ours", queries.group, [name], assignors=["cooperative-sticky"])

    def shared() -> bool:
        plain = [*theirs.owned.get(name, ()), *ours.owned.get(name, ())]
        shares = [owned(first), owned(second), list(theirs.owned.get(name, ())), list(ours.owned.get(name, ()))]
        return all(len(share) == 2 for share in shares) and sorted([*owned(first), *owned(second), *plain]) == list(range(8))

    until(shared, "two partitions each", [first, second])
    for number in range(8):
        fill(name, number, 20)
    mine = sorted([*owned(first), *owned(second)])
    until(lambda: len(rows.seen) + len(more.seen) == 20 * len(mine), "all records of the queries' shares", [first, second])
    assert sorted({number for _, _, number, _ in rows.seen + more.seen}) == mine
    until(lambda: theirs.total + ours.total == 80, "the plain consumers' records")
    until(lambda: all(queries.committed(name, 8)[number] == 20 for number in mine), "commits", [first, second])
    second.stop()
    until(lambda: len(owned(first)) in (2, 3), "the rest shares again", [first])
    theirs.leave()
    ours.leave()
    until(lambda: owned(first) == list(range(8)), "one query with everything again", [first])


def test_queries_of_the_consumer_protocol_share_a_topic_and_hand_it_over(
    queries: Queries, kafka: KafkaCluster, topic: NewTopicFactory, fill: Callable[..., None]
) -> None:
    set_consumer_timeouts(kafka.admin, queries.group, session_ms=6_000, heartbeat_ms=500)
    name = topic(partitions=4)
    modern = {"kafka.group.protocol": "consumer"}
    first, rows = queries.start(name, modern)
    until(lambda: len(owned(first)) == 4, "one query with everything", [first])
    for number in range(4):
        fill(name, number, 20)
    until(lambda: len(rows.seen) == 80, "the first records", [first])
    second, more = queries.start(name, modern)
    until(lambda: len(owned(first)) == len(owned(second)) == 2, "two partitions each", [first, second])
    for number in range(4):
        fill(name, number, 20, first=20)
    until(lambda: len(rows.seen) + len(more.seen) == 160, "the second ones", [first, second])
    assert [sorted(rows.offsets(number) + more.offsets(number)) for number in range(4)] == [list(range(40))] * 4
    until(lambda: queries.committed(name, 4) == dict.fromkeys(range(4), 40), "commits", [first, second])
    second.stop()
    until(lambda: len(owned(first)) == 4, "one query with everything again", [first])


def test_a_rebalance_waits_for_no_running_batch_and_takes_nothing_from_it(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None], members: Members
) -> None:
    """During a batch longer than the session, heartbeats and the joins of others continue; partitions move after the batch."""
    name = topic(partitions=4)
    for number in range(4):
        fill(name, number, 10)
    running: list[float] = []

    def slow(batch: int) -> None:
        if not running:
            running.append(time.monotonic())
            time.sleep(9)

    query, rows = queries.start(name, rows=Rows(before=slow))
    until(lambda: bool(running), "a running batch", [query])
    joiner = members.start("ours", queries.group, [name], assignors=["cooperative-sticky"])
    joiner.wait_for("assigned")
    assert len(rows.seen) == 0, "the other member was let into the group while the batch ran"
    until(lambda: joiner.owned_count == 2, "the new member's share", [query])
    assert sorted(rows.offsets()) == sorted(list(range(10)) * 4)
    assert joiner.total == 0, "what was finished was committed before it moved"
    until(lambda: kinds(query) == ["assigned", "revoked"], "the hand-over in its progress", [query])


def test_a_batch_longer_than_max_poll_interval_loses_its_commit_visibly(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]
) -> None:
    name = topic(partitions=1)
    fill(name, 0, 10)
    slept: list[int] = []

    def slow(batch: int) -> None:
        if not slept:
            slept.append(batch)
            time.sleep(6)

    query, rows = queries.start(name, {"kafka.max.poll.interval.ms": "2000"}, rows=Rows(before=slow))
    until(lambda: bool(slept), "a running batch", [query])
    until(lambda: queries.member_count() == 0, "the member leaves in mid-batch", [query])
    until(lambda: queries.committed(name, 1)[0] == 10, "the query returns, and continues after its finished records", [query])
    assert rows.offsets() == list(range(10))
    until(lambda: "lost" in kinds(query), "the loss in its progress", [query])
    told = [one for each in query.recentProgress for one in all_progress(each)]
    assert told[-1].commit_failures >= 1
    assert any("max.poll.interval.ms" in str(one.problem) for one in told)
    until(lambda: progress(query).problem is None, "the end of the problem", [query])  # type: ignore[union-attr]  # it has one


class Told(GroupListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, str, OwnershipEvent]] = []

    def on_assigned(self, query: str, event: OwnershipEvent) -> None:
        self.events.append(("assigned", query, event))

    def on_revoked(self, query: str, event: OwnershipEvent) -> None:
        self.events.append(("revoked", query, event))

    def of(self, query: Any) -> list[tuple[str, OwnershipEvent]]:
        """Events of this query only, because Spark notifies each listener of all queries, even of queries that have ended."""
        return [(what, event) for what, told_of, event in self.events if told_of == str(query.id)]


def test_a_listener_is_told_of_each_change(queries: Queries, topic: NewTopicFactory, members: Members, spark: Any) -> None:
    name = topic(partitions=2)
    told = Told()
    spark.streams.addListener(told)
    try:
        query, _ = queries.start(name)
        until(lambda: len(told.of(query)) == 1, "assigned", [query])
        members.start("ours", queries.group, [name], assignors=["cooperative-sticky"])
        until(lambda: len(told.of(query)) == 2, "revoked", [query])
    finally:
        spark.streams.removeListener(told)
    (first, owned_), (second, revoked) = told.of(query)
    assert (first, owned_.partitions) == ("assigned", {name: [0, 1]})
    assert second == "revoked"
    assert len(revoked.partitions[name]) == 1


def test_a_static_member_keeps_its_share_over_a_restart(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]
) -> None:
    name = topic(partitions=4)
    settings = {"kafka.session.timeout.ms": "30000"}
    first, _ = queries.start(name, {**settings, "group.instance.id": "a"}, checkpoint="a")
    second, _ = queries.start(name, {**settings, "group.instance.id": "b"}, checkpoint="b")

    def generations() -> set[int]:
        return {progress(query).generation for query in (first, second)}  # type: ignore[union-attr]  # both own partitions

    # The first query may have revoked two partitions and be about to join again, which begins another generation.
    until(
        lambda: len(owned(first)) == len(owned(second)) == 2 and queries.is_stable() and len(generations()) == 1,
        "two shares in one generation, without a rebalance",
        [first, second],
    )
    [generation] = generations()
    share = owned(first)
    first.stop()
    again, rows = queries.start(name, {**settings, "group.instance.id": "a"}, checkpoint="a")
    fill(name, share[0], 5)
    until(lambda: len(rows.seen) == 5, "the restarted query's records", [again, second])
    until(lambda: owned(again) == share, "its old share", [again, second])
    found = progress(again)
    assert found is not None
    assert found.generation == generation, "no rebalance"


def test_a_static_member_that_comes_back_with_another_subscription_joins_anew(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]
) -> None:
    name, more = topic(partitions=2), topic(partitions=2)
    settings = {"kafka.session.timeout.ms": "30000", "group.instance.id": "a"}
    first, _ = queries.start(name, settings, checkpoint="a")
    until(lambda: owned(first) == [0, 1], "its share", [first])
    generation = progress(first).generation  # type: ignore[union-attr]  # it has one: it owns partitions
    first.stop()
    again, rows = queries.start(f"{name},{more}", settings, checkpoint="a")
    fill(name, 0, 3)
    fill(more, 1, 4)
    until(lambda: len(rows.seen) == 7, "records of both topics", [again])
    until(lambda: owned(again) == [0, 0, 1, 1], "its share of both topics", [again])
    found = progress(again)
    assert found is not None
    assert found.owned == {name: [0, 1], more: [0, 1]}
    assert found.generation == generation + 1, "one rebalance"
    assert queries.member_count() == 1


def test_a_second_query_with_the_same_instance_id_fences_the_first(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]
) -> None:
    name = topic(partitions=2)
    first, _ = queries.start(name, {"group.instance.id": "only"})
    until(lambda: len(owned(first)) == 2, "the first one's share", [first])
    second, _ = queries.start(name, {"group.instance.id": "only"})
    eventually(lambda: not first.isActive, "the end of the fenced query", within_s=DEADLINE_S)
    assert "group.instance.id" in str(first.exception()) or "instance" in str(first.exception())
    fill(name, 0, 3)
    until(lambda: owned(second) == [0, 1], "the second one's share", [second])


def test_an_assignor_by_value_decides(queries: Queries, topic: NewTopicFactory) -> None:
    name = topic(partitions=4)
    first, _ = queries.start(name, {"assignor": by_value(ToTheFirst)})
    until(lambda: len(owned(first)) == 4, "everything", [first])
    second, _ = queries.start(name, {"assignor": by_value(ToTheFirst)})
    until(lambda: queries.member_count() == 2, "two members", [first, second])
    until(lambda: (progress(first) or progress(second)) is not None, "progress")
    until(lambda: sorted([len(owned(first)), len(owned(second))]) in ([0, 4], [4]), "all or nothing", [first, second])


def test_an_assignor_of_a_file_handed_over_with_py_files(
    queries: Queries, topic: NewTopicFactory, spark: Any, tmp_path: Path
) -> None:
    module = tmp_path / "assignors_of_ours.py"
    module.write_text(Path("tests/support/spark/assignors.py").read_text().replace('"to-the-first"', '"of-a-file"'))
    spark.sparkContext.addPyFile(str(module))
    name = topic(partitions=2)
    query, _ = queries.start(name, {"assignor": "assignors_of_ours:ToTheFirst"})
    until(lambda: owned(query) == [0, 1], "its share", [query])
    described = queries.admin.describe_consumer_groups([queries.group])[queries.group].result(90)
    assert described.partition_assignor == "of-a-file"


def test_an_assignor_of_an_installed_package(queries: Queries, topic: NewTopicFactory) -> None:
    query, _ = queries.start(topic(partitions=2), {"assignor": "of-a-package"})
    until(lambda: owned(query) == [0, 1], "its share", [query])
    described = queries.admin.describe_consumer_groups([queries.group])[queries.group].result(90)
    assert described.partition_assignor == "of-a-package"


def test_a_packer_of_the_users_makes_the_tasks(queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]) -> None:
    name = topic(partitions=3)
    for number in range(3):
        fill(name, number, 5)

    def one_each(ranges: Sequence[Range], packing: Packing) -> Sequence[Task]:
        return [(each,) for each in ranges]

    for settings, tasks in (({}, 1), ({"taskSplitter": by_value(one_each)}, 3)):
        frame = queries.frame(name, {"group.id": f"{queries.group}-{tasks}", **settings})
        query, rows = queries.write(frame.withColumn("topic", spark_partition_id().cast("string")), now=True)
        await_end(query)
        assert [rows.offsets(number) for number in range(3)] == [list(range(5))] * 3
        assert len({task for _, task, _, _ in rows.seen}) == tasks


def test_an_assignor_that_fails_on_the_leader_fails_the_query(queries: Queries, topic: NewTopicFactory) -> None:
    query, _ = queries.start(topic(), {"assignor": "tests.support.spark.assignors:Failing"})
    with pytest.raises(StreamingQueryException, match=rf"(?s){Failing.name}.*no idea"):
        await_end(query)
    until(lambda: queries.member_count() == 0, "the end of the membership")


def test_a_partition_added_in_mid_query_is_read_from_its_beginning(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None], kafka: KafkaCluster
) -> None:
    name = topic(partitions=1)
    fill(name, 0, 5)
    query, rows = queries.start(name, {"startingOffsets": "latest", "kafka.metadata.max.age.ms": "500"})
    until(lambda: owned(query) == [0], "its share", [query])
    kafka.admin.create_partitions([NewPartitions(name, 2)])[name].result(90)
    eventually(lambda: len(kafka.admin.list_topics(timeout=60).topics[name].partitions) == 2, "the new partition")
    fill(name, 1, 7)
    until(lambda: rows.offsets(1) == list(range(7)), "the new partition's first records", [query])
    assert rows.offsets(0) == []


def test_latest_is_committed_before_the_first_batch(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]
) -> None:
    """Else a second member would resolve it again, later, and skip what came in between."""
    name = topic(partitions=1)
    fill(name, 0, 100)
    query, _ = queries.start(name, {"startingOffsets": "latest"})
    until(lambda: queries.committed(name, 1)[0] == 100, "the start's commit", [query])
    query.stop()
    fill(name, 0, 5, first=100)
    other, rows = queries.start(name, {"startingOffsets": "latest"}, now=True)
    await_end(other)
    assert rows.offsets() == list(range(100, 105))


def test_nothing_of_an_unfinished_batch_is_committed_and_it_runs_again(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]
) -> None:
    name = topic(partitions=1)
    fill(name, 0, 10)
    reached: list[int] = []

    def break_down(batch: int) -> None:
        reached.append(batch)
        raise RuntimeError("the sink is down")

    broken, _ = queries.start(name, checkpoint="c", rows=Rows(before=break_down))
    eventually(lambda: not broken.isActive, "the end of the broken query", within_s=DEADLINE_S)
    assert "the sink is down" in str(broken.exception())
    until(lambda: queries.member_count() == 0, "the end of its membership")
    assert queries.committed(name, 1)[0] == 0, "its start, and nothing of the batch"
    fill(name, 0, 5, first=10)
    again, rows = queries.start(name, checkpoint="c", now=True)
    await_end(again)
    assert [offset for batch, *_, offset in rows.seen if batch == reached[0]] == list(range(10)), "exactly the same batch"
    assert rows.offsets() == list(range(15))
    assert queries.committed(name, 1)[0] == 15


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_made_again_while_the_query_was_stopped(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None], kafka: KafkaCluster, fail: str
) -> None:
    name = topic(partitions=1)
    fill(name, 0, 20)
    query, rows = queries.start(name, checkpoint="c", now=True)
    await_end(query)
    assert len(rows.seen) == 20
    kafka.delete_topic(name)
    kafka.create_topic(name, 1)
    fill(name, 0, 30)
    options = {"failOnDataLoss": fail, "startingOffsets": "latest"}
    again, more = queries.start(name, options, checkpoint="c", now=True)
    if fail == "true":
        with pytest.raises(StreamingQueryException, match=f"topic '{name}'.*deleted and created again"):
            await_end(again)
    else:
        await_end(again)
        assert more.offsets() == list(range(30)), "nothing of the new topic is passed over, although the option says latest"


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_made_again_under_a_running_query(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None], kafka: KafkaCluster, fail: str
) -> None:
    """With more records than before, so that no offset is out of range."""
    name = topic(partitions=1)
    fill(name, 0, 400)
    options = {"failOnDataLoss": fail, "maxOffsetsPerTrigger": "40"}
    rows = Rows(before=lambda batch: time.sleep(0.2), columns=("value", "partition", "offset"))
    query, _ = queries.start(name, options, rows=rows)
    until(lambda: len(rows.seen) >= 120, "some batches", [query])
    kafka.delete_topic(name)
    kafka.create_topic(name, 1)
    fill(name, 0, 1_000, first=5_000)
    if fail == "true":
        eventually(lambda: not query.isActive, "the end of the query", within_s=DEADLINE_S)
        assert re.search(f"data loss in .*'{name}'.*deleted", str(query.exception()), re.DOTALL)
        return
    new = [(f"v{5_000 + offset}".encode(), offset) for offset in range(1_000)]

    def told() -> list[tuple[bytes, int]]:
        return [(bytes(value), offset) for _, value, _, offset in rows.seen if int(value[1:]) >= 5_000]

    until(lambda: len(told()) >= 1_000, "the new topic's records", [query])
    assert told() == new, "each once, from the first on"
    old = [(bytes(value), offset) for _, value, _, offset in rows.seen if int(value[1:]) < 5_000]
    assert old == [(f"v{offset}".encode(), offset) for offset in range(len(old))]
    until(lambda: queries.committed(name, 1) == {0: 1_000}, "their commits", [query])


@pytest.mark.parametrize("fail", ["true", "false"])
def test_unread_records_that_retention_deleted(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None], kafka: KafkaCluster, fail: str
) -> None:
    name = topic(partitions=1)
    fill(name, 0, 10)
    # A separate setting gives this query a separate consumer, so no other query uses its prefetched records.
    first, _ = queries.start(name, {"kafka.client.id": "the first"}, checkpoint="c", now=True)
    await_end(first)
    fill(name, 0, 90, first=10)
    kafka.admin.delete_records([TopicPartition(name, 0, 40)])[TopicPartition(name, 0)].result(90)
    again, rows = queries.start(name, {"failOnDataLoss": fail, "maxOffsetsPerTrigger": "25"}, checkpoint="c", now=True)
    if fail == "true":
        with pytest.raises(StreamingQueryException, match=rf"topic '{name}', partition 0, offsets 10 to 35: .* 40 to 100"):
            await_end(again)
    else:
        await_end(again)
        assert rows.offsets() == list(range(40, 100))
        assert queries.committed(name, 1) == {0: 100}


def test_one_source_used_twice_in_a_query(queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]) -> None:
    name = topic(partitions=2)
    fill(name, 0, 10)
    frame = queries.frame(name)
    query, rows = queries.write(frame.union(frame), now=True)
    await_end(query)
    assert sorted(rows.offsets()) == sorted([*range(10), *range(10)])


def test_a_pruned_schema(queries: Queries, topic: NewTopicFactory, fill: Callable[..., None], spark: Any) -> None:
    name = topic()
    fill(name, 0, 3)
    reader = spark.readStream.format("kafka_group").schema("value binary, offset bigint")
    for key, value in {
        "kafka.bootstrap.servers": queries.bootstrap_servers,
        "group.id": queries.group,
        "subscribePattern": re.escape(name),
        "startingOffsets": "earliest",
    }.items():
        reader = reader.option(key, value)
    found: list[Any] = []
    query = reader.load().writeStream.foreachBatch(lambda frame, _: found.extend(frame.collect())).trigger(availableNow=True)
    started = query.start()
    queries.started.append(started)
    await_end(started)
    assert [(bytes(row["value"]), row["offset"]) for row in found] == [(b"v0", 0), (b"v1", 1), (b"v2", 2)]


# -- bad input ----------------------------------------------------------------------------------------------------------


def test_a_wrong_option_fails_at_load(queries: Queries) -> None:
    with pytest.raises(AnalysisException, match="did you mean 'maxOffsetsPerTrigger'"):
        queries.frame("orders", {"maxOffsetPerTrigger": "5"})


def test_a_broker_that_is_away_fails_the_query_with_its_address(queries: Queries) -> None:
    query, _ = queries.start(
        "orders",
        {
            "kafka.bootstrap.servers": "127.0.0.1:9",
            "kafka.default.api.timeout.ms": "1000",
            "kafka.rebalance.timeout.ms": "1000",
        },
    )
    with pytest.raises(StreamingQueryException, match=r"(?s)kafka\.bootstrap\.servers='127\.0\.0\.1:9'"):
        await_end(query)


def test_a_checkpoint_of_another_group_is_refused(queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]) -> None:
    name = topic()
    fill(name, 0, 1)
    first, _ = queries.start(name, checkpoint="c", now=True)
    await_end(first)
    second, _ = queries.start(name, {"group.id": "another"}, checkpoint="c", now=True)
    with pytest.raises(StreamingQueryException, match=f"belongs to group '{queries.group}'"):
        await_end(second)


def test_a_checkpoint_of_sparks_own_source_is_refused(
    queries: Queries, topic: NewTopicFactory, fill: Callable[..., None], tmp_path: Path
) -> None:
    name = topic()
    fill(name, 0, 1)
    first, _ = queries.start(name, checkpoint="c", now=True)
    await_end(first)
    for log in (tmp_path / "c" / "offsets").glob("[0-9]*"):
        head = log.read_text().splitlines()[:2]
        log.write_text("\n".join([*head, json.dumps({name: {"0": 1}})]))
    for checksum in (tmp_path / "c" / "offsets").glob(".*.crc"):
        checksum.unlink()
    second, _ = queries.start(name, checkpoint="c", now=True)
    with pytest.raises(StreamingQueryException, match="Spark's own Kafka source"):
        await_end(second)


def test_a_checkpoint_of_other_topics_is_refused(queries: Queries, topic: NewTopicFactory, fill: Callable[..., None]) -> None:
    one, other = topic(), topic()
    fill(one, 0, 1)
    first, _ = queries.start(one, checkpoint="c", now=True)
    await_end(first)
    second, _ = queries.start(other, checkpoint="c", now=True)
    with pytest.raises(StreamingQueryException, match=f"belongs to a query of {one}"):
        await_end(second)
    until(lambda: queries.member_count() == 0, "the end of the membership")


def test_asynchronous_progress_tracking_is_refused(
    queries: Queries, topic: NewTopicFactory, kafka: KafkaCluster, tmp_path: Path
) -> None:
    name = topic()
    writer = queries.frame(name).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "async"))
    query = writer.option("asyncProgressTrackingEnabled", "true").start()
    queries.started.append(query)
    until(lambda: query.lastProgress is not None or not query.isActive, "a first batch")
    for _ in range(100):
        if not query.isActive:
            break
        produce(kafka.bootstrap_servers, name, [{"value": b"v"}])
        time.sleep(0.1)
    assert "asyncProgressTrackingEnabled" in str(query.exception())
