"""Numbers and defaults on pages are those of the code."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Consumer

from benchmarks import published
from benchmarks.__main__ import KEPT, RUNS
from consumer_coord import GroupConsumer
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.setting_names import LIBRDKAFKA as LIBRDKAFKA_NAMES
from consumer_coord.settings import SETTINGS
from consumer_coord.simulation import checkers
from consumer_coord.simulation.faults import KINDS
from tests.support.docs.blocks import DOCS, ROOT
from tools import reference

#: Defaults of Kafka 4.4 (its pages *Broker Configs* and *Group Configs*) for settings of the embedded Kafka.
KAFKA: Mapping[str, object] = {
    "group.min.session.timeout.ms": 6_000,
    "group.max.session.timeout.ms": 1_800_000,
    "group.initial.rebalance.delay.ms": 3_000,
    "group.max.size": 2**31 - 1,
    "group.consumer.session.timeout.ms": 45_000,
    "group.consumer.heartbeat.interval.ms": 5_000,
    "group.consumer.max.size": 2**31 - 1,
    "group.consumer.assignors": "uniform,range",
    "group.consumer.assignment.interval.ms": 1_000,
    "group.consumer.regex.refresh.interval.ms": 600_000,
    "group.consumer.migration.policy": "bidirectional",
    "offset.metadata.max.bytes": 4_096,
    "offsets.retention.minutes": 10_080,
    "offsets.retention.check.interval.ms": 600_000,
    "offsets.topic.num.partitions": 50,
    "auto.create.topics.enable": True,
    "num.partitions": 1,
    "default.replication.factor": 1,
    "message.max.bytes": 1_048_588,
    "log.retention.bytes": -1,
    "log.segment.bytes": 1 << 30,
    "transaction.max.timeout.ms": 900_000,
    "transactional.id.expiration.ms": 604_800_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transaction.state.log.num.partitions": 50,
    "log.retention.ms": 604_800_000,
    "log.retention.check.interval.ms": 300_000,
    "fetch.max.bytes": 57_671_680,
    "max.incremental.fetch.session.cache.slots": 1_000,
    "replica.selector.class": "",
    "socket.request.max.bytes": 100 << 20,
    "queued.max.request.bytes": -1,
    "max.connections": 2**31 - 1,
    "connections.max.idle.ms": 600_000,
}
#: Settings that Kafka does not have.
NOT_KAFKAS = {"group.consumer.assignment.epochs.enable", "client.metrics.enable"}
#: Defaults of librdkafka 2.16 (its CONFIGURATION.md) for settings that the control plane has, too.
LIBRDKAFKA: Mapping[str, str] = {
    "client.id": "rdkafka",
    "group.protocol": "classic",
    "partition.assignment.strategy": "range,roundrobin",
    "session.timeout.ms": "45000",
    "heartbeat.interval.ms": "3000",
    "max.poll.interval.ms": "300000",
    "enable.auto.commit": "true",
    "auto.commit.interval.ms": "5000",
    "auto.offset.reset": "latest",
    "isolation.level": "read_committed",
    "fetch.min.bytes": "1",
    "fetch.wait.max.ms": "500",
    "fetch.max.bytes": "52428800",
    "max.partition.fetch.bytes": "1048576",
    "queued.max.messages.kbytes": "65536",
    "queued.min.messages": "100000",
    "check.crcs": "false",
    "allow.auto.create.topics": "false",
    "socket.timeout.ms": "60000",
    "socket.connection.setup.timeout.ms": "30000",
    "receive.message.max.bytes": "100000000",
    "reconnect.backoff.ms": "100",
    "reconnect.backoff.max.ms": "10000",
    "retry.backoff.ms": "100",
    "retry.backoff.max.ms": "1000",
    "metadata.max.age.ms": "900000",
    "metadata.recovery.rebootstrap.trigger.ms": "300000",
    "connections.max.idle.ms": "0",
}


def test_the_page_names_each_default_of_the_embedded_kafka_that_differs_from_kafkas() -> None:
    # EmbeddedKafka sets this one for its tests; the coordinator's own default is Kafka's.
    differ = {"group.initial.rebalance.delay.ms"}
    for field in attrs.fields(BrokerConfig):
        name = field.name.replace("_", ".")
        if name not in NOT_KAFKAS and field.default != KAFKA[name]:
            differ.add(name)
    [sentence] = re.findall(r"Defaults that differ from Kafka's: .*?\n\n", (DOCS / "embedded-kafka.md").read_text(), re.DOTALL)
    assert set(re.findall(r"`([\w.]+)`", sentence)) == differ


def test_the_page_names_each_default_that_differs_from_librdkafkas() -> None:
    ours = {one.name: one.default.strip("`") for one in reference.setting_list() if one.name in LIBRDKAFKA}
    assert ours.keys() == LIBRDKAFKA.keys()
    text = (DOCS / "confluent-kafka.md").read_text().partition("**Defaults**")[2].partition("**Assignments**")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]*)`[^|]*\| `([^`]*)` \|", text, re.MULTILINE)
    # librdkafka alone has the setting for keepalive; our own connections always use it.
    assert [row for row in rows if row[0] == "socket.keepalive.enable"] == [("socket.keepalive.enable", "true", "false")]
    told = {name: (here, there) for name, here, there in rows if name in LIBRDKAFKA}
    assert told == {name: (ours[name], there) for name, there in LIBRDKAFKA.items() if ours[name] != there}


def test_the_way_back_to_confluent_kafka_names_the_settings_that_librdkafka_does_not_have() -> None:
    [item] = re.findall(r"\* Remove the settings that only.*?(?=\n\*)", (DOCS / "confluent-kafka.md").read_text(), re.DOTALL)
    assert set(re.findall(r"`([\w.]+)`", item)) == SETTINGS.keys() - LIBRDKAFKA_NAMES


def test_the_page_names_each_method_that_confluent_kafka_does_not_have() -> None:
    page = (DOCS / "confluent-kafka.md").read_text()
    section = page.partition("\n## Additional methods\n")[2].partition("\n## ")[0]
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| \w+(?: \w+)? \|(.*)\|$", section, re.MULTILINE)))
    ours, theirs = ({name for name in dir(kind) if not name.startswith("_")} for kind in (GroupConsumer, Consumer))
    assert sorted(listed) == sorted(ours - theirs)


def test_the_page_has_the_rules_and_the_number_of_faults_of_the_simulation() -> None:
    rules = set(re.findall(r"^``([\w-]+)``", checkers.__doc__ or "", re.MULTILINE))
    table = (DOCS / "simulation.md").read_text().partition("## The rules")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == rules
    tested = (DOCS / "how-it-is-tested.md").read_text()
    assert f"{len(rules)} rules, {len(KINDS)} kinds of faults, more than" in tested
    [scenarios] = re.findall(r"more than (\d+) kept scenarios", tested)
    kept = [*Path(ROOT, "tests", "simulation", "scenarios").glob("*.json")]
    assert int(scenarios) < len(kept) < int(scenarios) + 100


def test_the_figures_of_readme_and_pages_are_those_of_the_benchmarks_files_of_results() -> None:
    assert published.outdated() == []


def test_a_figure_that_was_changed_by_hand_is_set_to_the_measured_one() -> None:
    book = published.Book(ROOT / "benchmarks" / "measured")
    for file in ("README.md", published.PAGE):
        text = (ROOT / file).read_text()
        changed = text.replace("2.62", "9.99").replace("0.17", "0.01")
        assert changed != text
        assert published.renewed(file, changed, book) == text


def test_a_sentence_without_its_figure_is_an_error_that_says_what_to_do() -> None:
    text = (ROOT / "README.md").read_text().replace("librdkafka: 1.58 s", "librdkafka is slower")
    with pytest.raises(published.OutdatedTextError, match="reworded the sentence, change its pattern"):
        published.renewed("README.md", text, published.Book(ROOT / "benchmarks" / "measured"))


def test_the_page_names_benchmarks_that_make_bench_runs(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(re.findall(r"make bench ROWS=(\w+)", (DOCS / "benchmarks.md").read_text()))
    assert named <= set(RUNS)
    # What the page shows is measured by a command that the page has.
    assert {file.stem for file in (ROOT / "benchmarks" / "measured").glob("*.jsonl")} <= named
    for name in (*KEPT, "spark"):
        module = "benchmarks.spark.__main__" if name == "spark" else f"benchmarks.{name}"
        for run in RUNS[name]:
            with pytest.raises(SystemExit):
                importlib.import_module(module).main([*run.split(), "--unknown"])
            assert capsys.readouterr().err.endswith("unrecognized arguments: --unknown\n"), (name, run)
