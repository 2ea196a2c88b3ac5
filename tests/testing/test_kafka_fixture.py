"""A user's tests, unchanged, on the embedded Kafka and on Apache Kafka: the fixture ``kafka``."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.errors import ConfigurationError
from consumer_coord.testing import Acl, KafkaOptions, UnsupportedError, jars
from consumer_coord.testing.under_test import open_kafka
from tests.support.jar_sets import KAFKA_TOOLS

VERSION = "4.4.0"

#: What a user writes.
PROGRAM = """
import pytest
from confluent_kafka import Producer

from consumer_coord import GroupConsumer


def read(kafka, topic, count, **config):
    config = {**kafka.config(), "group.id": kafka.group(), "auto.offset.reset": "earliest", **config}
    found = []
    with GroupConsumer(config) as consumer:
        consumer.subscribe([topic])
        while len(found) < count:
            found += [message.value() for message in consumer.consume(count - len(found), 1.0)]
        consumer.commit(asynchronous=False)
    return found


def write(kafka, topic, *values, **config):
    producer = Producer({**kafka.config(), **config})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def test_records_come_back(kafka, kafka_topic):
    topic = kafka_topic(partitions=2)
    write(kafka, topic, b"a", b"b")
    assert sorted(read(kafka, topic, 2)) == [b"a", b"b"]


def test_only_committed_transactions_are_read(kafka):
    topic = kafka.topic()
    producer = Producer({**kafka.config(), "transactional.id": kafka.group("writer")})
    producer.init_transactions(60)
    for value, ends in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(60)
        ends(60)
    assert read(kafka, topic, 1) == [b"committed"]
"""

FAILURES = """
import threading

import pytest

from test_program import read, write


@pytest.fixture(scope="session")
def kafka_options():
    return {"brokers": 3, "topics": {"orders": 3}}


WAYS = [("kill", "restart"), ("stop", "restart"), ("suspend", "resume"), ("partition", "heal")]


@pytest.mark.parametrize(("breaks", "mends"), WAYS)
def test_a_broker_fails_and_comes_back(kafka, breaks, mends):
    assert len(kafka.brokers) == 3
    topic = kafka.topic(partitions=3)
    write(kafka, topic, b"before")
    broker = kafka.brokers[1]
    getattr(kafka, breaks)(broker)
    timer = threading.Timer(2.0, getattr(kafka, mends), [broker])
    timer.start()
    try:
        write(kafka, topic, *[b"during"] * 9, **{"message.timeout.ms": 90_000})
        assert len(read(kafka, topic, 10)) == 10
    finally:
        timer.join()
"""

SECURED = """
import pytest
from confluent_kafka import KafkaException

from consumer_coord import GroupConsumer
from consumer_coord.testing import Acl
from test_program import read, write


@pytest.fixture(scope="session")
def kafka_options():
    return {
        "tls": True,
        "sasl": "SCRAM-SHA-512",
        "users": ["alice", "bob"],
        "topics": {"orders": 1},
        "acls": [Acl("alice", "ALL", "TOPIC", "orders"), Acl("alice", "READ", "GROUP", "*"), Acl("bob", "READ", "GROUP", "*")],
    }


def test_alice_may_read_and_bob_may_not(kafka):
    assert kafka.config()["security.protocol"] == "SASL_SSL"
    write(kafka, "orders", b"secret")
    assert read(kafka, "orders", 1) == [b"secret"]
    config = {**kafka.config("bob"), "group.id": "of-bob", "auto.offset.reset": "earliest"}
    with GroupConsumer(config) as consumer:
        consumer.subscribe(["orders"])
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED|not authorized|authoriz"):
            for _ in range(60):
                message = consumer.poll(1.0)
                if message is not None and message.error():
                    raise KafkaException(message.error())
"""


#: Two more tests, so that each of four workers has one; no worker sees what another one wrote.
XDIST = """
import pytest

from test_program import read, test_only_committed_transactions_are_read, test_records_come_back, write


@pytest.mark.parametrize("worker", range(2))
def test_only_records_of_this_worker_are_read(kafka, worker, worker_id):
    kafka.create_topic("orders")
    write(kafka, "orders", worker_id.encode())
    assert read(kafka, "orders", 1) == [worker_id.encode()]
    kafka.delete_topic("orders")
