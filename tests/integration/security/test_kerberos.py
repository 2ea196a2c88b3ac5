"""SASL GSSAPI with a real KDC and a real broker: tickets from a keytab and from a cache, for the group and for Fetch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.cli import main
from consumer_coord.errors import AuthenticationError, RequestTimedOutError
from consumer_coord.testing.kafka_cluster import unique_name
from consumer_coord.testing.real_kafka import Listener, RealKafka
from tests.support.producer import Producer
from tests.support.security.kdc import REALM, Kdc, in_realm, why_not
from tests.support.security.planes import ask, with_cluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]

#: Lifetime of a session on the second listener, in milliseconds.
SESSION_MS = 2_000
_LOGIN = "com.sun.security.auth.module.Krb5LoginModule"


@attrs.frozen
class Kerberized:
    """A broker and a KDC, and the keys of a user."""

    kafka: RealKafka
    kdc: Kdc
    alice: Path

    def settings(self, listener: str = "KERBEROS", **more: Any) -> dict[str, Any]:
        """Return a client's settings for a listener."""
        return {
            "bootstrap.servers": self.kafka.bootstrap(listener),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.keytab": str(self.alice),
            "auto.offset.reset": "earliest",
            **more,
        }


@pytest.fixture(scope="module")
def kerberized(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberized]:
    """Start a realm, and a broker in it with 20 records."""
    with Kdc(tmp_path_factory.mktemp("kdc")) as kdc:
        keytab, alice = kdc.keytab("kafka/127.0.0.1"), kdc.keytab("alice")
        login = f'{_LOGIN} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="kafka/127.0.0.1@{REALM}";'
        properties = {"sasl.kerberos.service.name": "kafka", "listener.name.reauth.connections.max.reauth.ms": str(SESSION_MS)}
        for name in ("kerberos", "reauth"):
            properties[f"listener.name.{name}.sasl.enabled.mechanisms"] = "GSSAPI"
            properties[f"listener.name.{name}.gssapi.sasl.jaas.config"] = login
        kafka = RealKafka(
            kafka_libs,
            properties=properties,
            listeners=[Listener("KERBEROS", "SASL_PLAINTEXT"), Listener("REAUTH", "SASL_PLAINTEXT")],
            jvm_arguments=("-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Djava.security.krb5.conf={kdc.config}"),
        )
        with kafka:
            kafka.create_topic("orders", partitions=2)
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
            for number in range(20):
                producer.produce("orders", b"v", partition=number % 2)
            assert producer.flush(60) == 0
            yield from (Kerberized(kafka, kdc, alice) for _ in in_realm(kdc))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("columns", [False, True])
def test_the_group_and_fetch_authenticate_with_a_keytab(columns: bool, protocol: str, kerberized: Kerberized) -> None:
    settings = kerberized.settings(**{"group.id": unique_name("kerberos"), "group.protocol": protocol})
    with GroupConsumer(settings) as consumer:
        consumer.subscribe(["orders"])
        seen = 0

        def done() -> bool:
            nonlocal seen
            seen += len(consumer.consume_arrow(timeout=0.1)) if columns else consumer.poll(0.1) is not None
            return seen == 20

        eventually(done)
    with GroupConsumer(settings) as consumer:
        assert [row.offset for row in consumer.committed(consumer.assignment() or _rows())] == [10, 10]


def _rows() -> list[Any]:
    from consumer_coord.confluent import TopicPartition

    return [TopicPartition("orders", number) for number in range(2)]


def test_the_asyncio_consumer_uses_the_tickets_of_the_cache(kerberized: Kerberized) -> None:
    kerberized.kdc.kinit("alice", kerberized.alice)
    settings = kerberized.settings(**{"group.id": unique_name("kerberos")})
    del settings["sasl.kerberos.keytab"]

    async def read() -> None:
        async with AsyncGroupConsumer({**settings, "sasl.kerberos.principal": f"alice@{REALM}"}) as consumer:
            await consumer.subscribe(["orders"])
            async with asyncio.timeout(120):
                seen = 0
                while seen < 20:
                    seen += await consumer.poll(0.5) is not None

    asyncio.run(read())


def test_a_session_is_renewed(kerberized: Kerberized) -> None:
    async def stay(cluster: Any) -> int:
        from consumer_coord.retry import Deadline

        ends, asked = time.monotonic() + 2.5 * SESSION_MS / 1000, 0
        while time.monotonic() < ends:
            await cluster.refresh(Deadline.after(30_000))
            asked += 1
            await asyncio.sleep(0.1)
        (broker,) = cluster.brokers()
        assert cluster.traffic(broker).connects <= 2, "the connection stays open"
        return asked

    assert with_cluster(kerberized.settings("REAUTH"), stay) > 10


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sasl.kerberos.service.name": "kafkaesque"}, ("kafkaesque/127.0.0.1", "not found in Kerberos database")),
        ({"sasl.kerberos.principal": f"bob@{REALM}"}, ("principal 'bob@EXAMPLE.TEST' of keytab", "klist -k")),
        ({"sasl.kerberos.keytab": None, "sasl.kerberos.principal": f"bob@{REALM}"}, ("credential cache", "run kinit")),
    ],
)
def test_wrong_credentials_are_refused_with_the_remedy(changes: Any, told: tuple[str, ...], kerberized: Kerberized) -> None:
    with pytest.raises(AuthenticationError) as refused:
        ask(kerberized.settings(**changes))
    assert all(part in str(refused.value) for part in told), refused.value


def test_a_mechanism_that_the_listener_lacks_is_named(kerberized: Kerberized) -> None:
    settings = kerberized.settings(**{"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "not a secret"})
    del settings["sasl.kerberos.keytab"]
    with pytest.raises(AuthenticationError, match="listener has enabled: GSSAPI"):
        ask(settings)


def test_a_missing_kdc_is_waited_for(kerberized: Kerberized) -> None:
    keytab = kerberized.kdc.keytab("carol")
    settings = kerberized.settings(**{"sasl.kerberos.keytab": str(keytab)})
    kerberized.kdc.stop()
    try:
        from consumer_coord.retry import Deadline

        with pytest.raises(RequestTimedOutError, match=r"no Kerberos ticket for kafka/127\.0\.0\.1 now"):
            with_cluster(settings, lambda cluster: cluster.refresh(Deadline.after(3_000)))
    finally:
        kerberized.kdc.start()
    assert ask(settings).brokers


def test_the_commands_take_the_settings(kerberized: Kerberized, capsys: pytest.CaptureFixture[str]) -> None:
    given = kerberized.settings()
    flags = [f"{name}={given[name]}" for name in ("security.protocol", "sasl.mechanism", "sasl.kerberos.keytab")]
    arguments = ["list", "--bootstrap-server", given["bootstrap.servers"], *(part for flag in flags for part in ("-X", flag))]
    assert main(arguments) == 0, capsys.readouterr().err
