"""What consumers, members, fetchers and connections say of themselves, in a debugger or a log."""

from __future__ import annotations

import asyncio
import re

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.config import parse
from consumer_coord.fetch import Fetcher, FetchStart
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.topic_partition import TopicPartition
from tests.support.waiting import eventually, eventually_async


def test_a_consumer_says_which_member_it_is() -> None:
    with EmbeddedKafka(topics={"orders": 3}) as kafka:
        with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"}) as one:
            assert repr(one) == "<GroupConsumer of group 'billing': not a member yet, 0 partitions>"
            one.subscribe(["orders"])
            eventually(lambda: len(one.assignment()) == 3, step=lambda: one.poll(0.05))
            said = r"<GroupConsumer of group 'billing': member .+, generation 1, 3 partitions(, rebalancing)?>"
            assert re.fullmatch(said, repr(one))
        assert repr(one).endswith(", 0 partitions, closed>")


def test_a_consumer_for_asyncio_says_so_too() -> None:
    async def main(kafka: EmbeddedKafka) -> None:
        one = AsyncGroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"})
        assert repr(one) == "<AsyncGroupConsumer of group 'billing': not used yet>"
        await one.subscribe(["orders"])

        async def poll() -> None:
            await one.poll(0.05)

        await eventually_async(one.assignment, step=poll)
        said = r"<AsyncGroupConsumer of group 'billing': member .+, generation 1, 1 partition(, rebalancing)?>"
        assert re.fullmatch(said, repr(one))
        await one.close()
        assert repr(one).endswith(", 0 partitions, closed>")

    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        asyncio.run(main(kafka))


def test_a_fetcher_and_a_connection_say_what_they_do() -> None:
    async def main(kafka: EmbeddedKafka) -> None:
        cluster = cluster_client(parse({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"}).client)
        fetcher = Fetcher(cluster)
        assert repr(fetcher) == "<Fetcher of 0 partitions, 0 paused, from 0 brokers>"
        fetcher.assign({TopicPartition("orders", 0): FetchStart(serial=1, offset=0)})
        await eventually_async(lambda: "from 1 brokers" in repr(fetcher))
        fetcher.pause([TopicPartition("orders", 0)])
        assert repr(fetcher) == "<Fetcher of 1 partitions, 1 paused, from 1 brokers>"
        [broker] = cluster.metadata.brokers.values()
        connection = cluster.open_connection(broker)
        assert re.fullmatch(rf"<Connection to {re.escape(broker.address)}: \d in flight>", repr(connection))
        await fetcher.close()
        assert repr(fetcher).endswith(", closed>")
        await cluster.close()
        assert repr(connection) == f"<Connection to {broker.address}: closed>"

    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        asyncio.run(main(kafka))
