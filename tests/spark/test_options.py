"""Options: every mistake is an error that names option, value and remedy; names are those of Spark's own source."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from assignors.base import Assignor, Cluster, Plan, RebalanceProtocol
from consumer_coord.config import parse
from consumer_coord.errors import ConfigurationError
from consumer_coord.fetch import FetchConfig
from consumer_coord.spark.columns import source_schema
from consumer_coord.spark.options import check_options, parse_bounded_options, parse_options
from consumer_coord.spark.source import KafkaGroupSource
from consumer_coord.spark.starting_offsets_option import EARLIEST, LATEST
from consumer_coord.spark.table_options import options_of
from consumer_coord.spark.user_code import by_value
from consumer_coord.topic_partition import TopicPartition
from tests.support.secrets import made_up

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "group.id": "billing", "subscribe": "orders"}


def test_a_minimal_query_gets_the_defaults() -> None:
    options = parse_options(BASE)
    assert options.group == "billing"
    assert options.topics == ("orders",)
    assert options.assignor == "cooperative-sticky"
    assert options.fail_on_data_loss
    coordinator = options.config().coordinator
    assert coordinator.max_poll_interval_ms == 3_600_000
    assert coordinator.rebalance_timeout_ms == 60_000
    assert coordinator.heartbeat_interval_ms == 500


def test_kafka_settings_reach_both_planes() -> None:
    options = parse_options(
        {
            **BASE,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "me",
            "kafka.sasl.password": "secret",
            "kafka.session.timeout.ms": "9000",
            "kafka.fetch.max.bytes": "1048576",
        }
    )
    config = options.config()
    assert config.coordinator.session_timeout_ms == 9000
    assert config.client.security["security.protocol"] == "SASL_SSL"
    data_plane = options.data_plane()
    assert data_plane["sasl.password"] == "secret"
    assert data_plane["fetch.max.bytes"] == "1048576"
    assert data_plane["enable.partition.eof"] is True
    assert "secret" not in repr(options)


def test_option_names_are_case_insensitive() -> None:
    options = parse_options({key.upper(): value for key, value in BASE.items()} | {"MAXOFFSETSPERTRIGGER": "7"})
    assert options.max_offsets == 7


def test_durations_are_sparks() -> None:
    def delay_ms(text: str) -> int:
        return parse_options({**BASE, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}).max_trigger_delay_ms

    assert [delay_ms(text) for text in ("250", "500ms", "30s", "15m", "2 min", "1h", "1d")] == [
        250,
        500,
        30_000,
        900_000,
        120_000,
        3_600_000,
        86_400_000,
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group.id": None}, "group.id is missing"),
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "no host"}, "'no host' is not host:port"),
        ({"subscribe": None}, "set one of subscribe"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "or/ders"}, "'or/ders' is not a valid topic name"),
        ({"subscribePattern": "o.*"}, "cannot be combined"),
        ({"subscribe": None, "subscribePattern": "o(*"}, "'o(*' is not a regular expression"),
        ({"kafka.group.id": "other"}, "differ: keep group.id"),
        ({"assign": '{"orders":[0]}'}, "the group decides"),
        ({"endingOffsets": "latest"}, "Trigger.AvailableNow"),
        ({"path": "orders"}, "Kafka has no paths"),
        ({"groupIdPrefix": "x"}, "name it with group.id"),
        ({"maxOffsetPerTrigger": "10"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"session.timeout.ms": "10"}, "kafka.session.timeout.ms"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0' must be a whole number above 0"),
        ({"maxOffsetsPerTrigger": "ten"}, "maxOffsetsPerTrigger='ten'"),
        ({"minPartitions": "-1"}, "minPartitions='-1'"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger=9 is above"),
        ({"maxTriggerDelay": "5s"}, "set minOffsetsPerTrigger, or remove"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "maxTriggerDelay='soon' is not a duration"),
        ({"kafka.sasl.password": "x", "kafka.sasl.username": "me"}, "sasl.password, sasl.username without SASL"),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"},
            "sasl.mechanism=PLAIN needs sasl.username, which is not set",
        ),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.ca.location": "/no/such/file"}, "ssl.ca.location"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss='perhaps' must be true or false"),
        ({"startingOffsets": "somewhere"}, "startingOffsets='somewhere' must be earliest, latest or JSON"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "'orders' partition '0' at -3"),
        ({"startingOffsets": '{"orders":{"zero":3}}'}, "'orders' partition 'zero'"),
        ({"startingOffsets": '{"orders":{"0":9223372036854775808}}'}, "'orders' partition '0' at 9223372036854775808"),
        ({"startingTimestamp": "9223372036854775808"}, "startingTimestamp='9223372036854775808' must be milliseconds"),
        ({"startingOffsets": '{"payments":{"0":3}}'}, "names topic 'payments', which subscribe='orders' does not contain"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "cannot be combined: keep one"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp='yesterday' must be milliseconds"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "'orders' partition '0' at -1"),
        ({"startingOffsetsByTimestampStrategy": "never"}, "must be error or latest"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "the source commits"),
        ({"kafka.partition.assignment.strategy": "range"}, "use the option assignor"),
        ({"kafka.value.deserializer": "x"}, "values are bytes"),
        ({"kafka.max.poll.records": "5"}, "use maxOffsetsPerTrigger"),
        ({"useDeprecatedOffsetFetching": "true"}, "remove this option"),
        ({"secret.taskSplitter": "a:b", "taskSplitter": "c:d"}, "secret.taskSplitter and taskSplitter have different values"),
        ({"kafka.session.timeout.ms": "soon"}, "session.timeout.ms='soon'"),
        ({"assignor": "cooperative-stiky"}, "cooperative-sticky"),
        ({"assignor": "no.such.module:Assignor"}, "no.such.module:Assignor"),
        ({"assignor": "range"}, "allowEagerAssignor=true"),
        ({"assignor": "by-value:AAAA"}, "cannot be loaded here"),
        ({"taskSplitter": "nowhere"}, "taskSplitter='nowhere' must be module:function"),
        ({"taskSplitter": "math:nothing"}, "taskSplitter='math:nothing' cannot be loaded"),
        ({"taskSplitter": ":name"}, "taskSplitter=':name' cannot be loaded: ValueError"),
        ({"taskSplitter": "math:pi"}, "which is not a function"),
        ({"asyncProgressTrackingEnabled": "true"}, "only after Spark has finished"),
    ],
)
def test_a_mistake_is_named(changes: dict[str, str | None], message: str) -> None:
    given = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        parse_options(given)


def test_in_the_consumer_protocol_the_broker_assigns_and_a_batch_may_take_as_long_as_between_two_polls() -> None:
    parsed = parse_options({**BASE, "kafka.group.protocol": "consumer", "kafka.group.remote.assignor": "range"})
    assert parsed.assignors() is None
    config = parsed.config().coordinator
    assert (config.group_protocol, config.group_remote_assignor) == ("consumer", "range")
    assert config.rebalance_timeout_ms == config.max_poll_interval_ms
    with pytest.raises(ConfigurationError, match=r"assignor='sticky' cannot be used with kafka\.group\.protocol=consumer"):
        parse_options({**BASE, "kafka.group.protocol": "consumer", "assignor": "sticky"})
    with pytest.raises(ConfigurationError, match=r"session\.timeout\.ms cannot be set with group\.protocol=consumer"):
        parse_options({**BASE, "kafka.group.protocol": "consumer", "kafka.session.timeout.ms": "6000"})


def test_an_unknown_kafka_setting_is_an_error_at_load() -> None:
    with pytest.raises(ConfigurationError, match=r"no\.such\.key"):
        KafkaGroupSource({**BASE, "kafka.no.such.key": "1"})


def test_an_eager_assignor_is_taken_when_asked_for() -> None:
    assert parse_options({**BASE, "assignor": "range", "allowEagerAssignor": "true"}).allow_eager_assignor


class EverythingToTheFirst(Assignor):
    """An assignor of a notebook."""

    name = "everything-to-the-first"
    protocols = (RebalanceProtocol.COOPERATIVE,)

    def assign(self, cluster: Cluster, members: object) -> Plan:
        assert isinstance(members, dict)
        first = min(members)
        return {
            member: {topic: range(count) for topic, count in cluster.partitions.items()} if member == first else {}
            for member in members
        }


_ELSEWHERE = """
import sys
from assignors import Cluster, Member
from consumer_coord.spark.user_code import load_assignors
(assignor,) = load_assignors(sys.argv[1], allow_eager_assignor=False)
assert "tests" not in sys.modules
print(assignor.name, assignor.assign(Cluster({"orders": 2}), {"a": Member(["orders"]), "b": Member(["orders"])}))
"""


def test_an_assignor_travels_by_value(tmp_path: Path) -> None:
    text = by_value(EverythingToTheFirst)
    assert parse_options({**BASE, "assignor": text}).assignor == text
    run = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, text], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=True
    )
    assert run.stdout.strip() == "everything-to-the-first {'a': {'orders': range(0, 2)}, 'b': {}}"


def test_starting_offsets_by_partition() -> None:
    starting = parse_options({**BASE, "startingOffsets": '{"orders":{"0":23,"1":-1}}'}).starting
    assert [starting.of(TopicPartition("orders", number)) for number in range(2)] == [23, -1]
    assert starting.needs_latest


def test_starting_timestamps() -> None:
    starting = parse_options({**BASE, "startingTimestamp": "1000"}).starting
    assert starting.timestamp_of(TopicPartition("orders", 5)) == 1000
    by_partition = parse_options({**BASE, "startingOffsetsByTimestamp": '{"orders":{"0":1000}}'}).starting
    assert by_partition.timestamp_of(TopicPartition("orders", 0)) == 1000
    assert not by_partition.needs_latest


#: Settings of Kafka's clients whose values are secrets; "x" is no secret of any other setting.
SECRETS = (
    "sasl.jaas.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.extensions",
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password",
)
#: ``spark.redaction.regex`` as Spark 4 has it.
SPARK_HIDES = re.compile("(?i)secret|password|token|access[.]?key")


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_refused_under_a_name_that_spark_shows_and_told_in_no_error(name: str) -> None:
    value = made_up(name)
    hidden = {f"secret.kafka.{name}": value}
    assert SPARK_HIDES.search(f"secret.kafka.{name}")
    if not SPARK_HIDES.search(f"kafka.{name}"):
        with pytest.raises(ConfigurationError, match=re.escape(f"write it as secret.kafka.{name}")) as refused:
            parse_options({**BASE, f"kafka.{name}": value})
        assert value not in str(refused.value)
    with contextlib.suppress(ConfigurationError):
        # A setting may have no effect without other settings, or be refused; the test suite checks what is logged.
        assert value not in repr(parse_options({**BASE, **hidden}))
    with pytest.raises(ConfigurationError) as error:
        parse_options({**BASE, **hidden, "maxOffsetPerTrigger": "1"})
    assert value not in str(error.value)


def test_what_is_no_secret_keeps_its_name() -> None:
    security = {"kafka.security.protocol": "SSL", "kafka.ssl.endpoint.identification.algorithm": "none"}
    assert parse_options({**BASE, **security}).settings["security.protocol"] == "SSL"
    for name in ("ssl.ca.location", "ssl.key.location"):
        with pytest.raises(ConfigurationError) as refused:
            parse_options({**BASE, **security, f"kafka.{name}": "/no/such"})
        assert "secret." not in str(refused.value)
    for name in ("ssl.ca.pem", "ssl.certificate.pem"):
        with pytest.raises(ConfigurationError) as refused:
            parse_options({**BASE, **security, f"kafka.{name}": "no certificate"})
        assert "secret." not in str(refused.value)


def test_a_callback_by_value_may_hold_secrets_and_is_hidden() -> None:
    key = made_up("client key")

    def token(config: str) -> tuple[str, float]:
        return key, 0.0

    protocol = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(ConfigurationError, match=r"write it as secret\.kafka\.oauth_cb"):
        parse_options({**BASE, **protocol, "kafka.oauth_cb": by_value(token)})
    assert "oauth_cb" in parse_options({**BASE, **protocol, "secret.kafka.oauth_cb": by_value(token)}).settings
    with pytest.raises(ConfigurationError, match="names an object of type str, which is not a function"):
        parse_options({**BASE, "taskSplitter": "string:digits"})


def test_a_table_hands_over_its_options_with_a_prefix() -> None:
    """``CREATE TABLE orders USING kafka_group OPTIONS (...)``."""
    table = {"provider": "kafka_group", "owner": "me", **{f"option.{name}": value for name, value in BASE.items()}}
    options = parse_options({**BASE, **table})
    assert options == parse_options(table)
    assert options == parse_options(BASE)


def test_javas_names_of_librdkafkas_settings() -> None:
    settings = {"kafka.receive.buffer.bytes": "65536", "kafka.send.buffer.bytes": "-1", "kafka.fetch.max.wait.ms": "50"}
    plane = parse_options({**BASE, **settings}).data_plane()
    assert plane["socket.receive.buffer.bytes"] == "65536"
    assert plane["socket.send.buffer.bytes"] == "0"
    assert plane["fetch.wait.max.ms"] == "50"
    KafkaGroupSource({**BASE, **settings})


@pytest.mark.parametrize("name", ["kafka.max.partition.fetch.bytes", "kafka.fetch.message.max.bytes"])
def test_an_executor_accepts_each_name_of_the_limit_of_a_partition(name: str) -> None:
    options = parse_options({**BASE, name: "1048577"})
    assert FetchConfig.of(parse(options.data_plane())).max_partition_fetch_bytes == 1_048_577
    assert FetchConfig.of(parse(parse_options(BASE).data_plane())).max_partition_fetch_bytes == 2_097_152


def test_writes_say_what_to_do_instead() -> None:
    source = KafkaGroupSource(BASE)
    schema = source.schema()
    for write in (source.writer, source.streamWriter):
        with pytest.raises(ConfigurationError, match=r"reads only.*format 'kafka'"):
            write(schema, False)


BOUNDED = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def test_a_bounded_read_needs_no_group_and_has_a_start_and_an_end() -> None:
    options = parse_bounded_options(BOUNDED)
    assert options.group == ""
    assert (options.starting.word, options.ending.word) == (EARLIEST, LATEST)
    ends = parse_bounded_options({**BOUNDED, "endingOffsets": '{"orders":{"0":-1,"1":7}}'}).ending
    assert [ends.of(TopicPartition("orders", number)) for number in range(2)] == [LATEST, 7]
    assert parse_bounded_options({**BOUNDED, "endingTimestamp": "5"}).ending.timestamp_ms == 5
    assigned = parse_bounded_options({"kafka.bootstrap.servers": "127.0.0.1:9092", "assign": '{"orders":[1]}'})
    assert (assigned.topics, assigned.assigned) == (("orders",), frozenset([TopicPartition("orders", 1)]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"subscribe": None}, "set one of subscribe"),
        ({"assign": '{"orders":[1]}'}, "assign and subscribe cannot be combined"),
        ({"subscribe": None, "assign": "orders"}, "assign='orders' must be JSON"),
        ({"subscribe": None, "assign": '{"orders":3}'}, 'must be JSON like {"topic":[0,1]}'),
        ({"subscribe": None, "assign": '{"orders":[-1]}'}, "with partition numbers from 0"),
        ({"subscribe": None, "assign": '{"orders":[]}'}, "it names no partition"),
        ({"startingOffsets": "latest"}, "startingOffsets='latest' must be earliest, group or JSON"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "'orders' partition '0' at -1"),
        ({"startingOffsets": "group"}, "startingOffsets='group' needs group.id"),
        ({"endingOffsets": "earliest"}, "endingOffsets='earliest' must be latest or JSON"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "'orders' partition '0' at -2"),
        ({"endingOffsets": '{"payments":{"0":2}}'}, "endingOffsets names topic 'payments'"),
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "endingOffsets and endingTimestamp cannot be combined"),
        ({"endingTimestamp": "soon"}, "endingTimestamp='soon' must be milliseconds"),
        ({"maxOffsetsPerTrigger": "5"}, "spark.read has no triggers"),
        ({"assignor": "range"}, "spark.read joins no group"),
        ({"endingOffset": "latest"}, "did you mean 'endingOffsets'"),
        ({"minPartitions": "0"}, "minPartitions='0'"),
    ],
)
def test_a_mistake_in_a_bounded_read_is_named(changes: dict[str, str | None], message: str) -> None:
    given = {key: value for key, value in {**BOUNDED, **changes}.items() if value is not None}
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        parse_bounded_options(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        # Wrong in both modes: the error is that of the mode whose options are given.
        ({**BASE, "maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({**BOUNDED, "endingOffsets": "soon"}, "endingOffsets='soon' must be latest or JSON"),
        ({**BASE, "endingOffsets": "latest", "minPartitions": "no"}, "minPartitions='no'"),
        ({**BOUNDED, "maxOffsetsPerTrigger": "1", "minPartitions": "no"}, "group.id is missing"),
        ({**BASE, "subscribePattern": "o.*"}, "cannot be combined"),
    ],
)
def test_load_does_not_know_whether_spark_streams(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        check_options(given)


def test_what_is_right_in_one_mode_is_an_error_of_the_other_when_spark_has_chosen() -> None:
    source = KafkaGroupSource({**BOUNDED, "endingOffsets": "latest"})
    with pytest.raises(ConfigurationError, match=r"a stream has no end; use Trigger\.AvailableNow"):
        source.streamReader(source.schema())
    source = KafkaGroupSource({**BASE, "maxOffsetsPerTrigger": "5"})
    with pytest.raises(ConfigurationError, match=r"spark\.read has no triggers"):
        source.reader(source.schema())


def table_of(options: dict[str, str]) -> StructType:
    """The schema with which Spark creates a table, after a way through Spark's JSON."""
    given = {"provider": "kafka_group", **options, **{f"option.{name}": value for name, value in options.items()}}
    return StructType.fromJson(json.loads(KafkaGroupSource(given).schema().json()))


