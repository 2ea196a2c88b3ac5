"""Rows of Java: Kafka's command line tools, and its clients."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consumer_coord.testing.jars import KAFKA, ensure_jars
from consumer_coord.testing.jvm import java_command
from consumer_coord.testing.kafka_cluster import unique_name
from tests.support.jar_sets import KAFKA_TOOLS
from tests.support.java import JavaProgram, ToolJars, run_kafka_tool
from tests.support.line_process import LineProcess
from tests.support.waiting import eventually
from tools.strangers.rows import TOOLS, expect, new_topic, row

_DEADLINE_S = 240
_WAIT_S = 60.0


@functools.cache
def _jars() -> ToolJars:
    return ToolJars(ensure_jars(KAFKA), ensure_jars(KAFKA_TOOLS))


def _ran(main: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    ran = run_kafka_tool(_jars(), main, *arguments, stdin=stdin)
    if ran.returncode != 0:
        raise AssertionError(f"{main} ended with code {ran.returncode}: {_reason(ran.stderr + ran.stdout)}")
    return ran


def _tool(main: str, *arguments: str, stdin: str | None = None) -> str:
    """Run a tool, and return its standard output; raise AssertionError if it fails."""
    return _ran(main, *arguments, stdin=stdin).stdout


def _reason(said: str) -> str:
    """Return the line of a tool's output that has the error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"Exception|Error|ERROR", line) and not line.startswith("at ")]
    # The last cause says more than the ExecutionException around it.
    found = next((line for line in reversed(named) if line.startswith("Caused by")), (named or lines or ["no reason given"])[0])
    return re.sub(r"^\[.*?\] ERROR \S+ - ", "", found)


def _produce(servers: str, topic: str, lines: str) -> None:
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    _tool("ConsoleProducer", "--bootstrap-server", servers, "--topic", topic, *keys, stdin=lines)


def _consume(servers: str, topic: str, count: int, *options: str) -> list[str]:
    limits = ("--max-messages", str(count), "--timeout-ms", "30000", "--from-beginning")
    said = _tool("consumer.ConsoleConsumer", "--bootstrap-server", servers, "--topic", topic, *limits, *options)
    return said.splitlines()


