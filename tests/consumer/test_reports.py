"""error_cb, throttle_cb and the brokers of stats_cb, which this package's own Fetch calls in librdkafka's form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent.types import Consumer, KafkaError, own_because
from consumer_coord.consumer.reports import ThrottleEvent
from consumer_coord.net.traffic import Traffic
from tests.support.consumer.embedded import DEADLINE_S, produce, row
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1,127.0.0.1:2,nosuchhost.invalid:9"
needs_confluent_kafka = pytest.mark.skipif(own_because is not None, reason="compares with confluent-kafka 2.x")


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}) as running:
        produce(running, "orders", {0: range(5)})
        yield running


@contextmanager
def reading(kind: Any, servers: str, **settings: Any) -> Iterator[Any]:
    given = {
        name.replace(".cb", "_cb"): value for name, value in ((key.replace("_", "."), one) for key, one in settings.items())
    }
    if kind is GroupConsumer:
        given["librdkafka.enable"] = False
    one = kind({"bootstrap.servers": servers, "group.id": "billing", "enable.auto.commit": False, "log_level": 0, **given})
    try:
        one.assign([row(0, 0)])
        yield one
    finally:
        one.close()


@pytest.mark.parametrize("kind", [GroupConsumer, pytest.param(Consumer, marks=needs_confluent_kafka)])
def test_each_broker_that_cannot_be_reached_is_reported_and_then_that_all_are_down(kind: Any) -> None:
    errors: list[KafkaError] = []
    expected = {
        (KafkaError._TRANSPORT, "127.0.0.1:1/bootstrap"),
        (KafkaError._TRANSPORT, "127.0.0.1:2/bootstrap"),
        (KafkaError._RESOLVE, "nosuchhost.invalid:9/bootstrap"),
        (KafkaError._ALL_BROKERS_DOWN, "3/3 brokers are down"),
    }
    with reading(kind, NOWHERE, error_cb=errors.append) as one:

        def seen() -> set[tuple[int, str]]:
            return {
                (error.code(), error.str() if "brokers are" in error.str() else error.str().partition(": ")[0])
                for error in errors
            }

        eventually(lambda: seen() >= expected, step=lambda: one.poll(0.05), shows=seen)
        if kind is GroupConsumer:
            # librdkafka may also report that one of one is down, before it has begun with the other brokers.
            assert seen() == expected
            assert [error.code() for error in errors].count(KafkaError._ALL_BROKERS_DOWN) == 1


@pytest.mark.parametrize("kind", [GroupConsumer, pytest.param(Consumer, marks=needs_confluent_kafka)])
def test_an_outage_is_reported_once_and_the_next_one_again(kind: Any, kafka: EmbeddedKafka) -> None:
    errors: list[int] = []
    with reading(
        kind,
        kafka.bootstrap_servers,
        error_cb=lambda error: errors.append(error.code()),
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=20,
    ) as one:
        found: list[Any] = []
        eventually(lambda: len(found) == 5, step=lambda: found.extend(one.consume(5, 0.05)))

        def reported() -> int:
            return errors.count(KafkaError._ALL_BROKERS_DOWN)

        for _ in range(2):
            errors.clear()
            kafka.stop_broker(0)
            eventually(lambda: reported() > 0, step=lambda: one.poll(0.05), shows=lambda: errors)
            kafka.start_broker(0)
            produce(kafka, "orders", {0: ["after an outage"]})
            found.clear()
            eventually(lambda: bool(found), step=lambda: found.extend(one.consume(5, 0.05)))
            assert KafkaError._TRANSPORT in errors
            # librdkafka also counts the connection to the bootstrap address.
            assert kind is Consumer or reported() == 1


def test_a_consumer_hears_nothing_of_brokers_of_another_cluster(kafka: EmbeddedKafka) -> None:
    """Consumers with equal settings share their connections."""
    mine: list[KafkaError] = []
    others: list[KafkaError] = []
    with (
        reading(GroupConsumer, kafka.bootstrap_servers, error_cb=mine.append) as one,
        reading(GroupConsumer, "127.0.0.1:1", error_cb=others.append) as other,
    ):

        def step() -> None:
            one.poll(0.01)
            other.poll(0.01)

        eventually(lambda: len(others) > 2, step=step)
        assert mine == []


def _broker(texts: list[str]) -> dict[str, Any]:
    brokers: dict[str, Any] = json.loads(texts[-1])["brokers"] if texts else {}
    return next((one for one in brokers.values() if one["nodeid"] == 0), {})


def test_statistics_have_the_brokers(kafka: EmbeddedKafka) -> None:
    texts: list[str] = []
    with reading(GroupConsumer, kafka.bootstrap_servers, statistics_interval_ms=20, stats_cb=texts.append) as one:
        found: list[Any] = []

        def step() -> None:
            found.extend(one.consume(5, 0.05))

        eventually(lambda: len(found) == 5 and _broker(texts).get("req", {}).get("Fetch", 0) > 1, step=step)
        eventually(lambda: _broker(texts)["rtt"]["cnt"] > 0, step=step)
        up = _broker(texts)
        assert (up["state"], up["source"], up["toppars"]) == (
            "UP",
            "learned",
            {"orders-0": {"topic": "orders", "partition": 0}},
        )
        assert up["name"] == f"{kafka.bootstrap_servers}/0"
        assert up["tx"] == up["rx"] + up["waitresp_cnt"] == sum(up["req"].values())
        assert up["txbytes"] > 20 * up["tx"]
        assert up["rxbytes"] > 5 * len("0")
        assert 0 < up["rtt"]["min"] <= up["rtt"]["p50"] <= up["rtt"]["max"] <= up["rtt"]["sum"] < DEADLINE_S * 1e6
        kafka.stop_broker(0)
        eventually(lambda: _broker(texts)["state"] == "DOWN", step=step)
        assert _broker(texts)["disconnects"] == _broker(texts)["connects"]
        eventually(lambda: _broker(texts)["txerrs"] > 0, step=step)


@needs_confluent_kafka
def test_statistics_have_librdkafkas_fields(kafka: EmbeddedKafka) -> None:
    """A program may read each field of a broker that STATISTICS.md lists, but for counters of librdkafka's own threads."""

    def texts_of(kind: Any) -> list[str]:
        texts: list[str] = []
        with reading(kind, kafka.bootstrap_servers, statistics_interval_ms=50, stats_cb=texts.append) as one:
            eventually(lambda: _broker(texts).get("req", {}).get("Fetch", 0) > 0, step=lambda: one.poll(0.05))
        return texts

    librdkafkas, ours = texts_of(Consumer), texts_of(GroupConsumer)
    of_threads = {"outbuf_cnt", "outbuf_msg_cnt", "waitresp_msg_cnt", "txretries", "txidle", "rxerrs", "rxcorriderrs"}
    of_threads |= {"rxpartial", "rxidle", "zbuf_grow", "buf_grow", "wakeups", "int_latency", "outbuf_latency"}
    assert _broker(librdkafkas).keys() - _broker(ours).keys() == of_threads
    # librdkafka also has partitions that it does not read.
    assert _broker(librdkafkas)["toppars"].items() >= _broker(ours)["toppars"].items()
    assert _broker(librdkafkas)["rtt"].keys() - _broker(ours)["rtt"].keys() == {"stddev", "outofrange", "hdrsize"}


def test_throttling_is_reported_until_it_ends() -> None:
    told: list[int] = []

    class Told:
        def throttled(self, broker: Any, throttle_ms: int) -> None:
            told.append(throttle_ms)

    listener: Any = Told()
    traffic = Traffic()
    traffic.listeners[listener] = None

    async def main() -> None:
        for throttle_ms in (0, 250, 100, 0, 0):
            traffic.throttle(throttle_ms)

    asyncio.run(main())
    assert told == [250, 100, 0]
    assert [throttle_ms for _, throttle_ms in traffic.throttles] == [250, 100, 0]


@needs_confluent_kafka
def test_a_throttle_event_equals_confluent_kafkas() -> None:
    from confluent_kafka import ThrottleEvent as Theirs

    ours, theirs = ThrottleEvent("127.0.0.1:9092", 1, 0.25), Theirs("127.0.0.1:9092", 1, 0.25)
    assert str(ours) == str(theirs)
    assert {name: getattr(ours, name) for name in vars(theirs)} == vars(theirs)