def test_a_query_of_a_table_has_the_tables_options() -> None:
    schema = table_of({**BASE, "startingOffsets": "earliest", "includeHeaders": "true"})
    query = KafkaGroupSource({})
    assert query.reader(schema) is not None
    assert parse_options(options_of(schema, {})).starting.word == EARLIEST
    changed = options_of(schema, {"Assign": '{"orders":[1]}', "startingTimestamp": "5"})
    assert parse_bounded_options(changed).assigned == frozenset([TopicPartition("orders", 1)])
    assert parse_bounded_options(changed).starting.timestamp_ms == 5
    with pytest.raises(ConfigurationError, match=r"no\.such\.key"):
        KafkaGroupSource({"kafka.no.such.key": "1"}).reader(schema)


def test_without_options_and_without_a_table_load_says_what_is_missing() -> None:
    source = KafkaGroupSource({})
    with pytest.raises(ConfigurationError, match=r"kafka\.bootstrap\.servers is missing"):
        source.schema()
    with pytest.raises(ConfigurationError, match=r"kafka\.bootstrap\.servers is missing"):
        source.reader(source_schema(False))


def test_the_schema_of_a_table_contains_no_secret() -> None:
    login = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "me"}
    password = {"kafka.sasl.password": made_up("sasl.password")}
    schema = table_of({**BASE, **login, **password})
    assert password["kafka.sasl.password"] not in schema.json()
    with pytest.raises(ConfigurationError, match=r"does not keep the secret kafka\.sasl\.password: pass it with each query"):
        options_of(schema, {})
    assert parse_options(options_of(schema, password)).settings["sasl.password"] == password["kafka.sasl.password"]
