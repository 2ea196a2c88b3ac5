"""A query's membership without Spark, on the embedded Kafka."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from consumer_coord.broker.group_offsets import Commit, CommitResult, Committer, OffsetCoordinator
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import FatalError, RetriableError
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.topic_ids import TopicIds, topic_ids
from consumer_coord.spark import commits, leave_at_end
from consumer_coord.spark import query as queries
from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.query_membership import QueryMembership
from consumer_coord.spark.source import KafkaGroupSource
from consumer_coord.wire import error_codes
from tests.support.spark.producing import produce
from tests.support.waiting import eventually

Join = Callable[..., QueryMembership]

#: The API keys.
JOIN_GROUP, LEAVE_GROUP = 11, 13


@pytest.fixture
def embedded() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4}) as kafka:
        yield kafka


@pytest.fixture
def join(embedded: EmbeddedKafka) -> Iterator[Join]:
    made: list[QueryMembership] = []

    def one(**options: str) -> QueryMembership:
        settings = {
            "kafka.bootstrap.servers": embedded.bootstrap_servers,
            "group.id": "billing",
            "startingOffsets": "earliest",
            **options,
        }
        made.append(QueryMembership(parse_options(settings)))
        return made[-1]

    yield one
    for query in made:
        query.leave()


@pytest.fixture
def membership(join: Join) -> QueryMembership:
    return join(subscribe="orders")


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The requests that brokers get."""
    found: list[bytes] = []
    handle = KafkaApis.handle

    async def counting(self: KafkaApis, frame: bytes, client: ClientConnection) -> bytes | None:
        found.append(frame)
        return await handle(self, frame, client)

    monkeypatch.setattr(KafkaApis, "handle", counting)
    return found


def _finish(membership: QueryMembership, start: Offsets) -> Offsets:
    """Planning calls, each batch finished at once, until there is nothing to do."""
    offsets = start

    def done() -> bool:
        nonlocal offsets
        planned = membership.next_batch(offsets)
        offsets = offsets if planned is None else planned
        return sum(span.end for _, span in offsets.spans()) == 40 and planned is None

    eventually(done, "all of it planned")
    return offsets


ORDERS = [{"partition": number % 4, "value": b"v"} for number in range(40)]


def test_a_record_that_exists_at_the_call_is_planned_by_the_call(embedded: EmbeddedKafka, membership: QueryMembership) -> None:
    """``processAllAvailable`` depends on this, however short before the call the record was written."""
    produce(embedded.bootstrap_servers, "orders", ORDERS)
    offsets = _finish(membership, Offsets("billing"))
    for number in range(20):
        produce(embedded.bootstrap_servers, "orders", ORDERS[number : number + 1])
        planned = membership.next_batch(offsets)
        assert planned is not None
        assert sum(span.end - span.start for _, span in planned.spans()) == 1
        assert membership.next_batch(planned) is None
        offsets = planned


