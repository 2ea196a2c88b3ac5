"""``consumer-coord serve-metrics`` on the embedded Kafka: its answers, and what it does without answers."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from consumer_coord import GroupConsumer
from consumer_coord.admin.listening import until_stopped
from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.cli import main
from consumer_coord.config import parse
from consumer_coord.lag.partition_lag import LagPolicy
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.scaling.flags import add_limits, limits_of
from consumer_coord.scaling.scaler import Scaler
from consumer_coord.scaling.server import application
from consumer_coord.scaling.wanted_replicas import Limits
from consumer_coord.testing.processes import end
from tests.support.waiting import eventually

LIMITS = Limits(lag_per_replica=10, least=1, most=20, up_after_s=0, down_after_s=3600)


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers; each leads two of four partitions, with fifteen records each."""
    with EmbeddedKafka({"t": 4}, brokers=2) as embedded:
        produce(embedded, 15)
        yield embedded


def produce(kafka: EmbeddedKafka, count: int, partitions: int = 4) -> None:
    """Write records to the first partitions, as of a minute ago."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(partitions * count):
        producer.produce("t", b"v", partition=number % partitions, timestamp=int((time.time() - 60) * 1000))
    assert producer.flush(60) == 0


def begin(kafka: EmbeddedKafka, group: str = "g", to: str = "--to-earliest") -> None:
    """Let a group without members have commits."""
    flags = ["--topic", "t", "--execute", "--bootstrap-server", kafka.bootstrap_servers]
    assert main(["reset", group, to, *flags]) == 0


Ask = Callable[..., Awaitable[httpx.Response]]


@asynccontextmanager
async def served(kafka: EmbeddedKafka, *groups: str, limits: Limits = LIMITS) -> AsyncIterator[tuple[Scaler, Ask]]:
    """Yield a scaler that has read the groups once, and a function that asks its application."""
    config = parse({"bootstrap.servers": kafka.bootstrap_servers}, needs_group=False).client
    cluster = cluster_client(config)
    scaler = Scaler(cluster, groups, LagPolicy(seconds=True), limits, interval_s=0.05, timeout_ms=1000)
    app = application(scaler, asyncio.get_running_loop().time, loopback=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        try:
            await scaler.first()
            yield scaler, client.get
        finally:
            await cluster.close()


async def read_again(scaler: Scaler) -> None:
    """Let the scaler read once more."""
    before = scaler.figures
    running = asyncio.ensure_future(scaler.run())
    try:
        while scaler.figures is before:
            await asyncio.wait({running}, timeout=0.02)
            assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait({running})


def metrics(text: str) -> dict[tuple[str, ...], float]:
    """Parse Prometheus' text format: (name, values of the labels) -> value."""
    return {
        (one.name, *one.labels.values()): one.value for family in text_string_to_metric_families(text) for one in family.samples
    }


def test_the_lag_and_the_wanted_replicas_of_a_group(kafka: EmbeddedKafka) -> None:
    begin(kafka)

    async def check() -> None:
        async with served(kafka, "g") as (_, get):
            answer = await get("/groups/g")
            body = answer.json()
            assert answer.status_code == 200
            assert body.pop("lag_seconds") >= 60
            assert 0 <= body.pop("age_seconds") < 600
            assert body == {
                "group": "g",
                "state": "Empty",
                "members": 0,
                "partitions": 4,
                "lag": 60,
                "partitions_with_lag": 4,
                "partitions_unknown": 0,
                "wanted_replicas": 4,
                "held": None,
            }
            told = await get("/metrics")
            assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
            found = metrics(told.text)
            assert found["kafka_group_lag_seconds", "g", "t"] >= 60
            assert {name: value for name, value in found.items() if "seconds" not in name[0]} == {
                ("kafka_group_wanted_replicas", "g"): 4,
                ("kafka_group_wanted_replicas_held", "g"): 0,
                ("kafka_group_members", "g"): 0,
                ("kafka_group_lag_records", "g", "t"): 60,
                ("kafka_group_partitions_with_lag", "g"): 4,
                ("kafka_group_partitions_unknown", "g"): 0,
            }

    asyncio.run(check())


