"""A consumer with both planes on secured listeners: right settings read, wrong ones end it at once, and say which plane."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.consumer.librdkafka.security_errors import refusal
from consumer_coord.errors import AuthenticationError, AuthorizationError, ConfigurationError
from consumer_coord.testing.kafka_cluster import unique_name
from tests.support.secrets import found_in, made_up
from tests.support.secured import SecuredKafka, unsecured_token
from tests.support.security.token_endpoint import Provider, token

pytestmark = pytest.mark.kafka

RECORDS = 10
#: No test waits for this time, except if a request is retried for ever.
DEADLINE_S = 180.0
GROUP = "group-with-read"


@pytest.fixture(scope="module")
def topics(secured: SecuredKafka) -> Mapping[str, str]:
    """By what bob may do with it: a topic to read, one only to describe, and one that he may not know of."""
    names = {"read": unique_name("may-read"), "describe": unique_name("may-describe"), "nothing": unique_name("secret")}
    for name in names.values():
        secured.kafka.create_topic(name, 1)
    producer = Producer({"bootstrap.servers": secured.kafka.bootstrap_servers})
    for name in names.values():
        for _ in range(RECORDS):
            producer.produce(name, b"value")
    assert producer.flush(180) == 0
    for user in ("alice", "bob", "carol"):
        secured.allow(user, ResourceType.TOPIC, names["read"], AclOperation.READ)
        secured.allow(user, ResourceType.TOPIC, names["describe"], AclOperation.DESCRIBE)
        secured.allow(user, ResourceType.GROUP, GROUP, AclOperation.READ)
    return names


def consumer(settings: Mapping[str, Any], group: str = GROUP) -> GroupConsumer:
    return GroupConsumer(
        {
            **settings,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "poll.raises.errors": True,
            # librdkafka's own lines about failures go to standard error, which is searched for secrets, too.
            "log_level": 3,
        }
    )


def messages(settings: Mapping[str, Any], topic: str, group: str = GROUP) -> Iterator[Message]:
    """Yield the messages of a consumer with these settings; raise the error that its poll raises."""
    end_s = time.monotonic() + DEADLINE_S
    with consumer(settings, group) as member:
        member.subscribe([topic])
        while time.monotonic() < end_s:
            message = member.poll(0.5)
            if message is not None:
                yield message
    raise TimeoutError(f"nothing more from {topic} in {DEADLINE_S} s")


def read_all(settings: Mapping[str, Any], topic: str) -> int:
    """Return the number of records in the topic without the last one."""
    taken = 0
    for message in messages(settings, topic):
        assert message.error() is None
        taken += 1
        if message.offset() == RECORDS - 1:
            break
    return taken


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("MTLS", None), ("SASL", "SCRAM-SHA-256"), ("SASL", "OAUTHBEARER"), ("SASLTLS", "PLAIN"), ("SASLTLS", "SCRAM-SHA-512")],
)
def test_one_dictionary_secures_both_planes(
    secured: SecuredKafka, topics: Mapping[str, str], listener: str, mechanism: str | None
) -> None:
    assert read_all(secured.settings(listener, mechanism), topics["read"]) == RECORDS


@pytest.mark.parametrize(("listener", "mechanism"), [("MTLS", None), ("SASLTLS", "SCRAM-SHA-512")])
def test_columns_are_read_with_the_same_dictionary(
    secured: SecuredKafka, topics: Mapping[str, str], listener: str, mechanism: str | None
) -> None:
    with consumer(secured.settings(listener, mechanism)) as member:
        member.subscribe([topics["read"]])
        assert sum(len(batch) for batch in member.arrow_batches()) == RECORDS


def test_tokens_of_librdkafkas_own_ways_secure_both_planes(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    """An identity provider (OIDC), asked once for both planes, and an unsecured token."""
    settings = secured.settings("SASL", "OAUTHBEARER")
    del settings["oauth_cb"]
    provider = Provider({"access_token": token("alice")})
    with provider.running() as url:
        by_provider = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.client.id": "billing",
            "sasl.oauthbearer.client.secret": made_up("client-secret"),
        }
        assert read_all({**settings, **by_provider}, topics["read"]) == RECORDS
    assert len(provider.asked) == 1
    unsecured = {
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "sasl.oauthbearer.config": "principal=alice scope=kafka",
    }
    assert read_all({**settings, **unsecured}, topics["read"]) == RECORDS


def test_a_session_that_ends_is_renewed_on_both_planes(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    """Long enough for two sessions of 1.5 s, in which heartbeats, fetches and a commit succeed."""
    with consumer(secured.settings("REAUTH", "SCRAM-SHA-512")) as member:
        member.subscribe([topics["read"]])
        first = member.poll(DEADLINE_S)
        assert first is not None
        ends_s = time.monotonic() + 3.5
        while time.monotonic() < ends_s:
            message = member.poll(0.5)
            assert message is None or message.error() is None
        rows = member.commit(message=first, asynchronous=False)
        assert rows is not None
        assert [row.error for row in rows] == [None]
        metrics = member.metrics()
        # The member never had to join again.
        assert metrics["join-total"] <= 2.0
        assert metrics["heartbeat-total"] >= 1.0
        member.commit(offsets=[type(rows[0])(rows[0].topic, rows[0].partition, 0)], asynchronous=False)


# -- who may not ----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour(89)
def test_without_read_on_the_group(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    told: list[Message] = []
    with pytest.raises(AuthorizationError, match=r"control plane: .*group 'other-group'.*needs READ on the group \(group.id\)"):
        told.extend(messages(secured.settings("SASL", "PLAIN", "bob"), topics["read"], "other-group"))
    # librdkafka looks up the coordinator separately, and may be the first to receive the error.
    assert {message.error().code() for message in told} <= {KafkaError.GROUP_AUTHORIZATION_FAILED}


def test_without_describe_on_the_topic(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    with pytest.raises(AuthorizationError, match=rf"control plane: .*'{topics['nothing']}'.*needs READ on the topic"):
        next(messages(secured.settings("SASL", "PLAIN", "bob"), topics["nothing"]))


def test_without_read_on_the_topic(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    """The member may join; it is the data plane that is refused, as a message with an error, or raised by iteration."""
    settings = secured.settings("SASL", "PLAIN", "bob")
    message = next(messages(settings, topics["describe"]))
    assert message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with consumer(settings) as member:
        member.subscribe([topics["describe"]])
        with pytest.raises(AuthorizationError, match=r"data plane: .*: the principal needs READ on the topic$"):
            next(member)


# -- who is not who they say ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "mechanism", "wrong", "told"),
    [
        ("SASL", "PLAIN", lambda _: {"sasl.password": made_up("wrong password")}, "check .*sasl.username and sasl.password"),
        ("SASL", "SCRAM-SHA-512", lambda _: {"sasl.username": "nobody"}, "check .*sasl.username and sasl.password"),
        ("TLS", None, lambda it: {"ssl.ca.location": str(it.foreign.ca)}, "check .*ssl.ca.location"),
        ("EXPIRED", None, lambda _: {}, "certificate has expired"),
        ("WRONGHOST", None, lambda _: {}, "address is one the certificate names"),
        ("SASLTLS", "SCRAM-SHA-256", lambda _: {}, "sasl.mechanism=SCRAM-SHA-256; set it to one that this listener has"),
    ],
)
def test_wrong_credentials_end_it_at_once_in_the_words_of_the_control_plane(
    secured: SecuredKafka,
    topics: Mapping[str, str],
    listener: str,
    mechanism: str | None,
    wrong: Callable[[SecuredKafka], Mapping[str, Any]],
    told: str,
) -> None:
    # The broker refuses both planes, and either plane may be the first to receive the error.
    with pytest.raises(AuthenticationError, match=rf"control plane: .*{told}"):
        next(messages({**secured.settings(listener, mechanism), **wrong(secured)}, topics["read"]))


def test_closing_after_a_wrong_password_raises_nothing(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    member = consumer({**secured.settings("SASL", "PLAIN"), "sasl.password": made_up("wrong password")})
    member.subscribe([topics["read"]])
    with pytest.raises(AuthenticationError):
        member.poll(DEADLINE_S)
    member.close()


def test_a_provider_that_is_away_at_the_start(secured: SecuredKafka) -> None:
    def away(_config: str | None) -> tuple[str, float]:
        raise ConnectionError("no route to the provider")

    with pytest.raises(AuthenticationError, match="data plane: oauth_cb raised ConnectionError: no route to the provider"):
        consumer({**secured.settings("SASL", "OAUTHBEARER"), "oauth_cb": away})


def test_the_data_plane_alone_is_refused(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    """A token that the broker takes from one plane and not from the other."""

    def provider(_config: str | None) -> tuple[str, float]:
        if threading.current_thread().name == "consumer-coord-work":
            return unsecured_token("alice")
        return made_up("no-token"), time.time() + 600

    settings = {**secured.settings("SASL", "OAUTHBEARER"), "oauth_cb": provider, "librdkafka.enable": True}
    with pytest.raises(AuthenticationError, match=r"data plane: .*invalid_token.*check what oauth_cb returns"):
        next(messages(settings, topics["read"]))


def test_settings_that_contradict_each_other_end_it_in_the_constructor(secured: SecuredKafka) -> None:
    with pytest.raises(ConfigurationError, match=r"needs sasl.password"):
        consumer({**secured.settings("SASL", "PLAIN"), "sasl.password": None})


# -- messages of librdkafka ----------------------------------------------------------------------------------------

PASSWORD = made_up("password in a message")


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        pytest.param(
            KafkaError._AUTHENTICATION,
            f"x: SASL authentication error: no {PASSWORD} (after 1ms)",
            AuthenticationError,
            id="what the broker says",
        ),
        (KafkaError._AUTHENTICATION, "x: SASL PLAIN mechanism handshake failed: Broker: Unsupported", AuthenticationError),
        (KafkaError._AUTHENTICATION, "x: SASL authentication error: Local: Broker transport failure", None),
        (KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: OAuth callback raised exception", None),
        (KafkaError._SSL, "SSL handshake failed: certificate verify failed", AuthenticationError),
        (KafkaError._SSL, "SSL handshake failed: ssl/tls alert bad certificate", AuthenticationError),
        (KafkaError._SSL, "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?", None),
        (KafkaError._SSL, "SSL handshake failed: SSL transport error: Connection reset by peer", None),
        (KafkaError._TRANSPORT, "Connect to 127.0.0.1:1 failed: Connection refused", None),
        (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down", None),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "Broker: Group authorization failed", AuthorizationError),
    ],
)
def test_only_a_refusal_is_raised(code: int, text: str, kind: type[Exception] | None) -> None:
    """librdkafka itself retries after an error that may disappear, such as a broker's restart during the handshake."""
    found = refusal(KafkaError(code, text), {"sasl.password": PASSWORD})
    assert type(found) is (kind or type(None))
    assert not found_in(str(found))


