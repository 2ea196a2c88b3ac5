"""What the README shows works as it stands, and a package index shows it whole."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from assignors import Cluster, Member, verify
from assignors.testing import check_assignor
from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def by_capacity(**arguments: Any) -> Any:
    namespace: dict[str, Any] = {}
    exec(snippets()[1], namespace)  # the page's own code
    return namespace["ByCapacity"](**arguments)


def test_the_consumer_of_the_readme_reads_and_commits() -> None:
    class EnoughError(Exception):
        pass

    printed: list[tuple[int, int, bytes]] = []

    def note(*told: Any) -> None:
        printed.append(told)
        if len(printed) == 12:
            raise EnoughError

    with EmbeddedKafka(topics={"orders": 3}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", str(number), partition=number % 3)
        assert producer.flush(30) == 0
        code = snippets()[0].replace("localhost:9092", kafka.bootstrap_servers)
        # Two more come when the first ten are committed, and end the program's loop.
        code = code.replace("commit(asynchronous=False)", "commit(asynchronous=False); committed()")

        def committed() -> None:
            if len(printed) == 10:
                for number in (10, 11):
                    producer.produce("orders", str(number), partition=0)
                assert producer.flush(30) == 0

        with pytest.raises(EnoughError):
            exec(code, {"print": note, "committed": committed})
    assert sorted(int(value) for _, _, value in printed) == list(range(12))


def test_the_assignor_of_the_readme_passes_the_kit_for_assignors() -> None:
    # It is slow for large groups: each partition looks at each member.
    check_assignor(by_capacity(), examples=40, sizes=[(10, 100)])


def test_the_assignor_of_the_readme_goes_by_capacity_and_subscriptions() -> None:
    assignor = by_capacity()
    cluster = Cluster({"orders": 6, "bills": 2})
    members = {
        "big": Member(["orders"], user_data=b"2"),
        "small": Member(["orders"], user_data=b"1"),
        "foreign": Member(["bills"], user_data=b"\x00\xffnot a number"),
        "long": Member(["bills"], user_data=b"9" * 5_000),
        "silent": Member([], user_data=None),
    }
    plan = assignor.assign(cluster, members)
    verify(cluster, members, plan)
    counts = {name: {topic: len(numbers) for topic, numbers in topics.items()} for name, topics in plan.items()}
    assert counts == {"big": {"orders": 4}, "small": {"orders": 2}, "foreign": {"bills": 1}, "long": {"bills": 1}, "silent": {}}


def test_the_assignor_of_the_readme_runs_in_a_group() -> None:
    with EmbeddedKafka(topics={"orders": 7}) as kafka:
        config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "readme"}
        with GroupConsumer(config, assignors=[by_capacity(capacity=2)]) as consumer:
            consumer.subscribe(["orders"])
            for _ in range(300):
                consumer.poll(0.1)
                if consumer.assignment():
                    break
            assert len(consumer.assignment()) == 7


def test_every_file_that_the_readme_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.(?:py|md)|[a-z]+/)`", README)
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_no_link_is_relative() -> None:
    """A package index shows the README without the files beside it."""
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert not [target for target in targets if not target.startswith(("https://", "#"))]


def test_every_command_and_every_extra_is_named() -> None:
    (added,) = (one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    assert not [name for name in added.choices if f"`{name}`" not in README]
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert not [name for name in extras - {"dev", "docs"} if f"[{name}]`" not in README]


def test_make_knows_what_the_readme_tells_people_to_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for name in re.findall(r"^make ([\w-]+)|`make ([\w-]+)", README, re.MULTILINE):
        assert re.search(rf"^{name[0] or name[1]}:", makefile, re.MULTILINE), name
