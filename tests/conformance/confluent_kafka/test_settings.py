"""The table of settings against the installed librdkafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException, cimpl

from consumer_coord import GroupConsumer
from tests.support.confluent_kafka import docs
from tests.support.confluent_kafka.settings import FATES, OLDER, REFUSED, installed

#: Values for settings that have no default, or whose default cannot be given.
_VALUES: dict[str, Any] = {
    "group.id": "billing",
    "group.instance.id": "one",
    "bootstrap.servers": "127.0.0.1:1",
    "metadata.broker.list": "127.0.0.1:1",
    "error_cb": print,
    "throttle_cb": print,
    "stats_cb": print,
    "debug": "",
    "plugin.library.paths": "",
    "topic.blacklist": "",
    "group.protocol": "classic",
    "partition.assignment.strategy": "range,roundrobin",
    "sasl.mechanism": "PLAIN",
    "sasl.mechanisms": "PLAIN",
    "client.rack": "r1",
    "offset.store.path": ".",
    "group.remote.assignor": "uniform",
}


def _made(kind: Any, name: str, default: str) -> str | None:
    """Return the error of a consumer with this setting, or None."""
    value = _VALUES.get(name, default or "x")
    needed: dict[str, Any] = {}
    if name == "group.remote.assignor":
        needed = {"group.protocol": "consumer"}
    settings = {"group.id": "billing", "bootstrap.servers": "127.0.0.1:1", **needed, name: value}
    try:
        kind(settings).close()
    except (KafkaException, ValueError, TypeError) as error:
        return str(error)
    return None


@pytest.mark.skipif(OLDER, reason="the installed confluent-kafka is older than the table")
def test_the_table_has_every_setting_of_the_installed_librdkafka() -> None:
    found = installed()
    assert len(found) > 150
    assert FATES.keys() == found.keys()


@pytest.mark.parametrize("name", sorted(FATES))
def test_a_setting_is_taken_or_refused_as_the_table_says(name: str) -> None:
    if OLDER and name not in installed():
        pytest.skip("the installed confluent-kafka does not know this setting")
    default = installed()[name]
    ours = _made(GroupConsumer, name, default)
    if FATES[name].kind == REFUSED:
        assert ours is not None
        assert name in ours
    elif ours is not None:
        # Nothing that librdkafka takes as it is.
        assert _made(cimpl.Consumer, name, default) is not None, ours


def test_the_docs_have_the_tables_as_they_are() -> None:
    text = docs.DOCS.read_text()
    assert docs.with_tables(text) == text, "run: python -m tests.support.confluent_kafka.docs"
