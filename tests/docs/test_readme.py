"""The programs of the README run unchanged, and ``make release`` makes its links absolute."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from assignors import Cluster, Member
from assignors.testing import check_assignor
from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from tools.release import absolute

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CONSUMER, ASSIGNOR, TEST, PARALLEL, COLUMNS, SPARK = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def first_takes_all() -> Any:
    namespace: dict[str, Any] = {}
    exec(ASSIGNOR, namespace)  # the page's own code
    return namespace["FirstTakesAll"]()


class EnoughError(Exception):
    """Raised to end the loop of the program."""


def test_the_consumer_reads_and_commits_what_it_finished() -> None:
    with EmbeddedKafka(topics={"orders": 3}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

        def produce(*numbers: int) -> None:
            for number in numbers:
                producer.produce("orders", str(number), partition=number % 3)
            assert producer.flush(90) == 0

        def run(last: int) -> list[int]:
            seen: list[int] = []

            def note(partition: int, offset: int, value: bytes) -> None:
                seen.append(int(value))
                if len(seen) == 10:
                    produce(12, 15)
                if int(value) == last:
                    raise EnoughError

            with pytest.raises(EnoughError):
                exec(CONSUMER.replace("localhost:9092", kafka.bootstrap_servers), {"print": note})
            return seen

        produce(*range(10))
        first = run(last=15)
        # The record in which the program ended was not finished; all earlier ones were.
        again = run(last=15)
    assert sorted(set(first)) == [*range(10), 12, 15]
    assert again == [15]


def test_the_way_back_to_confluent_kafka_is_as_the_readme_says() -> None:
    """Without ``assignors=``, and with confluent-kafka's import, the first program reads every order."""
    code = CONSUMER.replace("from assignors import LoadAssignor\n", "").replace(", assignors=[LoadAssignor()]", "")
    code = code.replace("from consumer_coord import GroupConsumer as Consumer", "from confluent_kafka import Consumer")
    assert "consumer_coord" not in code
    assert "Assignor" not in code
    seen: set[int] = set()

    def note(partition: int, offset: int, value: bytes) -> None:
        seen.add(int(value))
        if len(seen) == 10:
            raise EnoughError

    with EmbeddedKafka(topics={"orders": 3}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", str(number), partition=number % 3)
        assert producer.flush(90) == 0
        with pytest.raises(EnoughError):
            exec(code.replace("localhost:9092", kafka.bootstrap_servers), {"print": note})
    assert seen == set(range(10))


def test_the_consumer_ends_with_an_error_that_it_receives() -> None:
    code = CONSUMER.replace('= "earliest"', '= "error"')
    with EmbeddedKafka(topics={"orders": 1}) as kafka, pytest.raises(KafkaException, match=r"(?i)offset"):
        exec(code.replace("localhost:9092", kafka.bootstrap_servers), {})


@pytest.mark.parametrize("program", [PARALLEL, COLUMNS], ids=["parallel", "columns"])
def test_the_programs_that_continue_the_first_one_read_every_order(program: str) -> None:
    """Each handler prints one order; a batch of columns prints its number of rows."""
    printed: list[tuple[Any, ...]] = []

    def note(*parts: Any) -> None:
        printed.append(parts)
        if len(printed) == 10:
            raise EnoughError

    with EmbeddedKafka(topics={"orders": 3}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", str(number), partition=number % 3)
        assert producer.flush(90) == 0
        config = {"bootstrap.servers": kafka.bootstrap_servers, "auto.offset.reset": "earliest"}
        with pytest.raises(EnoughError) if program == PARALLEL else contextlib.nullcontext():
            exec(program, {"config": config, "print": note})
    if program == PARALLEL:
        assert {int(value) for _, _, value in printed} == set(range(10))
    else:
        assert sum(rows for (rows,) in printed) == 10


def test_the_assignor_passes_the_kit_for_assignors() -> None:
    check_assignor(first_takes_all(), examples=40, sizes=[(10, 100)])


def test_the_assignor_gives_each_topic_to_its_first_subscriber() -> None:
    members = {"b": Member(["orders", "bills"]), "a": Member(["orders"]), "c": Member([])}
    plan = first_takes_all().assign(Cluster({"orders": 3, "bills": 2, "other": 1}), members)
    assert plan == {"a": {"orders": [0, 1, 2]}, "b": {"bills": [0, 1]}, "c": {}}


def test_the_assignor_runs_in_a_group() -> None:
    with EmbeddedKafka(topics={"orders": 7}) as kafka:
        config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "readme"}
        with GroupConsumer(config, assignors=[first_takes_all()]) as consumer:
            consumer.subscribe(["orders"])
            for _ in range(300):
                consumer.poll(0.1)
                if consumer.assignment():
                    break
            assert len(consumer.assignment()) == 7


def test_the_test_passes(tmp_path: Path) -> None:
    (tmp_path / "test_readme_example.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_every_extra_is_named() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert not [name for name in extras - {"dev", "docs"} if f"consumer-coord[{name}]" not in README]


def test_the_first_page_names_the_extras() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    page = (ROOT / "docs" / "start.md").read_text()
    (listed,) = re.findall(r"The other extras are (.*?)\.", page, re.DOTALL)
    assert {*re.findall(r"`(\w+)`", listed), "testing"} == extras - {"dev", "docs"}


def test_the_makefile_has_the_targets_of_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"`make ([\w-]+)", README)
    assert named
    for name in named:
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), name


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    """Each row links to a section of the benchmarks, and its figures are in that section, or among the slower cases."""
    (table,) = re.findall(r"^\| measured .*?(?=\n\n)", README, re.MULTILINE | re.DOTALL)
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    sections = {
        title.lower(): body for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    }
    for row in table.splitlines()[2:]:
        (section,) = re.findall(r"docs/benchmarks\.md#([\w-]+)", row)
        page = sections[section] + sections["slower than the peer"]
        figures = re.findall(r"(?<![-\w.])\d[\d.,]*\d(?= (?:s|ns|times|records/s))", row)
        assert figures, row
        assert [figure for figure in figures if figure not in page] == [], row


def test_a_release_has_no_relative_links() -> None:
    made = absolute(README, "https://forge.example/team/project/", "1.2.0")
    targets = re.findall(r"\]\(([^)]+)\)", made) + re.findall(r'(?:src|srcset)="([^"]+)"', made)
    assert len(targets) == len(re.findall(r"\]\(|src", README))
    assert not [target for target in targets if not target.startswith("https://")]
    assert "](https://forge.example/team/project/blob/v1.2.0/docs/start.md)" in made
    assert 'srcset="https://forge.example/team/project/raw/v1.2.0/docs/img/watch-dark.png"' in made
    assert absolute("[a](#b) [c](https://d.example/e) ![f](g.svg)", "https://h.example", "1") == (
        "[a](#b) [c](https://d.example/e) ![f](https://h.example/raw/v1/g.svg)"
    )