def test_an_idle_planning_call_is_one_look_up(
    embedded: EmbeddedKafka, membership: QueryMembership, frames: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats the call at once; a query that is idle for long answers ten times a second."""
    # A busy machine may hold the calls apart for longer than Spark does; they are meant to be those of an idle source.
    monkeypatch.setattr(queries, "SPIN_S", 60.0)
    produce(embedded.bootstrap_servers, "orders", ORDERS)
    offsets = _finish(membership, Offsets("billing"))
    monkeypatch.setattr(queries, "IDLE_PART", 1e9)
    before, began = len(frames), time.monotonic()
    for _ in range(20):
        assert membership.next_batch(offsets) is None
    seconds = time.monotonic() - began
    assert seconds >= 19 * queries.IDLE_LOOK_S
    # On a slow machine there is time for more of them: heartbeats, and the ids of the topics.
    assert len(frames) - before <= 40 + 8 * seconds


def test_planning_does_not_wait_for_a_commit_in_flight(
    embedded: EmbeddedKafka, membership: QueryMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the coordinator loads its groups, batches continue; a later planning call records the outcome."""
    orders = [{"partition": number % 4, "value": b"v"} for number in range(40)]
    produce(embedded.bootstrap_servers, "orders", orders)
    offsets = _finish(membership, Offsets("billing"))

    def noted() -> bool:
        nonlocal offsets
        offsets = membership.next_batch(offsets) or offsets
        return all(committed == position for _, _, committed, position in _held(membership))

    eventually(noted, "every offset committed")
    commits = membership.status.commits
    loading = True
    refused = threading.Event()
    commit = OffsetCoordinator.commit

    async def load(
        self: OffsetCoordinator, api_version: int, committer: Committer, commits: Sequence[Commit]
    ) -> list[CommitResult]:
        if loading:
            refused.set()
            return [(each, error_codes.COORDINATOR_LOAD_IN_PROGRESS) for each in commits]
        return await commit(self, api_version, committer, commits)

    monkeypatch.setattr(OffsetCoordinator, "commit", load)
    for _ in range(3):
        produce(embedded.bootstrap_servers, "orders", orders)
        planned: Offsets | None = None
        while planned is None:
            planned = membership.next_batch(offsets)
        offsets = planned
    assert refused.wait(90)
    assert membership.status.commits == commits
    loading = False

    eventually(noted, "every offset committed")
    assert membership.status.problem is None
    assert membership.status.commit_failures == 0


def test_a_commit_without_an_answer_is_reported_and_sent_again(
    embedded: EmbeddedKafka, membership: QueryMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage longer than the time limit of a request: the lane sends the commit again, and no new batch is needed."""
    produce(embedded.bootstrap_servers, "orders", [{"partition": number % 4, "value": b"v"} for number in range(40)])
    loading, commit = False, OffsetCoordinator.commit

    async def load(
        self: OffsetCoordinator, api_version: int, committer: Committer, commits: Sequence[Commit]
    ) -> list[CommitResult]:
        if loading:
            return [(each, error_codes.COORDINATOR_LOAD_IN_PROGRESS) for each in commits]
        return await commit(self, api_version, committer, commits)

    monkeypatch.setattr(OffsetCoordinator, "commit", load)
    offsets: Offsets | None = None
    while offsets is None:
        offsets = membership.next_batch(Offsets("billing"))
    monkeypatch.setattr(commits, "REQUEST_TIMEOUT_MS", 50)
    loading = True

    def met(condition: Callable[[], bool]) -> Callable[[], bool]:
        def look() -> bool:
            assert offsets is not None
            membership.next_batch(offsets)
            return condition()

        return look

    reported = met(lambda: "are not committed yet: " in (membership.status.problem or ""))
    eventually(reported, "the problem", within_s=90, every_s=0.01)
    loading = False
    eventually(met(lambda: membership.status.problem is None), "no problem", within_s=90, every_s=0.01)
    assert all(committed == position for _, _, position, committed in _held(membership))
    assert membership.status.commit_failures == 0


def test_a_refused_commit_is_not_sent_again(
    embedded: EmbeddedKafka, membership: QueryMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later batch of the partition is committed."""
    monkeypatch.setattr(queries, "IDLE_LOOK_S", 0.0)
    orders = [{"partition": number % 4, "value": b"v"} for number in range(40)]
    produce(embedded.bootstrap_servers, "orders", orders)
    refusing, refused, commit = False, list[int](), OffsetCoordinator.commit

    async def refuse(
        self: OffsetCoordinator, api_version: int, committer: Committer, commits: Sequence[Commit]
    ) -> list[CommitResult]:
        if refusing:
            refused.extend(each.offset for each in commits)
            return [(each, error_codes.OFFSET_METADATA_TOO_LARGE) for each in commits]
        return await commit(self, api_version, committer, commits)

    monkeypatch.setattr(OffsetCoordinator, "commit", refuse)
    offsets: Offsets | None = None
    while offsets is None:
        offsets = membership.next_batch(Offsets("billing"))
    refusing = True
    planned = offsets

    def failed() -> bool:
        assert membership.next_batch(planned) is None
        return membership.status.commit_failures == 4

    eventually(failed, "refusals", within_s=90, every_s=0.01)
    for _ in range(300):
        assert membership.next_batch(planned) is None
    assert refused == [10] * 4
    assert membership.status.problem is not None
    refusing = False
    produce(embedded.bootstrap_servers, "orders", orders)

    def committed() -> bool:
        nonlocal offsets
        assert offsets is not None
        offsets = membership.next_batch(offsets) or offsets
        return all(found == position == 20 for _, _, position, found in _held(membership))

    eventually(committed, "the next batch's commits", within_s=90, every_s=0.01)
    assert membership.status.problem is None


@pytest.mark.parametrize("reported", [{}, {"orders": uuid.UUID(int=1)}], ids=["no topic", "the former topic"])
def test_a_broker_with_old_metadata_does_not_stop_a_partition(
    embedded: EmbeddedKafka, membership: QueryMembership, monkeypatch: pytest.MonkeyPatch, reported: TopicIds
) -> None:
    """Brokers learn of a new topic one after another. The commit of the start offset is sent again."""
    produce(embedded.bootstrap_servers, "orders", [{"partition": number % 4, "value": b"v"} for number in range(40)])
    calls = 0

    async def old(cluster: ClusterClient, topics: Iterable[str], timeout_ms: float) -> TopicIds:
        nonlocal calls
        calls += 1
        return reported if calls == 1 else await topic_ids(cluster, topics, timeout_ms)

    monkeypatch.setattr(commits, "topic_ids", old)
    _finish(membership, Offsets("billing"))
    assert membership.status.problem is None


def test_a_second_query_adds_no_thread(embedded: EmbeddedKafka, join: Join) -> None:
    """End offsets and commits are requests on the loop of the process, which all queries share."""
    produce(embedded.bootstrap_servers, "orders", [{"partition": number % 4, "value": b"v"} for number in range(40)])
    _finish(join(subscribe="orders"), Offsets("billing"))
    before = threading.active_count()
    other = join(subscribe="orders", **{"group.id": "reports"})
    _finish(other, Offsets("reports"))
    assert threading.active_count() <= before


def _held(membership: QueryMembership) -> list[tuple[str, str, int, int]]:
    """(topic, partition, committed, position) of each partition, as the progress shows them."""
    return [
        (topic, number, committed, position)
        for topic, rows in membership.status.to_json()["partitions"].items()
        for number, (position, _, committed) in rows.items()
    ]


def test_every_caller_of_leave_waits_for_the_same_leave(
    embedded: EmbeddedKafka, membership: QueryMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the planner's input and SIGTERM come at the same moment, and the second to ask ends the process."""
    membership.next_batch(Offsets("billing"))
    leaves: list[bytes] = []
    left, answered = threading.Event(), threading.Event()
    handle = KafkaApis.handle

    async def slow(self: KafkaApis, frame: bytes, client: ClientConnection) -> bytes | None:
        if int.from_bytes(frame[:2], "big") == LEAVE_GROUP:
            leaves.append(frame)
            left.set()
            await asyncio.to_thread(answered.wait)
        return await handle(self, frame, client)

    monkeypatch.setattr(KafkaApis, "handle", slow)
    first, second = (threading.Thread(target=membership.leave, daemon=True) for _ in range(2))
    first.start()
    assert left.wait(90)
    second.start()
    second.join(0.3)
    assert second.is_alive(), "the process would end now, before the answer"
    answered.set()
    first.join(90)
    second.join(90)
    assert not first.is_alive()
    assert not second.is_alive()
    assert len(leaves) == 1
    with pytest.raises(FatalError, match="has left its group"):
        membership.open()


def test_it_does_not_join_when_it_has_left(embedded: EmbeddedKafka, membership: QueryMembership, frames: list[bytes]) -> None:
    membership.leave()
    with pytest.raises(FatalError, match="has left its group"):
        membership.next_batch(Offsets("billing"))
    assert frames == []


def test_the_first_batch_beside_another_query_has_the_share(
    embedded: EmbeddedKafka, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that joins gets partitions only after the others' revokes. Without a wait, its first batch would be empty."""
    monkeypatch.setattr(queries, "SHARE_WAIT_S", 60.0)
    first, second = join(subscribe="orders"), join(subscribe="orders")
    assert first.next_batch(Offsets("billing")) is not None
    shared = threading.Event()

    def go_on() -> None:
        offsets = Offsets("billing")
        while not shared.wait(0.01):
            offsets = first.next_batch(offsets) or offsets

    running = threading.Thread(target=go_on)
    running.start()
    try:
        planned = second.next_batch(Offsets("billing"))
    finally:
        shared.set()
        running.join()
    assert planned is not None
    assert len(list(planned.spans())) == 2


def test_a_member_that_gets_nothing_waits_for_a_share_once(
    embedded: EmbeddedKafka, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with more members than partitions."""
    monkeypatch.setattr(queries, "SHARE_WAIT_S", 0.2)
    embedded.create_topic("single", 1)
    first, second = join(subscribe="single"), join(subscribe="single")
    assert first.next_batch(Offsets("billing")) is not None
    planned = second.next_batch(Offsets("billing"))
    assert planned is None or list(planned.spans()) == []
    monkeypatch.setattr(queries, "SHARE_WAIT_S", 3_600.0)
    for _ in range(3):
        planned = second.next_batch(Offsets("billing"))
        assert planned is None or list(planned.spans()) == []


def test_a_query_joins_while_spark_goes_on(
    embedded: EmbeddedKafka, frames: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first question that Spark asks of a planner, long before it asks for a batch."""
    monkeypatch.setattr(leave_at_end, "leave_with_process", lambda leave: None)
    options = {"kafka.bootstrap.servers": embedded.bootstrap_servers, "group.id": "billing", "subscribe": "orders"}
    source = KafkaGroupSource(options)
    reader = source.streamReader(source.schema())

    def joins() -> bool:
        return any(int.from_bytes(frame[:2], "big") == JOIN_GROUP for frame in frames)

    assert not joins()
    try:
        assert reader.initialOffset() == reader.initialOffset()
        eventually(joins, "a JoinGroup")
    finally:
        reader.stop()


def test_a_topic_that_does_not_exist_is_told_and_waited_for(
    embedded: EmbeddedKafka, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    query = join(subscribe="ordres", **{"kafka.metadata.max.age.ms": "200"})
    eventually(lambda: query.next_batch(Offsets("billing")) is not None or bool(query.status.problem), "a word of it")
    assert "ordres: the topic does not exist" in str(query.status.problem)
    assert caplog.text.count("ordres: the topic does not exist") == 1, "and not with each planning call"
    embedded.create_topic("ordres")
    eventually(lambda: query.next_batch(Offsets("billing")) is not None, "its share")
    assert query.status.problem is None


def test_a_pattern_that_matches_nothing_is_told(embedded: EmbeddedKafka, join: Join) -> None:
    query = join(subscribePattern="ordres.*")
    eventually(lambda: query.next_batch(Offsets("billing")) is not None or bool(query.status.problem), "a word of it")
    assert "'ordres.*' matches no topic" in str(query.status.problem)


def test_brokers_that_are_away_are_told_long_before_it_is_an_error(
    join: Join, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queries, "REPORT_AFTER_S", 0.1)
    times = {"kafka.default.api.timeout.ms": "2000", "kafka.rebalance.timeout.ms": "1000"}
    query = join(subscribe="orders", **{"kafka.bootstrap.servers": "127.0.0.1:9"}, **times)
    with pytest.raises(RetriableError, match=r"does not know after 3 s .*kafka.bootstrap.servers='127.0.0.1:9'"):
        query.next_batch(Offsets("billing"))
    assert "kafka.bootstrap.servers='127.0.0.1:9'" in str(query.status.problem)
    assert caplog.text.count("kafka.bootstrap.servers='127.0.0.1:9'") >= 1
