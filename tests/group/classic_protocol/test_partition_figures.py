"""Figures that a leader fetches for its assignor: lag, and the rate between two fetches of ends and commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import attrs
import pytest
from confluent_kafka import Producer

from assignors import Cluster, LoadAssignor, Member, Plan
from consumer_coord import GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.group.classic_protocol.partition_figures import LEAST_APART_S, Look, rates
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import JoinGroupRequest
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from consumer_coord.wire.schema import Struct
from tests.support.group.fake import SILENCE, FakeBrokers
from tests.support.group.ill_leaders import ILL, at_node, without_partition
from tests.support.group.member import ScriptedAssignor, everything_to_first, member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually, eventually_async

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def growing(per_s: dict[int, float]) -> Callable[[ListOffsetsRequest], ListOffsetsResponse]:
    """Return logs of "t" that grow by this number of records per second from the start of the test."""

    def answer(request: ListOffsetsRequest) -> ListOffsetsResponse:
        time_s = asyncio.get_running_loop().time()
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        ListOffsetsPartitionResponse(
                            partition_index=row.partition_index,
                            error_code=codes.NONE,
                            offset=1_000 + round(per_s[row.partition_index] * time_s),
                        )
                        for row in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    return answer


def weighing() -> ScriptedAssignor:
    """Return an assignor that needs weights."""
    assignor = ScriptedAssignor(everything_to_first)
    assignor.needs = frozenset({"weights"})
    return assignor


@in_virtual_time
async def test_the_first_assignment_measures_rates_between_two_looks() -> None:
    brokers = FakeBrokers({"t": 3})
    brokers.always(ListOffsetsRequest, growing({0: 500.0, 1: 20.0, 2: 0.0}))
    assignor = weighing()
    async with member(brokers, [assignor]) as one:
        await one.join()
    busy, slow, idle = assignor.clusters[0].weights["t"]
    assert busy == pytest.approx(500, rel=0.02)
    assert slow == pytest.approx(20, rel=0.1)
    assert idle == 0.0
    first, second = brokers.times(ListOffsetsRequest)[:2]
    assert second - first >= LEAST_APART_S * 1000


@in_virtual_time
async def test_later_assignments_measure_since_the_last_one_and_do_not_wait() -> None:
    brokers = FakeBrokers({"t": 1})
    speed = {0: 100.0}
    brokers.always(ListOffsetsRequest, growing(speed))
    assignor = weighing()
    async with member(brokers, [assignor]) as one:
        await one.join()
        at_ms = now_ms()
        await pause(60_000)
        one.coordinator.protocol.rejoin("the test wants it")
        await eventually_async(lambda: len(assignor.clusters) == 2)
        assert assignor.clusters[1].weights["t"][0] == pytest.approx(100, rel=0.02)
        joins = [time for time in brokers.times(JoinGroupRequest) if time > at_ms]
        assert now_ms() - joins[0] < LEAST_APART_S * 1000
        # The second round of a cooperative rebalance follows at once and uses the same rates.
        looks = len(brokers.all(ListOffsetsRequest))
        one.coordinator.protocol.rejoin("the second round")
        await eventually_async(lambda: len(assignor.clusters) == 3)
    assert assignor.clusters[2].weights == assignor.clusters[1].weights
    assert len(brokers.all(ListOffsetsRequest)) == looks


@in_virtual_time
async def test_the_commit_rate_counts_if_it_exceeds_the_write_rate() -> None:
    """A backlog: few records are written, many are processed."""
    brokers = FakeBrokers({"t": 2})
    brokers.always(ListOffsetsRequest, growing({0: 10.0, 1: 10.0}))
    brokers.committed = {T0: 0, T1: 990}
    assignor = weighing()
    async with member(brokers, [assignor]) as one:
        await one.join()
        await pause(10_000)
        brokers.committed[T0] = 500
        one.coordinator.protocol.rejoin("the test wants it")
        await eventually_async(lambda: len(assignor.clusters) == 2)
    backlog, other = assignor.clusters[1].weights["t"]
    assert backlog == pytest.approx(50, rel=0.2)
    assert other == pytest.approx(10, rel=0.2)


@in_virtual_time
async def test_brokers_that_stay_silent_cost_a_second_and_no_figures() -> None:
    brokers = FakeBrokers({"t": 2})
    brokers.always(ListOffsetsRequest, lambda _: SILENCE)
    brokers.always(OffsetFetchRequest, lambda _: SILENCE)
    assignor = weighing()
    async with member(brokers, [assignor]) as one:
        await one.join()
        asked_at = brokers.times(OffsetFetchRequest)[0]
        assert now_ms() - asked_at < 3_000
    assert assignor.clusters[0].weights["t"] == [None, None]


@in_virtual_time
async def test_the_load_assignor_separates_two_busy_partitions() -> None:
    """End to end: two of four partitions are busy, and each of two members gets one of them."""
    brokers = FakeBrokers({"t": 4})
    brokers.always(ListOffsetsRequest, growing({0: 900.0, 1: 900.0, 2: 1.0, 3: 1.0}))
    load = LoadAssignor("weights")
    plans: list[dict[str, set[int]]] = []

    class Recording(LoadAssignor):
        def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
            assert set(cluster.weights) == {"t"}
            plan = load.assign(cluster, {**members, "zoe": next(iter(members.values()))})
            plans.append({name: set(topics.get("t", ())) for name, topics in plan.items()})
            return everything_to_first(cluster, members)

    async with member(brokers, [Recording("weights")]) as one:
        await one.join()
    assert sorted(len(given & {0, 1}) for given in plans[0].values()) == [1, 1]


@in_virtual_time
async def test_lag_is_the_end_less_the_commit() -> None:
    brokers = FakeBrokers({"t": 3})
    brokers.always(ListOffsetsRequest, growing({0: 0.0, 1: 0.0, 2: 0.0}))
    brokers.committed = {T0: 400, T1: 999, T2: 2_000}
    assignor = ScriptedAssignor(everything_to_first)
    assignor.needs = frozenset({"lag"})
    async with member(brokers, [assignor]) as one:
        await one.join()
    assert assignor.clusters[0].lag == {"t": [600, 1, 0]}
    assert assignor.clusters[0].weights == {}


def logs(first: int, since: int, end: int) -> Callable[[ListOffsetsRequest], ListOffsetsResponse]:
    """Serve partitions with these offsets: the first record, the wanted time (-1: no record is that young), the end."""

    def answer(request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        ListOffsetsPartitionResponse(
                            partition_index=row.partition_index,
                            error_code=codes.NONE,
                            offset={-2: first, -1: end}.get(row.timestamp, since),
                        )
                        for row in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    return answer


@pytest.mark.parametrize(
    ("reset", "since", "lag"),
    [
        ("earliest", -1, 90),
        ("latest", -1, 0),
        ("by_duration:PT1H", 70, 30),
        ("by_duration:PT1H", -1, 0),
        ("error", -1, None),
        ("none", -1, None),
    ],
)
@in_virtual_time
async def test_the_lag_of_a_partition_without_a_commit_counts_from_where_a_reader_begins(
    reset: str, since: int, lag: int | None
) -> None:
    brokers = FakeBrokers({"t": 2})
    brokers.always(ListOffsetsRequest, logs(10, since, 100))
    brokers.committed = {T0: 40}
    assignor = ScriptedAssignor(everything_to_first)
    assignor.needs = frozenset({"lag"})
    async with member(brokers, [assignor], auto_offset_reset=reset) as one:
        await one.join()
    assert assignor.clusters[0].lag == {"t": [60, lag]}


@in_virtual_time
async def test_commits_that_cannot_be_fetched_leave_the_lag_unknown() -> None:
    """Partitions whose commits cannot be fetched do not count as partitions without a commit."""
    brokers = FakeBrokers({"t": 1})
    brokers.always(OffsetFetchRequest, lambda _: SILENCE)
    assignor = ScriptedAssignor(everything_to_first)
    assignor.needs = frozenset({"lag"})
    async with member(brokers, [assignor], auto_offset_reset="earliest") as one:
        await one.join()
    assert assignor.clusters[0].lag == {"t": [None]}


@pytest.mark.parametrize("kind", ILL)
@pytest.mark.parametrize("need", ["lag", "weights"])
@in_virtual_time
async def test_a_leader_that_answers_wrongly_costs_the_figures_of_its_partitions_only(need: str, kind: str) -> None:
    brokers = FakeBrokers({"t": 2}, brokers=2)
    brokers.committed = {T0: 40, T1: 40}
    brokers.always(ListOffsetsRequest, at_node(brokers, 1, ILL[kind](brokers)))
    assignor = ScriptedAssignor(everything_to_first)
    assignor.needs = frozenset({need})
    async with member(brokers, [assignor]) as one:
        await one.join()
    (cluster,) = assignor.clusters
    if need == "lag":
        assert cluster.lag == {"t": [60, None]}
    else:
        assert cluster.weights == {"t": [0.0, None]}


@in_virtual_time
async def test_a_commit_without_a_row_leaves_the_lag_of_its_partition_unknown() -> None:
    def without_t_1(request: OffsetFetchRequest) -> Struct:
        answer: OffsetFetchResponse = brokers.usual(request)
        return attrs.evolve(answer, groups=tuple(without_partition(group, 1) for group in answer.groups))

    brokers = FakeBrokers({"t": 2})
    brokers.committed = {T0: 40, T1: 40}
    brokers.always(OffsetFetchRequest, without_t_1)
    assignor = ScriptedAssignor(everything_to_first)
    assignor.needs = frozenset({"lag"})
    async with member(brokers, [assignor], auto_offset_reset="earliest") as one:
        await one.join()
    assert assignor.clusters[0].lag == {"t": [60, None]}


def test_the_load_assignor_balances_a_new_group_by_lag() -> None:
    """Two of four partitions hold nearly all records, and no offset was ever committed: each member gets one of them."""
    with EmbeddedKafka(topics={"orders": 4}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        # A plan by the number of partitions would assign partitions 0 and 1 to one member.
        for partition, records in enumerate((200, 200, 1, 1)):
            for _ in range(records):
                producer.produce("orders", b"order", partition=partition)
        assert producer.flush(30) == 0
        config = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "new",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        with (
            GroupConsumer(config, assignors=[LoadAssignor(budget=1)]) as one,
            GroupConsumer(config, assignors=[LoadAssignor(budget=1)]) as two,
        ):
            for consumer in (one, two):
                consumer.subscribe(["orders"])
            eventually(
                lambda: one.assignment() and two.assignment() and len(one.assignment() + two.assignment()) == 4,
                step=lambda: (one.poll(0.05), two.poll(0.05)),
            )
            held = [{row.partition for row in consumer.assignment()} for consumer in (one, two)]
    assert [len(partitions & {0, 1}) for partitions in held] == [1, 1]


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [
        (Look(1.0, {T0: 10}, {}), Look(3.0, {T0: 30}, {}), 10.0),
        (Look(1.0, {T0: 10}, {T0: 0}), Look(3.0, {T0: 10}, {T0: 100}), 50.0),
        (Look(1.0, {}, {T0: 0}), Look(3.0, {}, {T0: 6}), 3.0),
        (Look(1.0, {}, {T0: 6}), Look(3.0, {}, {T0: 6}), None),
        (Look(1.0, {}, {}), Look(3.0, {T0: 6}, {}), None),
        (Look(1.0, {T0: 10}, {}), Look(3.0, {T0: 4}, {}), None),
        (Look(1.0, {T0: 10}, {}), Look(1.0, {T0: 10}, {}), None),
    ],
    ids=["written", "backlog", "commits-alone", "no-commits-alone", "new-topic", "topic-made-again", "same-moment"],
)
def test_rates_between_two_looks(before: Look, after: Look, rate: float | None) -> None:
    assert rates(before, after, [T0]) == {T0: rate}


def test_every_partition_asked_for_has_a_rate_or_none() -> None:
    found = rates(Look(0.0, {T0: 0}, {}), Look(1.0, {T0: 5}, {}), [T0, T1])
    assert found == {T0: 5.0, T1: None}
