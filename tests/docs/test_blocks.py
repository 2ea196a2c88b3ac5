"""Every code block of the documentation is run, or listed below with the reason why it is not."""

from __future__ import annotations

import json
import logging
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trustme
from confluent_kafka import Producer
from prometheus_client import REGISTRY
from starlette.testclient import TestClient

from assignors import RangeAssignor
from consumer_coord import GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.cli import _by_command, build_parser, main
from consumer_coord.monitoring.prometheus import CoordinatorCollector
from tests.support.docs.blocks import DOCS, ROOT, Block, blocks_of, needs_spark, normal, pages, run_page, sooner
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

#: Pages whose blocks are separate programs; a block of any other page continues the block before.
APART = frozenset({"start.md"})
#: Ports and files of a page that are missing or different on this machine.
INSTEAD = {
    "start_http_server(9000, addr": "start_http_server(0, addr",
    "seeds=200": "seeds=5",
    # A loop that SIGTERM ends.
    "while not stop.is_set():": "while nothing_printed():",
    # confluent-kafka's registry in memory.
    'SchemaRegistryClient({"url": "http://localhost:8081"})': 'SchemaRegistryClient.new_client({"url": "mock://pages"})',
}
#: Commands and flags of ``sh`` blocks that run until they are stopped; other tests run them.
SERVERS = frozenset({"embedded-kafka", "watch", "serve-metrics", "--watch"})

ALL = {str(page.relative_to(DOCS)): blocks_of(page) for page in pages()}


class MyAssignor(RangeAssignor):
    """The assignor ``my_module:MyAssignor`` of a page."""

    name = "mine"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Start a broker with forty orders, and a group that has read some of them."""
    with EmbeddedKafka(topics={"orders": 4}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(40):
            producer.produce("orders", f"order {number}".encode(), key=b"customer", partition=number % 4)
        assert producer.flush(90) == 0
        yield running


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Remove what a page leaves behind in this process."""
    logger = logging.getLogger("consumer_coord")
    kept = [(one, one.level, list(one.handlers)) for one in (logger, logging.getLogger())]
    monkeypatch.setitem(sys.modules, "my_module", sys.modules[__name__])
    monkeypatch.setenv("KAFKA_PASSWORD", "made up for the page")
    # A reader saves the site's sample programs next to their own.
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "old-checkpoint")
    (tmp_path / "offsets.csv").write_text("orders,0,10\norders,1,10\n")
    yield
    for one, level, handlers in kept:
        one.setLevel(level)
        one.handlers[:] = handlers