def test_transaction_markers_are_no_lag(kafka: EmbeddedKafka) -> None:
    begin(kafka, to="--to-latest")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "x"})
    producer.init_transactions(60)
    for finish in (producer.abort_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(40):
            producer.produce("t", b"v", partition=number % 4)
        producer.flush(60)
        finish(60)

    async def check() -> None:
        async with served(kafka, "g", limits=Limits(lag_per_replica=10, least=0)) as (_, get):
            body = (await get("/groups/g")).json()
            assert (body["lag"], body["partitions_with_lag"], body["wanted_replicas"]) == (0, 0, 0)

    asyncio.run(check())


def test_a_silent_coordinator_holds_the_figure_and_no_answer_is_no_figure(kafka: EmbeddedKafka) -> None:
    begin(kafka)

    async def check() -> None:
        async with served(kafka, "g", "never-there", "a/b") as (scaler, get):
            assert (await get("/groups/never-there")).status_code == 503
            assert (await get("/groups/a/b")).json()["wanted_replicas"] is None
            assert (await get("/groups/other")).status_code == 404
            found = metrics((await get("/metrics")).text)
            assert [name for name, group, *_ in found if group == "never-there"] == ["kafka_group_wanted_replicas_held"]
            kafka.add_fault("ConsumerGroupDescribe", Fault(error_code=15), times=10_000)
            kafka.add_fault("DescribeGroups", Fault(error_code=15), times=10_000)
            await read_again(scaler)
            answer = await get("/groups/g")
            body = answer.json()
            assert (answer.status_code, body["wanted_replicas"], body["lag"]) == (200, 4, None)
            assert "COORDINATOR_NOT_AVAILABLE" in body["held"]
            found = metrics((await get("/metrics")).text)
            assert found["kafka_group_wanted_replicas", "g"] == 4
            assert found["kafka_group_wanted_replicas_held", "g"] == 1
            assert ("kafka_group_lag_records", "g", "t") not in found
            kafka.clear_faults()
            await read_again(scaler)
            assert (await get("/groups/g")).json()["held"] is None

    asyncio.run(check())


def test_an_ill_leader_lowers_nothing(kafka: EmbeddedKafka) -> None:
    """Only the partitions of the other leader are known, and they need fewer replicas."""
    begin(kafka)
    limits = Limits(lag_per_replica=10, up_after_s=0, down_after_s=0)

    async def check() -> None:
        async with served(kafka, "g", limits=limits) as (scaler, get):
            kafka.add_fault("ListOffsets", Fault(error_code=6), times=10_000, broker_id=kafka.brokers[1])
            await read_again(scaler)
            body = (await get("/groups/g")).json()
            assert (body["wanted_replicas"], body["partitions_with_lag"], body["partitions_unknown"]) == (4, 2, 2)
            assert body["held"] == "the lag of 2 partitions is unknown"
            assert (body["lag"], body["lag_seconds"]) == (None, None)
            found = metrics((await get("/metrics")).text)
            assert found["kafka_group_partitions_unknown", "g"] == 2
            assert ("kafka_group_lag_records", "g", "t") not in found
            kafka.clear_faults()

    asyncio.run(check())


def test_a_change_of_the_members_holds_the_figure_once(kafka: EmbeddedKafka) -> None:
    """The group is stable in both readings, but has rebalanced between them."""
    begin(kafka)
    limits = Limits(lag_per_replica=10, up_after_s=0, down_after_s=0)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "enable.auto.commit": False}

    async def check() -> None:
        async with served(kafka, "g", limits=limits) as (scaler, get):
            with GroupConsumer(settings) as consumer:
                consumer.subscribe(["t"])
                eventually(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 4)
                begun = (await get("/groups/g")).json()
                produce(kafka, 100, partitions=1)
                await read_again(scaler)
                held = (await get("/groups/g")).json()
                assert (begun["state"], held["state"], held["members"]) == ("Empty", "Stable", 1)
                assert held["held"] == "the group rebalances"
                await read_again(scaler)
                assert (await get("/groups/g")).json()["held"] is None

    asyncio.run(check())


def test_the_flags_of_the_formula() -> None:
    parser = argparse.ArgumentParser()
    add_limits(parser.add_argument_group())
    assert limits_of(vars(parser.parse_args([]))) == Limits(lag_per_replica=1000)
    flags = "--lag-per-replica 5 --replicas 0..3 --up-after-ms 1000 --down-after-ms 2500 --members-per-replica 4"
    expected = Limits(lag_per_replica=5, least=0, most=3, up_after_s=1, down_after_s=2.5, members_per_replica=4)
    assert limits_of(vars(parser.parse_args(flags.split()))) == expected


@pytest.mark.parametrize("bounds", ["3", "3..2", "a..b", "0..0", "-1..2"])
def test_bounds_that_make_no_sense(bounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve-metrics", "g", "--bootstrap-server", "localhost:1", "--replicas", bounds])
    assert "LEAST..MOST" in capsys.readouterr().err or bounds.startswith("-")


@pytest.mark.slow
def test_the_command_serves_until_sigterm(kafka: EmbeddedKafka) -> None:
    begin(kafka)
    flags = ["--bootstrap-server", kafka.bootstrap_servers, "--listen", "127.0.0.1:0", "--lag-per-replica", "20"]
    process = subprocess.Popen([sys.executable, "-m", "consumer_coord", "serve-metrics", "g", *flags], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        assert httpx.get(f"{url}ready", timeout=60).status_code == 200
        assert httpx.get(f"{url}groups/g", timeout=60).json()["wanted_replicas"] == 3
        assert httpx.get(f"{url}metrics", timeout=60, headers={"Host": "evil.example"}).status_code == 421
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        end(process)
        process.stdout.close()


def test_an_address_that_makes_no_sense_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-metrics", "g", "--bootstrap-server", "localhost:1", "--listen", "x"]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


def test_an_address_in_use_ends_the_command(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        flags = ["--listen", f"127.0.0.1:{used.getsockname()[1]}", "--bootstrap-server", kafka.bootstrap_servers]
        assert main(["serve-metrics", "g", *flags]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_a_scaler_that_fails_ends_the_command(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the figure would never change again, and nobody would know."""

    async def fail(_: Scaler) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Scaler, "run", fail)
    with pytest.raises(RuntimeError, match="planted"):
        main(["serve-metrics", "g", "--listen", "127.0.0.1:0", "--bootstrap-server", kafka.bootstrap_servers])


def test_the_wait_for_a_signal_ends_with_its_duration() -> None:
    async def check() -> None:
        with until_stopped(0.001) as stop:
            await stop.wait()

    asyncio.run(check())
