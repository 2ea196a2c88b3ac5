"""The documentation's claims about other clients name tests and benchmarks that exist."""

from __future__ import annotations

import inspect
import re

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as RoundRobinOfAioKafka
from kafka import KafkaConsumer

from tests.support.docs.blocks import DOCS, ROOT, pages


def test_the_evidence_of_each_claim_exists() -> None:
    (table,) = re.findall(r"\| shown by \|\n(.*?)\n\n", (DOCS / "other-clients.md").read_text() + "\n\n", re.DOTALL)
    for line in table.splitlines()[1:]:
        named = re.findall(r"`((?:tests|benchmarks)/[\w./]+)`", line)
        assert named, line
        assert not [name for name in named if not (ROOT / name).exists()], line


def test_every_test_and_benchmark_that_a_page_names_is_there() -> None:
    for page in pages():
        text = page.read_text()
        files = re.findall(r"`((?:tests|benchmarks|examples|tools)/[\w./]+\.py)`", text)
        modules = [
            name.replace(".", "/") for name in re.findall(r"python -m ((?:tests|benchmarks|tools|examples)[\w.]*)", text)
        ]
        found = [*files, *(f"{name}.py" if (ROOT / f"{name}.py").exists() else f"{name}/__main__.py" for name in modules)]
        assert not [name for name in found if not (ROOT / name).is_file()], page.name


def test_default_assignors_of_other_clients() -> None:
    """docs/other-clients.md relies on these defaults."""
    offered = [kind.name for kind in KafkaConsumer.DEFAULT_CONFIG["partition_assignment_strategy"]]
    assert offered == ["range", "roundrobin"]
    parameter = inspect.signature(AIOKafkaConsumer).parameters["partition_assignment_strategy"]
    assert parameter.default == (RoundRobinOfAioKafka,)
