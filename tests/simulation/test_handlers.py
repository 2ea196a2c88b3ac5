"""Members that call ``process``: histories keep the rules of handlers, and a simulated producer that of confluent-kafka's."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.environment import Environment
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.simulation import loop as virtual
from consumer_coord.simulation.brokers import SimulatedCluster
from consumer_coord.simulation.consumer import Inline
from consumer_coord.simulation.drawing import draw_scenario, with_process, with_protocol
from consumer_coord.simulation.handlers import LETTERS, HandlerRules
from consumer_coord.simulation.network import NetworkConfig, SimulatedNetwork
from consumer_coord.simulation.play import play
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.producer import SimulatedProducer


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


class Broker:
    """A simulated broker with the topic of letters, and a process with a client."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual.VirtualTimeLoop)
        self.network = SimulatedNetwork(loop, Random(1), NetworkConfig())
        self.rules = HandlerRules("key", lambda _: None)
        self.cluster = SimulatedCluster(
            loop, self.network, Random(2), config=BrokerConfig(), brokers=1, topics={}, handlers=self.rules
        )
        self.cluster.start()
        self.process = Process.on(loop, "client")
        environment = Environment(self.network.connector(self.process), Random(3), lambda: 0, Inline())
        self.client = ClusterClient(ClientConfig(bootstrap_servers=self.cluster.bootstrap), environment)

    def letters(self) -> int:
        """Return how many records the topic has."""
        found = self.cluster.kafka.topics.partition(LETTERS, 0)
        assert found is not None
        return found.log.end_offset


async def _until_known(producer: SimulatedProducer, outcomes: list[object], count: int) -> None:
    async with asyncio.timeout(60):
        while len(outcomes) < count:
            await asyncio.sleep(0.1)
            producer.poll(0)


def test_a_lost_response_does_not_double_a_record() -> None:
    async def main() -> None:
        broker = Broker()
        outcomes: list[object] = []

        async def program() -> None:
            producer = SimulatedProducer(broker.client, LETTERS)
            producer.produce(LETTERS, b"first", on_delivery=lambda error, _: outcomes.append(error))
            await _until_known(producer, outcomes, 1)
            # The broker appends the record, and its response is held back until the connection breaks.
            host = broker.cluster.kafka.nodes[0].host
            broker.network.block(host, "client")
            producer.produce(
                LETTERS,
                b"second",
                headers=[("why", "text"), ("none", None)],
                on_delivery=lambda error, _: outcomes.append(error),
            )
            await asyncio.sleep(1.0)
            assert broker.letters() == 2
            assert producer.flush() == 1
            broker.network.disconnect("client")
            broker.network.unblock(host, "client")
            await _until_known(producer, outcomes, 2)
            assert outcomes == [None, None]
            assert broker.letters() == 2
            assert broker.rules.letters == {b"first", b"second"}
            await producer.close()
            await broker.client.close()

        await asyncio.wait({task := broker.process.create_task(program())})
        task.result()
        broker.cluster.close()

    virtual.run(main(), max_time_s=600)


def test_a_broker_that_is_down_too_long_and_a_full_queue_are_errors() -> None:
    async def main() -> None:
        broker = Broker()
        outcomes: list[object] = []

        async def program() -> None:
            producer = SimulatedProducer(broker.client, LETTERS)
            broker.cluster.stop_broker(0)
            waiting = 20
            for number in range(waiting):
                producer.produce(LETTERS, b"%d" % number, on_delivery=lambda error, _: outcomes.append(error))
            with pytest.raises(BufferError):
                producer.produce(LETTERS, b"too many")
            await asyncio.sleep(30.0)
            assert producer.poll(0) == 5, "one batch has an outcome"
            assert all(error is not None for error in outcomes)
            broker.cluster.start_broker(0)
            await _until_known(producer, outcomes, waiting)
            assert broker.letters() == sum(error is None for error in outcomes)
            await producer.close()
            await broker.client.close()

        await asyncio.wait({task := broker.process.create_task(program())})
        task.result()
        broker.cluster.close()

    virtual.run(main(), max_time_s=600)
