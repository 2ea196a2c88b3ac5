"""Records that were fetched under a former ownership are not delivered, even if there is a new lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import OFFSET_INVALID, KafkaException
from tests.support.consumer.embedded import BROKER, DEADLINE_S, KeepingConsumer, consumer, held, poll_each, produce, row
from tests.support.group.classic import classic
from tests.support.waiting import eventually
from tests.support.white_box import blocking_coordinator_of, coordinator_of, data_plane

COUNT = 1_000


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(config=BROKER, topics={"orders": 2}) as running:
        produce(running, "orders", {0: range(COUNT), 1: range(COUNT)})
        yield running


def _lose_and_rejoin(one: KeepingConsumer) -> None:
    """Lose the membership and win it again, as after a pause of the process that was longer than the session timeout."""
    core = coordinator_of(one)
    before = core.generation
    blocking_coordinator_of(one).on_loop(lambda: classic(core).status.lose("this process was suspended"))

    def is_back() -> bool:
        return core.generation > before and not core.rebalancing and core.lease.clock() < core.lease.until

    eventually(is_back, "the member is back in the group, with a new lease", within_s=DEADLINE_S)


@pytest.mark.parametrize("receive", [lambda one: one.poll(0.05), lambda one: one.consume(50, 0.05)], ids=["poll", "consume"])
def test_waiting_records_of_a_lost_ownership_are_not_delivered_under_the_new_lease(
    kafka: EmbeddedKafka, receive: Callable[[KeepingConsumer], Any]
) -> None:
    happened: list[str] = []

    def on_assign(who: Any, rows: Any) -> None:
        if not happened and [each.partition for each in rows] == [moved]:
            happened.append("assigned")
            _lose_and_rejoin(one)

    with consumer(kafka) as one, consumer(kafka) as two:
        moved = -1
        one.subscribe(["orders"], on_assign=on_assign, on_lost=lambda who, rows: happened.append("lost"))
        two.subscribe(["orders"])
        eventually(lambda: len(held(one)) == 1 == len(held(two)), step=poll_each(one, two))
        (moved,) = held(two)
        one.kept.clear()
        two.kept.clear()
        assert one.poll(DEADLINE_S) is not None
        assert data_plane(one).ready, "no record waits to be delivered"
        two.close()
        core = coordinator_of(one)
        eventually(
            lambda: len(core.assignment.target.partitions) == 2,
            "the other member's partition is assigned",
            within_s=DEADLINE_S,
        )
        while "lost" not in happened:
            if received := receive(one):
                happened.append(f"received {received}")
        assert happened == ["assigned", "lost"]


@pytest.mark.parametrize(
    "receive",
    [lambda one: one.consume(10, 0.05), lambda one: one.consume_arrow(10, timeout=0.05)],
    ids=["consume", "consume_arrow"],
)
def test_the_position_of_a_lost_ownership_is_not_committed_for_the_new_one(
    kafka: EmbeddedKafka, receive: Callable[[KeepingConsumer], Any]
) -> None:
    happened: list[str] = []

    def on_assign(who: Any, rows: Any) -> None:
        happened.append("assigned")
        if "lost" in happened:
            # on_lost and on_assign are called in one poll, which applies the plan after both.
            assert [each.offset for each in one.position([row(0), row(1)])] == [OFFSET_INVALID, OFFSET_INVALID]
            with pytest.raises(KafkaException, match="nothing to commit"):
                one.commit(asynchronous=False)
            happened.append("checked")

    # The broker keeps the former membership until its session ends.
    with consumer(kafka, session_timeout_ms=1_000, enable_auto_commit=False) as one:
        one.subscribe(["orders"], on_assign=on_assign, on_lost=lambda who, rows: happened.append("lost"))
        eventually(lambda: any(each.offset > 0 for each in one.position([row(0), row(1)])), step=lambda: receive(one))
        _lose_and_rejoin(one)
        eventually(lambda: "checked" in happened, step=lambda: receive(one))
