"""Features that older versions of confluent-kafka lack: this package replaces them, or its error names the version.

``python -m tools.oldest confluent-kafka`` runs the tests with the oldest version itself.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import confluent_kafka
import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaError, events
from consumer_coord.consumer.librdkafka import handle
from consumer_coord.errors import ConfigurationError
from consumer_coord.setting_names import LIBRDKAFKA
from tests.support.environments import needs_librdkafka
from tools.oldest import ROOT, oldest


def _uncreatable(**_: object) -> None:
    raise TypeError("cannot create 'cimpl.Message' instances")


def test_an_error_is_a_message_where_confluent_kafka_cannot_create_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "Message", _uncreatable)
    with EmbeddedKafka(config={"auto.create.topics.enable": False}) as kafka:
        consumer = GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
        with consumer:
            consumer.subscribe(["missing"])
            message: Any = consumer.poll(60)
    assert message, "as in every version, an error is truthy: applications check for None by `if not message`"
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert "does not exist" in message.error().str() or "do not exist" in message.error().str()
    assert message.topic() == "missing"
    assert message.value().startswith(b"subscribed topics do not exist: missing")
    assert [message.partition(), message.offset(), message.key(), message.headers(), message.leader_epoch()] == [None] * 5
    assert message.timestamp() == (confluent_kafka.TIMESTAMP_NOT_AVAILABLE, -1)


@needs_librdkafka
def test_a_setting_that_the_installed_version_does_not_know_is_named_with_the_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handle, "LIBRDKAFKA", LIBRDKAFKA | {"setting.of.a.newer.version"})
    installed = re.escape(confluent_kafka.__version__)
    says = rf"setting.of.a.newer.version needs a newer confluent-kafka: the installed version {installed} .* version 2.16 does"
    with pytest.raises(ConfigurationError, match=says):
        GroupConsumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "setting.of.a.newer.version": 1})


def test_each_supported_python_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["classifiers"]))
    bounds = {f"3.{minor}": oldest("confluent-kafka", (3, int(minor))) for minor in versions}
    assert bounds == {"3.11": "2.8", "3.12": "2.8", "3.13": "2.8", "3.14": "2.12.1"}
