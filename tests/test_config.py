"""Settings: every error names the key and the valid values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException

from assignors import CooperativeStickyAssignor, RangeAssignor, RoundRobinAssignor
from assignors.base import Assignor, RebalanceProtocol
from consumer_coord import GroupConsumer
from consumer_coord.assignor_loading import as_assignor, common_protocol, load_assignors
from consumer_coord.config import CoordinatorConfig, parse
from consumer_coord.errors import ConfigurationError, FatalError
from consumer_coord.setting_names import LIBRDKAFKA
from consumer_coord.settings import ALIASES
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from tests.support.confluent_kafka.settings import OLDER
from tests.support.group.member import ScriptedAssignor, everything_to_first

GOOD = {"bootstrap.servers": "127.0.0.1:9092", "group.id": "billing"}


def test_the_defaults_are_javas() -> None:
    config = parse(GOOD).coordinator
    assert config == CoordinatorConfig(group_id="billing")
    assert (config.session_timeout_ms, config.heartbeat_interval_ms, config.max_poll_interval_ms) == (45_000, 3_000, 300_000)
    assert parse(GOOD).strategy == ("range", "cooperative-sticky")
    assert parse(GOOD).auto_offset_reset == "latest"
    assert parse(GOOD).isolation_level == "read_committed"


@pytest.mark.behaviour(17)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bootstrap.servers": ""}, r"bootstrap\.servers=''.*host:port"),
        ({"bootstrap.servers": None}, r"bootstrap\.servers=None"),
        ({"bootstrap.servers": "a:b"}, r"bootstrap\.servers: 'a:b' is not host:port"),
        ({"bootstrap.servers": "a:70000"}, r"bootstrap\.servers: 'a:70000'"),
        ({"bootstrap.servers": " , "}, r"bootstrap\.servers"),
        ({"group.id": ""}, r"group\.id=''.*non-empty"),
        ({"group.id": " "}, r"group\.id=' '.*non-empty"),
        ({"group.id": [7]}, r"group\.id=\[7\]"),
        ({"group.instance.id": 7}, r"group\.instance\.id=7 must be a string"),
        ({"client.rack": 5}, r"client\.rack=5"),
        ({"session.timeout.ms": "soon"}, r"session\.timeout\.ms='soon' is not a whole number"),
        ({"session.timeout.ms": 0}, r"session\.timeout\.ms=0 is out of range.*from 1 to"),
        ({"session.timeout.ms": True}, r"session\.timeout\.ms=True"),
        ({"session.timeout.ms": 10.5}, r"session\.timeout\.ms=10\.5"),
        ({"max.poll.interval.ms": -1}, r"max\.poll\.interval\.ms=-1"),
        ({"release.linger.ms": 60_001}, r"release\.linger\.ms=60001.*60000"),
        ({"enable.auto.commit": "perhaps"}, r"enable\.auto\.commit='perhaps' must be true or false"),
        ({"exclude.internal.topics": 2}, r"exclude\.internal\.topics=2"),
        ({"isolation.level": "serializable"}, r"isolation\.level='serializable' must be read_committed or"),
        ({"auto.offset.reset": "yesterday"}, r"auto\.offset\.reset='yesterday' must be earliest, latest, none, or by_dur"),
        ({"auto.offset.reset": "by_duration:1h"}, r"auto\.offset\.reset='by_duration:1h'"),
        ({"group.protocol": "share"}, r"group\.protocol='share' must be classic or consumer"),
        ({"group.remote.assignor": "range"}, r"group\.remote\.assignor cannot be set with group\.protocol=classic"),
        *(
            ({"group.protocol": "consumer", name: value}, rf"{name} cannot be set with group\.protocol=consumer: .*{instead}")
            for name, value, instead in [
                ("session.timeout.ms", 6_000, r"group\.consumer\.session\.timeout\.ms"),
                ("heartbeat.interval.ms", 500, r"group\.consumer\.heartbeat\.interval\.ms"),
                ("partition.assignment.strategy", "range", r"group\.remote\.assignor"),
            ]
        ),
        ({"partition.assignment.strategy": ""}, r"partition\.assignment\.strategy=''"),
        ({"partition.assignment.strategy": "range,range"}, r"partition\.assignment\.strategy.*each assignor once"),
        ({"partition.assignment.strategy": ["range", Assignor]}, r"give names, such as 'range'; assignors= takes classes"),
        ({"value_deserializer": str}, r"no setting is called 'value_deserializer': call it on message\.value\(\)"),
        ({"value.deserializer": str}, r"no setting is called 'value\.deserializer': use DeserializingConsumer"),
        ({"max_poll_records": 9}, r"'max_poll_records': give consume the number of records"),
        ({"bootstrap.servers": ["a:1"]}, r"bootstrap\.servers=\['a:1'\]: give one string"),
        ({7: "x"}, r"names like 'group\.id', not 7"),
    ],
)
def test_the_error_of_a_wrong_setting_names_the_valid_values(settings: dict[Any, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        parse({**GOOD, **settings})
    assert isinstance(raised.value, FatalError)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 6_000},
            r"heartbeat\.interval\.ms=6000 must be below session\.timeout\.ms=6000; a third",
        ),
        ({"retry.backoff.ms": 500, "retry.backoff.max.ms": 100}, r"backoff\.max\.ms=100 is below retry\.backoff\.ms=500"),
        (
            {"request.timeout.ms": 1_000, "socket.timeout.ms": 2_000},
            r"request\.timeout\.ms and socket\.timeout\.ms",
        ),
        ({"metadata.broker.list": "elsewhere:9092"}, r"bootstrap\.servers and metadata\.broker\.list.*different values"),
    ],
)
def test_settings_that_contradict_each_other_are_both_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse({**GOOD, **settings})


def test_settings_accept_the_names_of_both_clients() -> None:
    assert set(ALIASES) == {
        "metadata.broker.list",
        "request.timeout.ms",
        "enable.auto.create.topics",
        "fetch.message.max.bytes",
    }
    assert parse({**GOOD, "fetch.message.max.bytes": 1234}).max_partition_fetch_bytes == 1234
    java = parse({**GOOD, "request.timeout.ms": "1234", "allow.auto.create.topics": "true"})
    librdkafka = parse(
        {
            "metadata.broker.list": GOOD["bootstrap.servers"],
            "group.id": "billing",
            "socket.timeout.ms": 1234,
            "allow.auto.create.topics": True,
        }
    )
    assert java.coordinator == librdkafka.coordinator
    assert java.client == librdkafka.client
    assert java.coordinator.request_timeout_ms == 1234
    assert parse({**GOOD, "default.topic.config": {"auto.offset.reset": "smallest"}}).auto_offset_reset == "earliest"


def test_addresses_come_in_all_their_forms() -> None:
    parsed = parse({**GOOD, "bootstrap.servers": "a:1, SASL_SSL://b:2,[::1]:3,c,a:1"}).client.bootstrap_servers
    assert parsed == (("a", 1), ("b", 2), ("::1", 3), ("c", 9092))


def test_a_short_session_brings_its_heartbeats() -> None:
    config = parse({**GOOD, "session.timeout.ms": 600, "max.poll.interval.ms": 5_000}).coordinator
    assert config.heartbeat_interval_ms == 200
    assert config.rebalance_timeout_ms == 5_000
    assert parse({**GOOD, "rebalance.timeout.ms": 7_000}).coordinator.rebalance_timeout_ms == 7_000


def test_librdkafka_gets_a_data_plane_without_a_group() -> None:
    settings = {"session.timeout.ms": 6_000, "auto.offset.reset": "by_duration:PT1H", "fetch.min.bytes": 5}
    passed = parse({**GOOD, **settings}).librdkafka
    assert passed["enable.auto.commit"] is False
    assert passed["enable.auto.offset.store"] is False
    assert passed["fetch.min.bytes"] == 5
    assert passed["auto.offset.reset"] == "error", "librdkafka knows no durations"
    assert not {"partition.assignment.strategy", "release.linger.ms", "session.timeout.ms", "group.instance.id"} & passed.keys()


@pytest.mark.parametrize("reset", [{}, {"auto.offset.reset": "latest"}, {"auto.offset.reset": "smallest"}])
def test_librdkafka_chooses_no_start_offset(reset: dict[str, str]) -> None:
    assert parse({**GOOD, **reset}).librdkafka["auto.offset.reset"] == "error"


def test_in_the_consumer_protocol_the_broker_assigns() -> None:
    settings = {**GOOD, "group.protocol": "CONSUMER", "group.remote.assignor": "range", "group.instance.id": "i"}
    parsed = parse(settings)
    assert (parsed.coordinator.group_protocol, parsed.coordinator.group_remote_assignor) == ("consumer", "range")
    assert parsed.strategy == ()
    assert not {"group.protocol", "group.remote.assignor"} & parsed.librdkafka.keys()
    with pytest.raises(ConfigurationError, match=r"assignors= cannot be used with group\.protocol=consumer"):
        BlockingCoordinator(settings, assignors=[RangeAssignor()])


def test_a_setting_that_neither_plane_knows_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"fetch\.min\.byte") as raised:
        GroupConsumer({**GOOD, "fetch.min.byte": 1})
    assert isinstance(raised.value, KafkaException)


def test_secrets_are_not_printed() -> None:
    parsed = parse({**GOOD, "sasl.password": "hunter2", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"})
    assert "hunter2" not in repr(parsed)


# -- assignors --------------------------------------------------------------------------------------------------------


class OneOfOurs(Assignor):
    """An assignor that settings name by module and class."""

    name = "ours"
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def assign(self, cluster: Any, members: Any) -> Any:
        return everything_to_first(cluster, members)


def test_assignors_by_name_entry_point_and_class() -> None:
    names = ["range", "roundrobin", "sticky", "cooperative-sticky", f"{__name__}:OneOfOurs"]
    loaded = load_assignors(names)
    assert [each.name for each in loaded] == ["range", "roundrobin", "sticky", "cooperative-sticky", "ours"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rnage", r"no assignor is called 'rnage'; did you mean 'range'\?.*module:Class"),
        ("nowhere.at_all:Thing", r"'nowhere\.at_all:Thing' cannot be loaded.*nowhere"),
        (f"{__name__}:Missing", "cannot be loaded.*Missing"),
        (f"{__name__}:GOOD", "is not an assignor: derive it from"),
        ("collections:OrderedDict", "is not an assignor"),
    ],
)
def test_an_invalid_strategy_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_assignors([name])


class Nameless(Assignor):
    """An assignor without the name that JoinGroup contains."""

    name = ""

    def assign(self, cluster: Any, members: Any) -> Any:
        return {}


class WithoutProtocol(OneOfOurs):
    """An assignor that supports no protocol."""

    protocols = ()


@pytest.mark.parametrize(("candidate", "says"), [(Nameless, "has no name"), (WithoutProtocol(), "must list its protocols")])
def test_the_error_names_the_missing_part_of_an_assignor(candidate: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        as_assignor(candidate)


@pytest.mark.behaviour(23)
def test_the_protocol_is_the_highest_that_all_of_a_list_support() -> None:
    eager, cooperative = RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE
    assert common_protocol([CooperativeStickyAssignor()]) is cooperative
    assert common_protocol([OneOfOurs()]) is cooperative
    assert common_protocol([RangeAssignor(), CooperativeStickyAssignor()]) is eager
    assert common_protocol([RangeAssignor(), RoundRobinAssignor()]) is eager
    with pytest.raises(ConfigurationError, match=r"range, scripted have no rebalance protocol in common"):
        common_protocol([RangeAssignor(), ScriptedAssignor(everything_to_first, cooperative)])
    with pytest.raises(ConfigurationError, match="the same name: range, range"):
        common_protocol([RangeAssignor(), RangeAssignor()])
    with pytest.raises(ConfigurationError, match="at least one"):
        common_protocol([])


def test_assignors_are_given_in_one_way_and_as_a_list() -> None:
    with pytest.raises(ConfigurationError, match=r"partition\.assignment\.strategy and assignors="):
        BlockingCoordinator({**GOOD, "partition.assignment.strategy": "range"}, assignors=[RangeAssignor()])
    with pytest.raises(ConfigurationError, match=r"takes a list: assignors=\[MyAssignor\(\)\]"):
        BlockingCoordinator(GOOD, assignors=RangeAssignor())  # type: ignore[arg-type]  # wrong on purpose


def test_topics_instead_of_settings_are_refused() -> None:
    with pytest.raises(TypeError, match=r"expected configuration dict, not str; give topics to subscribe\(\)"):
        GroupConsumer("orders", bootstrap_servers="127.0.0.1:1")  # type: ignore[arg-type]  # wrong on purpose


def test_the_error_of_an_unknown_setting_suggests_the_right_name() -> None:
    given = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "fetch.min.byte": 1}
    with pytest.raises(ConfigurationError, match=r'"fetch.min.byte"; did you mean \'fetch.min.bytes\'\?'):
        GroupConsumer(given)


@pytest.mark.skipif(OLDER, reason="the installed confluent-kafka is older than the list of settings")
@pytest.mark.parametrize("name", sorted(LIBRDKAFKA - {"plugin.library.paths", "logger"}))
def test_librdkafka_knows_the_settings_that_are_suggested(name: str) -> None:
    error_text = ""
    try:
        confluent_kafka.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", name: "no value for it"}).close()
    except (KafkaException, TypeError, ValueError) as error:
        error_text = str(error)
    assert "No such configuration property" not in error_text