def write_checkpoint(directory: Path) -> None:
    """Write the checkpoint of a query with Spark's Kafka source: a finished batch, and one that was begun."""
    for number, offset in ((0, 10), (1, 20)):
        ends = {"orders": {str(partition): offset for partition in range(4)}}
        lines = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}}), json.dumps(ends)]
        (directory / "offsets").mkdir(parents=True, exist_ok=True)
        (directory / "offsets" / str(number)).write_text("\n".join(lines))
    (directory / "commits").mkdir()
    (directory / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (directory / "commits" / ".0.crc").write_bytes(b"crc")


def is_pytest(block: Block) -> bool:
    tests = re.search(r"^def test_\w+\(.*\b(embedded_)?kafka\b", block.code, re.MULTILINE)
    return is_conftest(block) or asks_for_security(block) or tests is not None


def is_conftest(block: Block) -> bool:
    return "def embedded_kafka_options" in block.code


def asks_for_security(block: Block) -> bool:
    """Return whether a block configures a Kafka that only ``--kafka VERSION`` starts."""
    return "def kafka_options" in block.code


def is_run(block: Block) -> bool:
    return block.language == "python" and not is_pytest(block) and not needs_spark(block)


@pytest.mark.parametrize("page", [page for page, blocks in ALL.items() if any(map(is_run, blocks))])
@pytest.mark.usefixtures("around")
def test_the_python_of_a_page_runs(page: str, kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A page that replaces this name replaces it until the end of the test only.
    monkeypatch.setattr("confluent_kafka.Consumer", confluent_kafka.Consumer)
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    instead = {**INSTEAD, "/etc/kafka/ca.pem": str(authority)}
    namespace = run_page(ALL[page], kafka.bootstrap_servers, is_run, apart=page in APART, instead=instead)
    try:
        for name, value in namespace.items():
            if name.startswith("test_"):
                value()
        if "serve" in namespace:
            serves_until_stopped(namespace, kafka.bootstrap_servers)
        if "app" in namespace:
            serves_while_it_consumes(namespace["app"])
    finally:
        for value in namespace.values():
            if isinstance(value, CoordinatorCollector):
                REGISTRY.unregister(value)
        for value in namespace.values():
            if isinstance(value, GroupConsumer):
                value.close()


def serves_until_stopped(namespace: dict[str, Any], bootstrap_servers: str) -> None:
    """Check that the loop of the page on operating ends when it is stopped."""
    ending = namespace["threading"].Event()
    seen = []

    def work(message: Any) -> None:
        seen.append(message.value())
        ending.set()

    config = {"bootstrap.servers": bootstrap_servers, "group.id": "serving", "auto.offset.reset": "earliest"}
    namespace["serve"](config, ["orders"], work, ending)
    assert seen


def serves_while_it_consumes(app: Any) -> None:
    """Check that the service of the page on asyncio reports the records it has read, and leaves its group at its end."""
    with TestClient(app) as client:
        eventually(lambda: client.get("/totals").json() == {"customer": 40}, "the forty orders were not counted")
        assert client.get("/healthz").json() == {"consuming": True}
    assert app.state.working.cancelled()


def test_the_tests_of_the_pages_pass(tmp_path: Path) -> None:
    blocks = [one for blocks in ALL.values() for one in blocks if is_pytest(one)]
    for block in blocks:
        if asks_for_security(block):
            continue
        name = "conftest" if is_conftest(block) else f"test_{block.page.removesuffix('.md')}_{block.line}"
        (tmp_path / f"{name}.py").write_text(sooner(block.code))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stdout
    tests = [block for block in blocks if not is_conftest(block) and not asks_for_security(block)]
    assert int(ran.stdout.rpartition(" passed")[0].split()[-1]) >= len(tests), ran.stdout


def test_a_page_that_asks_for_security_is_for_apache_kafka(tmp_path: Path) -> None:
    (block,) = [one for blocks in ALL.values() for one in blocks if asks_for_security(one)]
    (tmp_path / "conftest.py").write_text(block.code)
    (tmp_path / "test_it.py").write_text("def test_it(kafka):\n    raise AssertionError('not skipped')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert "the embedded Kafka has no TLS, SASL and ACLs: run this test with --kafka 4.4.0" in ran.stdout


def lines_of(block: Block) -> list[str]:
    """Return the commands of a block: continued lines joined, no prompts, no comments; in a listing, lines with a prompt."""
    joined = block.code.replace("\\\n", " ")
    lines = [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ") or block.language == "sh"]
    if block.language == "" and "$ " not in joined:
        lines = [line for line in joined.splitlines() if re.match(r"(consumer-coord|python -m consumer_coord|make|pip) ", line)]
    return [bare for line in lines if (bare := re.sub(r"\s+#.*", "", line).strip()) and not bare.startswith("#")]


def arguments_of(line: str) -> list[str] | None:
    """Return the arguments that a line passes to ``consumer-coord``; None if the line runs another program."""
    words = shlex.split(re.sub(r"\s+>\s+\S+$", "", line))
    for begin in (["consumer-coord"], ["python", "-m", "consumer_coord"]):
        if words[: len(begin)] == begin:
            return words[len(begin) :]
    return None


TYPED = [block for blocks in ALL.values() for block in blocks if block.language in ("sh", "")]
SHELL = [(block, line) for block in TYPED for line in lines_of(block)]


@pytest.mark.parametrize(("block", "line"), SHELL, ids=[f"{block}-{number}" for number, (block, _) in enumerate(SHELL)])
def test_the_commands_of_pages_are_valid(block: Block, line: str) -> None:
    arguments = arguments_of(line)
    if arguments is not None:
        build_parser().parse_args(_by_command(arguments))
        return
    words = shlex.split(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        if words[2] == "confluent-kafka[avro,schemaregistry]":
            return
        match = re.fullmatch(r"consumer-coord(?:\[([\w,]+)\])?", words[2])
        assert match is not None, line
        assert set((match[1] or "spark").split(",")) <= set(extras), line
    elif words[0] == "python":
        assert (ROOT / "examples" / words[1]).is_file(), line
    else:
        assert words[0] == "pytest", f"{block}: no test knows {line!r}"


COMMANDS = [
    (block, line)
    for block, line in SHELL
    if block.language == "sh" and (words := arguments_of(line)) is not None and not SERVERS & set(words)
]


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=[f"{block}-{number}" for number, (block, _) in enumerate(COMMANDS)])
@pytest.mark.usefixtures("around")
def test_the_commands_of_a_page_run(block: Block, line: str, kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = arguments_of(line)
    assert arguments is not None
    if arguments[0] == "simulate":
        # The groups of the pages take minutes; a small group runs the same code.
        arguments = [*arguments, "--members", "4", "--topics", "orders:8"]
    else:
        with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"}) as consumer:
            consumer.subscribe(["orders"])
            while not consumer.assignment():
                consumer.poll(0.1)
            rows = consumer.assignment()
            for row in rows:
                row.offset = 1
            consumer.commit(offsets=rows, asynchronous=False)
        arguments = [word.replace("localhost:9092", kafka.bootstrap_servers) for word in arguments]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out
    blocks = ALL[block.page]
    after = blocks[blocks.index(block) + 1] if block is not blocks[-1] else None
    if after is not None and after.language == "text":
        assert block.figures_differ, "a simulation's duration varies"
        assert shape(out) == shape(after.code)


def shape(text: str) -> list[str]:
    """Return the part of a line that does not depend on the group: the words up to the first figure."""
    return [line.partition(" N")[0] for line in normal(text.splitlines(), figures_differ=True)]


def test_every_block_has_a_language_that_is_looked_at() -> None:
    languages = {block.language for blocks in ALL.values() for block in blocks}
    assert languages <= {"python", "sh", "text", "toml", "mermaid", "{eval-rst}", ""}
    for blocks in ALL.values():
        for block in blocks:
            if block.language == "toml":
                tomllib.loads(block.code)
            if block.language == "text":
                before = blocks[blocks.index(block) - 1]
                assert before.language in ("python", "sh"), f"{block}: no command prints it"


def test_the_json_of_the_commands_page_is_json() -> None:
    (found,) = (block for block in ALL["commands.md"] if block.code.startswith('{"groups"'))
    assert json.loads(found.code)["groups"]


def test_no_example_serves_metrics_to_other_machines() -> None:
    lines = (line for blocks in ALL.values() for block in blocks for line in block.code.splitlines())
    calls = [line for line in lines if "start_http_server(" in line]
    assert calls
    # Without the variable that a pod sets, the address is this machine's own.
    ours = ('addr="127.0.0.1")', 'addr=os.environ.get("POD_IP", "127.0.0.1"))')
    assert all(line.endswith(ours) for line in calls)