def _with_a_wrong_password(secured: SecuredKafka) -> tuple[dict[str, Any], str, str]:
    settings = dict(secured.settings("SASL", "SCRAM-SHA-256"))
    name, right = str(settings["sasl.username"]), str(settings["sasl.password"])
    own = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 3}
    return {**settings, **own, "sasl.password": made_up("wrong")}, name, right


def test_new_credentials_are_taken_by_both_planes(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    settings, name, right = _with_a_wrong_password(secured)
    taken = 0
    with GroupConsumer(settings) as member:
        member.set_sasl_credentials(name, right)
        member.subscribe([topics["read"]])
        ends = time.monotonic() + DEADLINE_S
        while taken < RECORDS:
            assert time.monotonic() < ends, "it still does not read"
            # librdkafka may have tried the old password before.
            message = member.poll(0.5)
            taken += message is not None and message.error() is None


def test_new_credentials_are_taken_by_a_consumer_of_columns(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    settings, name, right = _with_a_wrong_password(secured)
    with GroupConsumer(settings) as member:
        member.set_sasl_credentials(name, right)
        member.subscribe([topics["read"]])
        ends = time.monotonic() + DEADLINE_S
        taken = 0
        while taken < RECORDS:
            assert time.monotonic() < ends, "it still does not read"
            # The member may have tried the old password before.
            with contextlib.suppress(AuthenticationError):
                taken += len(member.consume_arrow(timeout=0.5))
        # librdkafka's handle was destroyed. This call creates another handle, which must have the new password.
        assert topics["read"] in member.list_topics(topics["read"], timeout=DEADLINE_S).topics


def test_new_credentials_of_an_asynchronous_consumer(secured: SecuredKafka, topics: Mapping[str, str]) -> None:
    settings, name, right = _with_a_wrong_password(secured)

    async def main() -> None:
        member = AsyncGroupConsumer(settings)
        with pytest.raises(TypeError, match="two strings"):
            await member.set_sasl_credentials(name, 1)  # type: ignore[arg-type]
        await member.set_sasl_credentials(name, right)
        await member.subscribe([topics["read"]])
        taken = 0
        try:
            async with asyncio.timeout(DEADLINE_S):
                while taken < RECORDS:
                    try:
                        message = await member.poll(0.5)
                    except AuthenticationError:
                        # librdkafka had tried the old password before.
                        continue
                    taken += message is not None and message.error() is None
        finally:
            await member.close()

    asyncio.run(main())