"""


def run(pytester: pytest.Pytester, name: str, *arguments: str) -> pytest.RunResult:
    """Run pytest in a project of its own, in a process of its own."""
    pytester.makepyfile(test_program=PROGRAM)
    programs = {"test_failures": FAILURES, "test_secured": SECURED, "test_xdist": XDIST}
    pytester.makepyfile(**{name: programs.get(name, PROGRAM)})
    return pytester.runpytest_subprocess(f"{name}.py", "-p", "no:cacheprovider", "-W", "ignore", *arguments, timeout=600)


def test_the_embedded_kafka_is_the_default(pytester: pytest.Pytester) -> None:
    run(pytester, "test_program").assert_outcomes(passed=2)
    run(pytester, "test_failures").assert_outcomes(passed=4)
    result = run(pytester, "test_secured", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*the embedded Kafka has no TLS, SASL and ACLs: run this test with --kafka 4.4.0*"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("test_program", 2), ("test_failures", 4), ("test_secured", 1)])
def test_the_same_tests_pass_on_apache_kafka(pytester: pytest.Pytester, kafka_libs: Path, name: str, count: int) -> None:
    run(pytester, name, "--kafka", VERSION).assert_outcomes(passed=count)


@pytest.mark.slow
def test_workers_of_xdist_have_a_cluster_each(pytester: pytest.Pytester) -> None:
    run(pytester, "test_xdist", "-n", "4").assert_outcomes(passed=4)


@pytest.mark.slow
def test_a_cluster_of_the_users_is_left_as_it_was(pytester: pytest.Pytester, kafka_libs: Path) -> None:
    with open_kafka(VERSION, KafkaOptions(topics={"theirs": 1})) as theirs:
        run(pytester, "test_program", "--kafka", theirs.bootstrap_servers).assert_outcomes(passed=2)
        result = run(pytester, "test_failures", "--kafka", theirs.bootstrap_servers, "-rs")
        assert result.ret != 0, "there is one broker, and the test needs three"
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(theirs.config())
        assert {name for name in admin.list_topics(timeout=60).topics if not name.startswith("__")} == {"theirs"}
        assert admin.list_consumer_groups(request_timeout=60).result().valid == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--kafka", "1.0"], "--kafka 1.0: not embedded, host:port, or one of 4.4.0*--kafka-home*"),
        (["--kafka", "4.4.0", "--kafka-home", "/nowhere"], "--kafka-home /nowhere: there is no libs/kafka-clients-4.4.0.jar"),
        (["--kafka", "127.0.0.1:1"], "--kafka 127.0.0.1:1: no broker answers there*"),
    ],
)
def test_what_cannot_be_had_is_one_line(pytester: pytest.Pytester, arguments: list[str], line: str) -> None:
    result = run(pytester, "test_program", *arguments, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines([f"*{line}*"])


def test_without_java_there_is_one_line(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = run(pytester, "test_program", "--kafka", VERSION, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*Java >= 17 is needed for a real Kafka broker*"])


def test_an_unpacked_kafka_is_used(kafka_libs: Path, tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    for jar in kafka_libs.glob("*.jar"):
        os.symlink(jar, tmp_path / "libs" / jar.name)
    with open_kafka(VERSION, KafkaOptions(), tmp_path) as kafka:
        assert kafka.brokers == (1,)
    shutil.rmtree(tmp_path / "libs")


@pytest.mark.slow
def test_maven_fetches_the_same_jars_as_ivy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pinned checksums decide; without either, one line says what to install."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed")
    monkeypatch.setenv("CONSUMER_COORD_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pyspark", None)
    libs = jars.ensure_jars(KAFKA_TOOLS)
    assert {jar.name for jar in libs.glob("*.jar")} == {"kafka-tools-4.4.0.jar", "jackson-dataformat-csv-2.21.7.jar"}
    monkeypatch.setenv("CONSUMER_COORD_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mvn" else "/usr/bin/java")
    with pytest.raises(jars.UnavailableError, match=r"install PySpark .* or Maven"):
        jars.ensure_jars(KAFKA_TOOLS)


def test_no_broker_of_a_cluster_of_the_users_is_stopped() -> None:
    with EmbeddedKafka(topics={"theirs": 1}) as theirs, open_kafka(theirs.bootstrap_servers, KafkaOptions()) as kafka:
        for call in (kafka.stop, kafka.kill, kafka.restart, kafka.suspend, kafka.resume, kafka.partition, kafka.heal):
            with pytest.raises(pytest.skip.Exception, match="a broker of your cluster is not stopped"):
                call(kafka.brokers[0])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sasl": "GSSAPI"}, "sasl must be one of"),
        ({"users": []}, "at least one name"),
        ({"acls": [Acl("alice", "READ", "TOPIC", "orders")]}, "set sasl"),
    ],
)
def test_wrong_options(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        KafkaOptions(**options)  # type: ignore[arg-type]


def test_the_embedded_kafka_has_no_security() -> None:
    with pytest.raises(UnsupportedError, match="--kafka"):
        open_kafka("embedded", KafkaOptions(tls=True))
