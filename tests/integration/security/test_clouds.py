"""The examples for clouds: Azure Event Hubs against a broker and a token endpoint on this machine, and MSK's signed tokens."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import importlib.util
import logging
import time
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from consumer_coord import GroupConsumer
from consumer_coord.net.sasl import parse_token
from consumer_coord.testing.kafka_cluster import unique_name
from examples import event_hubs
from tests.support.producer import Producer
from tests.support.secrets import made_up
from tests.support.secured import SecuredKafka
from tests.support.security.token_endpoint import Provider, token
from tests.support.waiting import eventually


@pytest.mark.kafka
def test_event_hubs(secured: SecuredKafka) -> None:
    """The broker validates the token's subject; the endpoint is asked as Microsoft Entra ID is."""
    topic, group, secret = unique_name("hub"), unique_name("readers"), made_up("client-secret")
    secured.kafka.create_topic(topic, partitions=1)
    secured.allow("reader", ResourceType.TOPIC, topic, AclOperation.READ)
    secured.allow("reader", ResourceType.GROUP, group, AclOperation.READ)
    producer = Producer({"bootstrap.servers": secured.kafka.bootstrap_servers})
    producer.produce(topic, b"v")
    assert producer.flush(60) == 0
    provider = Provider({"access_token": token("reader"), "expires_in": 600, "token_type": "Bearer"})
    with provider.running() as address:
        environment = {
            "AZURE_AUTHORITY_HOST": address.removesuffix("/token"),
            "AZURE_TENANT_ID": "tenant",
            "AZURE_CLIENT_ID": "the-client",
            "AZURE_CLIENT_SECRET": secret,
        }
        settings = event_hubs.settings("mine", group, environment)
        assert settings["bootstrap.servers"] == "mine.servicebus.windows.net:9093"
        here = {"bootstrap.servers": secured.kafka.bootstrap("SASLTLS"), "ssl.ca.location": str(secured.authority.ca)}
        with GroupConsumer(settings | here) as consumer:
            consumer.subscribe([topic])
            eventually(lambda: (message := consumer.poll(0.2)) is not None and message.value() == b"v")
    (asked,) = provider.asked
    assert (asked.method, asked.path) == ("POST", "/tenant/oauth2/v2.0/token")
    assert asked.form["grant_type"] == "client_credentials"
    assert asked.form["scope"] == "https://mine.servicebus.windows.net/.default"
    credentials = base64.b64decode(asked.headers["Authorization"].removeprefix("Basic ")).decode()
    assert credentials == f"the-client:{secret}"


@pytest.mark.skipif(
    importlib.util.find_spec("aws_msk_iam_sasl_signer") is None,
    reason="the example for MSK is not tested: pip install aws-msk-iam-sasl-signer-python",
)
def test_msk_iam(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The credentials come from a container's endpoint; the signature is the one that AWS computes (Signature Version 4)."""
    from examples import msk_iam

    # botocore logs session tokens at its level of debugging.
    caplog.set_level(logging.INFO, "botocore")
    key_id, secret, session = "AKIDEXAMPLE", made_up("aws-secret"), made_up("session-token")
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    answer = {"AccessKeyId": key_id, "SecretAccessKey": secret, "Token": session, "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}"}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    provider = Provider(answer)
    with provider.running() as address:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address)
        settings = msk_iam.settings("b-1.example:9098", "eu-central-1", "billing")
        returned = settings["oauth_cb"](None)
    assert [one.method for one in provider.asked] == ["GET"]
    checked = parse_token(returned, time.time() * 1000)
    assert 800_000 < checked.expires_at_ms - time.time() * 1000 <= 900_000
    url = urlsplit(base64.urlsafe_b64decode(returned[0] + "=" * (-len(returned[0]) % 4)).decode())
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert (url.netloc, query["Action"]) == ("kafka.eu-central-1.amazonaws.com", "kafka-cluster:Connect")
    assert query["X-Amz-Security-Token"] == session
    signature = query.pop("X-Amz-Signature")
    query.pop("User-Agent", None)
    assert signature == _signature(url.netloc, query, secret)


def _signature(host: str, query: dict[str, str], secret: str) -> str:
    """Return the signature of a GET of ``/`` with this query."""
    canonical = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
    request = f"GET\n/\n{canonical}\nhost:{host}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    scope = query["X-Amz-Credential"].split("/", 1)[1]
    text = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
