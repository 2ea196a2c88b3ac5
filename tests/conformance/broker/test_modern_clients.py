"""librdkafka and Java with ``group.protocol=consumer`` on the embedded Kafka, unchanged, also together with classic members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from consumer_coord.broker import EmbeddedKafka
from tests.conformance.broker.test_real_clients import RECORDS, TOPICS, write
from tests.support.broker.client_versions import Recorder, check_documented
from tests.support.members import Client, Member, Members, await_shared
from tests.support.waiting import eventually

MODERN = {"group.protocol": "consumer"}
NAMES = {"confluent-kafka": "confluent-kafka 2.16", "java": "Java 4.4.0"}
#: Both clients that speak the protocol; Java is there where Kafka's jars are.
CLIENTS = ["confluent-kafka", pytest.param("java", marks=pytest.mark.kafka)]


@pytest.fixture
def modern() -> Iterator[EmbeddedKafka]:
    """Three embedded brokers that want heartbeats often."""
    config = {
        "group.consumer.heartbeat.interval.ms": 300,
        "group.consumer.session.timeout.ms": 6_000,
        "group.consumer.assignment.interval.ms": 0,
    }
    with EmbeddedKafka(TOPICS, brokers=3, config=config) as kafka:
        yield kafka


def total(members: Sequence[Member]) -> int:
    """Return the number of records that all members have read."""
    return sum(one.total for one in members)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_groups_of_each_client(modern: EmbeddedKafka, members: Members, client: Client) -> None:
    recorder = Recorder(modern)
    servers = modern.bootstrap_servers
    first = members.start(client, "group", ["orders"], config=MODERN, bootstrap_servers=servers)
    await_shared([first], TOPICS)
    write(modern)
    first.wait_for_total(RECORDS)
    first.command("commit")
    # By a regular expression that the broker resolves (Java: a pattern of Java's own, which the client resolves).
    second = members.start(client, "group", pattern="^ord.*", config=MODERN, bootstrap_servers=servers)
    third = members.start(client, "group", ["orders"], config=MODERN, bootstrap_servers=servers, instance_id="third")
    # Two for each: with two, one and three, another partition would still move, and its new owner read it again.
    await_shared([first, second, third], TOPICS, at_least=2)
    write(modern)
    first.wait_until(lambda: total([first, second, third]) >= 2 * RECORDS, "all records")
    assert total([first, second, third]) == 2 * RECORDS, "each record once: nothing moved without a commit"
    for member in (second, third, first):
        member.command("commit")
        member.leave()
    eventually(lambda: modern.group_state("group") in ("Empty", "Stable"), "the end of the group")
    check_documented(NAMES[client], {use for use in recorder.uses if use[0] not in ("Produce", "InitProducerId")})


@pytest.mark.kafka
def test_a_group_of_both_clients_and_both_protocols(modern: EmbeddedKafka, members: Members) -> None:
    servers = modern.bootstrap_servers
    classic: list[Client] = ["java", "confluent-kafka"]
    started = [members.start(one, "mixed", ["orders"], bootstrap_servers=servers) for one in classic]
    await_shared(started, TOPICS)
    started += [members.start(one, "mixed", ["orders"], config=MODERN, bootstrap_servers=servers) for one in classic]
    await_shared(started, TOPICS)
    write(modern)
    started[0].wait_until(lambda: total(started) >= RECORDS, "all records")
    for member in started:
        member.command("commit")
    # The members of the consumer protocol leave: the group is classic again, and continues.
    for member in started[2:]:
        member.leave()
    await_shared(started[:2], TOPICS)
    write(modern)
    started[0].wait_until(lambda: total(started) >= 2 * RECORDS, "all records")


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_groups_survive_their_coordinator(modern: EmbeddedKafka, members: Members, client: Client) -> None:
    servers = modern.bootstrap_servers
    started = [members.start(client, "group", ["orders"], config=MODERN, bootstrap_servers=servers) for _ in range(2)]
    await_shared(started, TOPICS)
    before = modern.coordinator_id("group")
    assert before is not None
    modern.stop_broker(before)
    write(modern)
    started[0].wait_until(lambda: total(started) >= RECORDS, "all records")
    for member in started:
        member.command("commit")
    await_shared(started, TOPICS)
    assert modern.group_state("group") == "Stable"
