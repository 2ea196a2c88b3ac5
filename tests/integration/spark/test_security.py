"""A query against secured listeners: both planes get the credentials, tokens by a function of the user's included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from pyspark.errors import StreamingQueryException

from consumer_coord.spark import by_value
from consumer_coord.testing.kafka_cluster import unique_name
from consumer_coord.testing.real_kafka import free_ports
from tests.support.secured import SecuredKafka, unsecured_token
from tests.support.spark.drivers import Driver
from tests.support.spark.producing import produce
from tests.support.spark.queries import DEADLINE_S, Queries, await_end
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

RECORDS = 20


@pytest.fixture(scope="module")
def secured(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    made = SecuredKafka(kafka_libs, tmp_path_factory.mktemp("secured"))
    with made.kafka:
        yield made


@pytest.fixture
def topic(secured: SecuredKafka, group: str) -> str:
    """With records, for alice to read."""
    name = unique_name("orders")
    secured.kafka.create_topic(name, 2)
    produce(secured.kafka.bootstrap_servers, name, [{"value": b"v", "partition": number % 2} for number in range(RECORDS)])
    secured.allow("alice", ResourceType.TOPIC, name, AclOperation.READ)
    secured.allow("alice", ResourceType.GROUP, group, AclOperation.READ)
    return name


@pytest.fixture
def queries(spark: Any, secured: SecuredKafka, group: str, tmp_path: Path) -> Iterator[Queries]:
    found = Queries(spark, secured.kafka.bootstrap("SASLTLS"), group, tmp_path, secured.kafka.admin)
    try:
        yield found
    finally:
        found.stop()


def token_of_alice(config: str | None) -> tuple[str, float]:
    return unsecured_token("alice")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_query_over_tls_with_sasl(secured: SecuredKafka, queries: Queries, topic: str, mechanism: str) -> None:
    given = secured.settings("SASLTLS", mechanism)
    if mechanism == "OAUTHBEARER":
        given["oauth_cb"] = by_value(token_of_alice)
    query, rows = queries.start(topic, {f"secret.kafka.{key}": str(value) for key, value in given.items()}, now=True)
    await_end(query)
    assert [rows.offsets(number) for number in range(2)] == [list(range(RECORDS // 2))] * 2
    assert queries.committed(topic, 2) == {0: RECORDS // 2, 1: RECORDS // 2}


def test_a_wrong_password_fails_the_query_at_once_and_is_not_told(secured: SecuredKafka, queries: Queries, topic: str) -> None:
    given = {**secured.settings("SASLTLS", "SCRAM-SHA-512"), "sasl.password": "not-the-password"}
    query, _ = queries.start(topic, {f"kafka.{key}": str(value) for key, value in given.items()})
    with pytest.raises(StreamingQueryException, match=r"sasl\.password") as caught:
        await_end(query)
    assert "not-the-password" not in str(caught.value)


def test_the_password_is_told_nowhere(secured: SecuredKafka, topic: str, group: str, tmp_path: Path) -> None:
    """Plan, UI, event log, checkpoint and logs of a query that reads with it."""
    events = tmp_path / "events"
    events.mkdir()
    port = free_ports(1)[0]
    given = secured.settings("SASLTLS", "SCRAM-SHA-512")
    conf = {"spark.ui.enabled": "true", "spark.ui.port": str(port), "spark.ui.host": "127.0.0.1"}
    conf |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(), "spark.eventLog.compress": "false"}
    setup = {
        "name": "secret",
        "bootstrap_servers": secured.kafka.bootstrap("SASLTLS"),
        "group": group,
        "topic": topic,
        "checkpoint": str(tmp_path / "checkpoint"),
        "sink": str(tmp_path / "sink"),
        "master": "local[2]",
        "options": {f"kafka.{key}": str(value) for key, value in given.items()},
        "conf": conf,
        "log_level": "INFO",
        "plan": True,
    }
    driver = Driver(setup, tmp_path / "driver.log")
    try:
        driver.wait_for("progress", 300)
        eventually(lambda: (tmp_path / "sink").exists(), "its records", within_s=DEADLINE_S)
        pages = ("environment/", "SQL/", "SQL/execution/?id=0", "StreamingQuery/", "jobs/", "api/v1/applications")
        shown = {page: urlopen(f"http://127.0.0.1:{port}/{page}", timeout=90).read() for page in pages}
        plan = "".join(one["plan"] for one in driver.named("plan"))
        driver.stop()
    finally:
        driver.close()
    assert "kafka_group" in plan
    assert any(b"spark.eventLog" in text for text in shown.values())
    shown["plan"] = plan.encode()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            shown[str(file.relative_to(tmp_path))] = file.read_bytes()
    assert any(name.startswith("events/") for name in shown)
    secret = str(given["sasl.password"]).encode()
    assert [name for name, text in shown.items() if secret in text] == []
