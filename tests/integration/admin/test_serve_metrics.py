"""``consumer-coord serve-metrics`` on Kafka's broker: markers, and members that come and go."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.members import Client, Members, Setting, await_shared
from tests.support.processes import end, spawn
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 6


@pytest.fixture
def figures(kafka: KafkaCluster, group: str, tmp_path: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """Return ``figures()``, which asks the command for the figures of the group."""
    flags = [
        "--lag-per-replica",
        "100",
        "--replicas",
        "1..20",
        "--up-after-ms",
        "1000",
        "--down-after-ms",
        "600000",
        "--interval-ms",
        "100",
    ]
    command = ["-m", "consumer_coord", "serve-metrics", group, "--listen", "127.0.0.1:0", *flags]
    output = tmp_path / "output"
    with output.open("wb") as out:
        process = spawn([sys.executable, *command, "--bootstrap-server", kafka.bootstrap_servers], stdout=out, stderr=out)
    eventually(lambda: "http://" in output.read_text(), shows=output.read_text)
    url = f"{output.read_text().split()[0]}groups/{group}"

    def ask() -> dict[str, Any]:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            found = json.load(error)
        return found

    yield ask
    end(process)


@pytest.mark.parametrize(("protocol", "client"), [("classic", "java"), ("consumer", "confluent-kafka")])
def test_the_figure_follows_the_lag_but_not_the_rebalances_and_the_markers(
    protocol: str,
    client: Client,
    kafka: KafkaCluster,
    topic: NewTopicFactory,
    group: str,
    members: Members,
    figures: Callable[[], dict[str, Any]],
) -> None:
    assert figures()["wanted_replicas"] is None, "there is no such group yet"
    name = topic(PARTITIONS)
    settings: dict[str, Setting] = {"group.protocol": protocol, "enable.auto.commit": True, "auto.commit.interval.ms": 200}
    first = members.start(client, group, [name], config=settings)
    await_shared([first], {name: PARTITIONS})
    write_transactions(kafka, name, 30)
    first.wait_for_total(30)

    def settled() -> dict[str, Any] | None:
        found = figures()
        return found if found["held"] is None and found["lag"] == 0 else None

    idle = eventually(settled, "a lag of 0 in spite of the markers", shows=figures)
    assert idle is not None
    assert (idle["partitions_with_lag"], idle["wanted_replicas"], idle["members"]) == (0, 1, 1)

    first.command("stop_polling")
    write_transactions(kafka, name, 900)
    eventually(lambda: figures()["wanted_replicas"] == PARTITIONS, "no more replicas than partitions", shows=figures)
    first.command("start_polling")
    seen: list[dict[str, Any]] = []
    second = members.start(client, group, [name], config=settings)

    def shared() -> bool:
        seen.append(figures())
        return seen[-1]["members"] == 2 and seen[-1]["held"] is None

    eventually(shared, shows=lambda: seen[-5:])
    assert any(one["held"] is not None for one in seen), "the rebalance"
    assert {one["wanted_replicas"] for one in seen} == {PARTITIONS}
    await_shared([first, second], {name: PARTITIONS})


def write_transactions(kafka: KafkaCluster, topic: str, count: int) -> None:
    """Write records in one transaction, and then one transaction of records that is aborted."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(180)
    for finish in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, b"record", partition=number % PARTITIONS)
        assert producer.flush(180) == 0
        finish(180)
