"""Members that call ``process``: histories keep the rules of handlers, and a simulated producer that of confluent-kafka's."""

from __future__ import annotations

import asyncio

import pytest

from consumer_coord.simulation.drawing import draw_scenario, with_process, with_protocol
from consumer_coord.simulation.handlers import LETTERS, LETTERS_PRODUCER, HandlerRules
from consumer_coord.simulation.play import play
from consumer_coord.simulation.producer import SimulatedProducer
from tests.support.simulation.small_cluster import SmallCluster, simulated


@pytest.mark.parametrize(("order", "protocol"), [("key", "classic"), ("partition", "consumer"), ("none", "classic")])
def test_without_faults_every_record_is_handled(order: str, protocol: str) -> None:
    outcome = play(with_process(with_protocol(draw_scenario(7, faults=0), protocol), order))
    assert outcome.violation is None, outcome.history.tail(60)
    assert outcome.figures.handled > 100


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (10, 20))])
def test_histories_of_handlers_with_faults_keep_every_rule(first: int) -> None:
    for seed in range(first, first + (10 if first else 6)):
        outcome = play(with_process(with_protocol(draw_scenario(seed), "any")))
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.history.tail(60)}"
        assert outcome.figures.handled > 0


def test_without_a_switch_nothing_is_processed() -> None:
    assert not any(spec.process for seed in range(50) for spec in draw_scenario(seed).members)
    orders = {with_process(draw_scenario(seed)).members[0].process for seed in range(50)}
    assert orders == {"key", "partition", "none"}


def _letters(small: SmallCluster) -> int:
    """Return how many records the topic of letters has."""
    return small.log(LETTERS).end_offset


async def _until_known(producer: SimulatedProducer, outcomes: list[object], count: int) -> None:
    async with asyncio.timeout(60):
        while len(outcomes) < count:
            await asyncio.sleep(0.1)
            producer.poll(0)


@simulated
async def test_a_lost_response_does_not_double_a_record() -> None:
    rules = HandlerRules("key", lambda _: None)
    small = SmallCluster(rules=rules)
    process = small.process("client")
    outcomes: list[object] = []

    async def program() -> None:
        client = small.client(process)
        producer = SimulatedProducer(LETTERS_PRODUCER, client, topics=(LETTERS,))
        producer.produce(LETTERS, b"first", on_delivery=lambda error, _: outcomes.append(error))
        await _until_known(producer, outcomes, 1)
        # The broker appends the record, and its response is held back until the connection breaks.
        host = small.cluster.kafka.nodes[0].host
        small.network.block(host, "client")
        producer.produce(
            LETTERS,
            b"second",
            headers=[("why", "text"), ("none", None)],
            on_delivery=lambda error, _: outcomes.append(error),
        )
        await asyncio.sleep(1.0)
        assert _letters(small) == 2
        assert producer.flush() == 1
        small.network.disconnect("client")
        small.network.unblock(host, "client")
        await _until_known(producer, outcomes, 2)
        assert outcomes == [None, None]
        assert _letters(small) == 2
        assert rules.letters == {b"first", b"second"}
        await producer.close()
        await client.close()

    await small.run(process, program())
    small.close()


@simulated
async def test_a_broker_that_is_down_too_long_and_a_full_queue_are_errors() -> None:
    small = SmallCluster(rules=HandlerRules("key", lambda _: None))
    process = small.process("client")
    outcomes: list[object] = []

    async def program() -> None:
        client = small.client(process)
        producer = SimulatedProducer(LETTERS_PRODUCER, client, topics=(LETTERS,))
        small.cluster.stop_broker(0)
        waiting = 20
        for number in range(waiting):
            producer.produce(LETTERS, b"%d" % number, partition=0, on_delivery=lambda error, _: outcomes.append(error))
        with pytest.raises(BufferError):
            producer.produce(LETTERS, b"too many")
        await asyncio.sleep(30.0)
        assert producer.poll(0) == 5, "one batch has an outcome"
        assert all(error is not None for error in outcomes)
        small.cluster.start_broker(0)
        await _until_known(producer, outcomes, waiting)
        assert _letters(small) == sum(error is None for error in outcomes)
        await producer.close()
        await client.close()

    await small.run(process, program())
    small.close()