@contextmanager
def _member(servers: str, topic: str, group: str, *options: str) -> Iterator[LineProcess]:
    """kafka-console-consumer, as a member of a group, which has read a record."""
    jars = _jars()
    command = [*java_command(jars.libs), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars.libs}/*:{jars.tools}/*"]
    command += ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", servers, "--topic", topic]
    command += ["--group", group, "--from-beginning", *options]
    process = LineProcess(command, name="kafka-console-consumer")
    try:
        process.receive(_WAIT_S)
        yield process
        process.process.terminate()
        process.wait(_WAIT_S)
    finally:
        if process.process.poll() is None:
            process.kill()


@row(TOOLS, "kafka-topics: create, list, describe, alter, delete", _DEADLINE_S)
def topics(servers: str) -> None:
    """Each action of the tool."""
    topic, at = unique_name("topic"), ("--bootstrap-server", servers)
    settings = ("--config", "cleanup.policy=compact", "--config", "segment.bytes=1048576")
    _tool("TopicCommand", *at, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3", *settings)
    assert topic in _tool("TopicCommand", *at, "--list").split()
    _tool("TopicCommand", *at, "--alter", "--topic", topic, "--partitions", "3")
    said = _tool("TopicCommand", *at, "--describe", "--topic", topic)
    assert "PartitionCount: 3\tReplicationFactor: 3" in said, said
    assert "cleanup.policy=compact" in said, said
    assert "segment.bytes=1048576" in said, said
    expect(said.count("Leader: "), 3, "partitions with a leader")
    _tool("TopicCommand", *at, "--delete", "--topic", topic)


@row(TOOLS, "kafka-configs: topics", _DEADLINE_S)
def topic_configs(servers: str) -> None:
    """Change and reset a topic's settings."""
    topic = new_topic(servers)
    at = ("--bootstrap-server", servers, "--entity-type", "topics", "--entity-name", topic)
    _tool("ConfigCommand", *at, "--alter", "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    _tool("ConfigCommand", *at, "--alter", "--delete-config", "cleanup.policy")
    said = _tool("ConfigCommand", *at, "--describe")
    assert "retention.ms=5000" in said, said
    assert "cleanup.policy" not in said, said
    said = _tool("ConfigCommand", *at, "--describe", "--all")
    assert "cleanup.policy=delete" in said, said


@row(TOOLS, "kafka-configs: brokers", _DEADLINE_S)
def broker_configs(servers: str) -> None:
    """Change a setting of all brokers."""
    at = ("--bootstrap-server", servers, "--entity-type", "brokers", "--entity-default")
    _tool("ConfigCommand", *at, "--alter", "--add-config", "message.max.bytes=2000000")
    eventually(
        lambda: "message.max.bytes=2000000" in _tool("ConfigCommand", *at, "--describe"),
        "the setting",
        within_s=_WAIT_S,
        shows=lambda: _tool("ConfigCommand", *at, "--describe"),
    )
    _tool("ConfigCommand", *at, "--alter", "--delete-config", "message.max.bytes")


@row(TOOLS, "kafka-configs: groups", _DEADLINE_S)
def group_configs(servers: str) -> None:
    """Change a setting of a group."""
    at = ("--bootstrap-server", servers, "--entity-type", "groups", "--entity-name", unique_name("group"))
    _tool("ConfigCommand", *at, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in _tool("ConfigCommand", *at, "--describe")


@row(TOOLS, "kafka-configs: quotas of clients", _DEADLINE_S)
def quotas(servers: str) -> None:
    """Set a quota, and describe it."""
    at = ("--bootstrap-server", servers, "--entity-type", "clients", "--entity-name", unique_name("client"))
    _tool("ConfigCommand", *at, "--alter", "--add-config", "consumer_byte_rate=1000000")
    assert "consumer_byte_rate=1000000.0" in _tool("ConfigCommand", *at, "--describe")


@row(TOOLS, "kafka-client-metrics", _DEADLINE_S)
def client_metrics(servers: str) -> None:
    """Make a subscription, list, describe and delete it."""
    name = unique_name("metrics")
    at = ("--bootstrap-server", servers)
    _tool("ClientMetricsCommand", *at, "--alter", "--name", name, "--metrics", "org.apache.kafka.", "--interval", "30000")
    assert name in _tool("ClientMetricsCommand", *at, "--list").split()
    assert "interval.ms=30000" in _tool("ClientMetricsCommand", *at, "--describe", "--name", name)
    _tool("ClientMetricsCommand", *at, "--delete", "--name", name)


@row(TOOLS, "kafka-console-producer, kafka-console-consumer", _DEADLINE_S)
def console(servers: str) -> None:
    """Write and read records with keys, also in a group."""
    topic, group = new_topic(servers), unique_name("group")
    _produce(servers, topic, "a:1\nb:2\n")
    keys = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    expect(_consume(servers, topic, 2, *keys), ["Offset:0\ta\t1", "Offset:1\tb\t2"], "records")
    expect(_consume(servers, topic, 2, "--group", group), ["1", "2"], "records")
    _produce(servers, topic, "c:3\n")
    expect(_consume(servers, topic, 1, "--group", group), ["3"], "records after the committed offset")


@row(TOOLS, "kafka-console-consumer: read committed", _DEADLINE_S)
def read_committed(servers: str) -> None:
    """Read up to the beginning of an open transaction."""
    from confluent_kafka import Producer

    topic = new_topic(servers)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": unique_name("txn")})
    producer.init_transactions(30)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction), (b"open", None)):
        producer.begin_transaction()
        producer.produce(topic, value)
        expect(producer.flush(30), 0, "records that were not acknowledged")
        if end is not None:
            end(30)
    expect(_consume(servers, topic, 1, "--isolation-level", "read_committed"), ["committed"], "committed records")
    expect(_consume(servers, topic, 3), ["aborted", "committed", "open"], "all records")
    producer.abort_transaction(30)


def _consumer_groups(servers: str, *options: str) -> None:
    """Describe a group with a member, then reset and delete its offsets."""
    topic, group = new_topic(servers, 2), unique_name("group")
    at, of, command = ("--bootstrap-server", servers), ("--group", group), "consumer.group.ConsumerGroupCommand"

    def tool(*arguments: str) -> str:
        return _tool(command, *at, *arguments)

    def described(*arguments: str) -> list[dict[str, str]]:
        said = tool("--describe", *of, *arguments)
        heads, *rows = [line.split() for line in said.splitlines() if line.strip()] or [[]]
        # During a rebalance, a line says so in place of the table.
        return [dict(zip(heads, words, strict=False)) for words in rows] if heads[:1] == ["GROUP"] else []

    _produce(servers, topic, "a:1\nb:2\nc:3\nd:4\n")
    with _member(servers, topic, group, "--consumer-property", "auto.commit.interval.ms=100", *options):
        # The member commits in the background.
        eventually(
            lambda: sum(int(one["CURRENT-OFFSET"]) for one in described() if one["CURRENT-OFFSET"] != "-") == 4,
            "committed offsets",
            within_s=_WAIT_S,
            shows=lambda: tool("--describe", *of),
        )
        (member,) = described("--members", "--verbose")
        expect(member["#PARTITIONS"], "2", "partitions of the member")
        assert "Stable" in described("--state")[0].values()
        refused = _ran(command, *at, "--reset-offsets", *of, "--topic", topic, "--to-earliest", "--execute")
        assert "inactive" in refused.stdout + refused.stderr, refused
    eventually(
        lambda: any("Empty" in one.values() for one in described("--state")),
        "an empty group",
        within_s=_WAIT_S,
        shows=lambda: tool("--describe", *of, "--state"),
    )
    assert group in tool("--list").split()
    tool("--reset-offsets", *of, "--topic", topic, "--to-earliest", "--execute")
    expect(sum(int(one["CURRENT-OFFSET"]) for one in described()), 0, "offsets after the reset")
    tool("--reset-offsets", *of, "--all-topics", "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    exported = tool("--reset-offsets", *of, "--all-topics", "--to-latest", "--dry-run", "--export")
    lines = [line for line in csv.reader(io.StringIO(exported)) if line[:1] == [topic]]
    expect(sum(int(line[-1]) for line in lines), 4, "exported offsets")
    tool("--delete-offsets", *of, "--topic", topic)
    tool("--delete", *of)
    assert group not in tool("--list").split()


@row(TOOLS, "kafka-consumer-groups: a classic group", _DEADLINE_S)
def classic_group(servers: str) -> None:
    """Describe, reset and delete, with and without members."""
    _consumer_groups(servers, "--consumer-property", "group.protocol=classic")


@row(TOOLS, "kafka-consumer-groups: a group of the consumer protocol", _DEADLINE_S)
def consumer_group(servers: str) -> None:
    """Describe, reset and delete, with and without members."""
    _consumer_groups(servers, "--consumer-property", "group.protocol=consumer")


@row(TOOLS, "kafka-groups", _DEADLINE_S)
def groups(servers: str) -> None:
    """List groups of each type."""
    topic, name = new_topic(servers), unique_name("group")
    _produce(servers, topic, "a:1\n")
    _consume(servers, topic, 1, "--group", name, "--consumer-property", "group.protocol=classic")
    listed = [line.split() for line in _tool("GroupsCommand", "--bootstrap-server", servers, "--list").splitlines()]
    expect([line for line in listed if line[:1] == [name]], [[name, "Classic", "consumer"]], "groups")


@row(TOOLS, "kafka-transactions: list, describe, describe producers", _DEADLINE_S)
def transactions(servers: str) -> None:
    """Show an open transaction."""
    from confluent_kafka import Producer

    topic, name = new_topic(servers), unique_name("txn")
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    expect(producer.flush(30), 0, "records that were not acknowledged")
    at = ("--bootstrap-server", servers)
    listed = [line.split() for line in _tool("TransactionsCommand", *at, "list").splitlines()]
    expect([line[-1] for line in listed if line[:1] == [name]], ["Ongoing"], "states")
    said = _tool("TransactionsCommand", *at, "describe", "--transactional-id", name)
    assert f"{topic}-0" in said, said
    said = _tool("TransactionsCommand", *at, "describe-producers", "--topic", topic, "--partition", "0")
    heads, values = (line.split() for line in said.splitlines() if line.strip())
    expect(dict(zip(heads, values, strict=False))["CurrentTransactionStartOffset"], "0", "start of the transaction")
    producer.commit_transaction(30)


@row(TOOLS, "kafka-transactions: find and abort hanging", _DEADLINE_S)
def hanging(servers: str) -> None:
    """Look for a transaction of a partition that its coordinator does not know, and write a marker."""
    from confluent_kafka import Producer

    topic = new_topic(servers)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": unique_name("txn")})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    expect(producer.flush(30), 0, "records that were not acknowledged")
    at, of = ("--bootstrap-server", servers), ("--topic", topic, "--partition", "0")
    found = _tool("TransactionsCommand", *at, "find-hanging", *of, "--max-transaction-timeout", "0")
    assert topic not in found, found
    _tool("TransactionsCommand", *at, "abort", *of, "--start-offset", "0")
    expect(_consume(servers, topic, 1), ["value"], "records")
    said = _tool("TransactionsCommand", *at, "describe-producers", *of)
    heads, values = (line.split() for line in said.splitlines() if line.strip())
    expect(dict(zip(heads, values, strict=False))["CurrentTransactionStartOffset"], "None", "start of the transaction")


@row(TOOLS, "kafka-delete-records, kafka-get-offsets", _DEADLINE_S)
def delete_records(servers: str) -> None:
    """Delete the first records, and ask for offsets."""
    topic = new_topic(servers)
    _produce(servers, topic, "a:1\nb:2\nc:3\nd:4\n")
    with tempfile.TemporaryDirectory() as directory:
        wanted = Path(directory, "offsets.json")
        partitions = [{"topic": topic, "partition": 0, "offset": 2}]
        wanted.write_text(json.dumps({"version": 1, "partitions": partitions}))
        said = _tool("DeleteRecordsCommand", "--bootstrap-server", servers, "--offset-json-file", str(wanted))
    assert "low_watermark: 2" in said, said
    for time, offset in (("earliest", 2), ("latest", 4), ("max-timestamp", 3), ("earliest-local", 2)):
        said = _tool("GetOffsetShell", "--bootstrap-server", servers, "--topic", topic, "--time", time)
        found = int(said.split()[0].rpartition(":")[2])
        if time != "max-timestamp":  # of equal timestamps, it is the first
            expect(found, offset, time)


@row(TOOLS, "kafka-verifiable-producer, kafka-verifiable-consumer", _DEADLINE_S)
def verifiable(servers: str) -> None:
    """Run the programs of Kafka's system tests."""
    topic, group = new_topic(servers, 2), unique_name("group")
    at = ("--bootstrap-server", servers, "--topic", topic)
    said = _tool("VerifiableProducer", *at, "--max-messages", "500", "--acks", "-1")
    assert '"acked":500' in said, said[-500:]
    said = _tool("VerifiableConsumer", *at, "--group-id", group, "--max-messages", "500", "--reset-policy", "earliest")
    assert '"name":"shutdown_complete"' in said, said[-500:]
    committed = re.findall(r'"name":"offsets_committed".*?"offset":(\d+)', said)
    assert committed, said[-500:]


@row(TOOLS, "kafka-producer-perf-test (also transactional), kafka-consumer-perf-test", _DEADLINE_S)
def performance(servers: str) -> None:
    """Write and read 20,000 records."""
    topic = new_topic(servers, 2)
    sizes = ("--topic", topic, "--num-records", "10000", "--record-size", "100", "--throughput", "-1")
    at = ("--producer-props", f"bootstrap.servers={servers}")
    assert "10000 records sent" in _tool("ProducerPerformance", *sizes, *at)
    timed = ("--transactional-id", unique_name("txn"), "--transaction-duration-ms", "100")
    assert "10000 records sent" in _tool("ProducerPerformance", *sizes, *at, *timed)
    options = ("--bootstrap-server", servers, "--topic", topic, "--messages", "20000", "--timeout", "30000")
    said = _tool("ConsumerPerformance", *options)
    read = [line.split(", ") for line in said.splitlines() if line.startswith("20")]
    assert int(read[0][4]) >= 20_000, said


@row(TOOLS, "kafka-broker-api-versions, kafka-cluster, kafka-features", _DEADLINE_S)
def cluster(servers: str) -> None:
    """Show what the cluster is and can do."""
    at = ("--bootstrap-server", servers)
    expect(_tool("BrokerApiVersionsCommand", *at).count("Produce(0)"), 3, "brokers")
    assert "Cluster ID:" in _tool("ClusterTool", "cluster-id", *at)
    expect(_tool("ClusterTool", "list-endpoints", *at).count("unfenced"), 3, "brokers")
    assert "transaction.version" in _tool("FeatureCommand", *at, "describe")


@row(TOOLS, "kafka-log-dirs", _DEADLINE_S)
def log_dirs(servers: str) -> None:
    """Show the size of a topic's logs."""
    topic = new_topic(servers)
    _produce(servers, topic, "a:1\n")
    said = _tool("LogDirsCommand", "--bootstrap-server", servers, "--describe", "--topic-list", topic)
    (described,) = (json.loads(line) for line in said.splitlines() if line.startswith("{"))
    sizes = [one["size"] for broker in described["brokers"] for log in broker["logDirs"] for one in log["partitions"]]
    assert max(sizes) > 0, said


@row(TOOLS, "kafka-leader-election", _DEADLINE_S)
def leader_election(servers: str) -> None:
    """Elect the preferred leader, who leads already."""
    topic = new_topic(servers)
    options = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    said = _tool("LeaderElectionCommand", "--bootstrap-server", servers, *options)
    assert "Valid replica already elected" in said, said


@row(TOOLS, "kafka-reassign-partitions", _DEADLINE_S)
def reassign(servers: str) -> None:
    """Give a partition's replicas another order."""
    from confluent_kafka.admin import AdminClient

    topic = new_topic(servers)
    admin = AdminClient({"bootstrap.servers": servers})
    replicas = admin.list_topics(topic, timeout=30).topics[topic].partitions[0].replicas
    at = ("--bootstrap-server", servers)
    with tempfile.TemporaryDirectory() as directory:
        plan = Path(directory, "plan.json")
        wanted = {"topic": topic, "partition": 0, "replicas": [*replicas[1:], replicas[0]]}
        plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
        _tool("reassign.ReassignPartitionsCommand", *at, "--reassignment-json-file", str(plan), "--execute")
        _tool("reassign.ReassignPartitionsCommand", *at, "--list")
        eventually(
            lambda: admin.list_topics(topic, timeout=30).topics[topic].partitions[0].replicas == wanted["replicas"],
            "the new order of the replicas",
            within_s=_WAIT_S,
        )


@row(TOOLS, "kafka-metadata-quorum", _DEADLINE_S)
def quorum(servers: str) -> None:
    """Show the controllers."""
    assert "LeaderId" in _tool("MetadataQuorumCommand", "--bootstrap-server", servers, "describe", "--status")


@row(TOOLS, "kafka-console-share-consumer", _DEADLINE_S)
def share_group(servers: str) -> None:
    """Read a record in a share group."""
    topic, group = new_topic(servers), unique_name("share")
    jars = _jars()
    command = [*java_command(jars.libs), "-Xmx128m", "-cp", f"{jars.libs}/*:{jars.tools}/*"]
    command += ["org.apache.kafka.tools.consumer.ConsoleShareConsumer", "--bootstrap-server", servers, "--topic", topic]
    command += ["--group", group, "--max-messages", "1", "--timeout-ms", "40000"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for number in range(8):
            # A share group starts at the end of the topic, so write until it reads.
            _produce(servers, topic, f"k:{number}\n")
            if reader.poll() is not None:
                break
        said, errors = reader.communicate(timeout=_WAIT_S)
    finally:
        reader.kill()
    assert said.strip(), _reason(errors)


@row(TOOLS, "clients: admin, producer, consumer, transactions", _DEADLINE_S)
def clients(servers: str) -> None:
    """Each call that the program of the tests makes."""
    JavaProgram(_jars().libs, "EmbeddedKafkaClients").run(servers)
