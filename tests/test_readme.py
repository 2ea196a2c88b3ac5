"""What the README shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from assignors import Cluster, Member, verify
from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka

ROOT = Path(__file__).resolve().parents[1]


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_assignor_of_the_readme_makes_valid_plans_and_runs_in_a_group() -> None:
    namespace: dict[str, Any] = {}
    exec(snippets()[1], namespace)  # the page's own code
    assignor = namespace["ByCapacity"]()
    cluster = Cluster({"orders": 7})
    members = {"a": Member(["orders"], user_data=b"2"), "b": Member(["orders"], user_data=b"1")}
    plan = assignor.assign(cluster, members)
    verify(cluster, members, plan)
    assert {name: len(topics["orders"]) for name, topics in plan.items()} == {"a": 5, "b": 2}
    with EmbeddedKafka(topics={"orders": 7}) as kafka:
        config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "readme"}
        with GroupConsumer(config, assignors=[assignor]) as consumer:
            consumer.subscribe(["orders"])
            for _ in range(100):
                consumer.poll(0.1)
                if consumer.assignment():
                    break
            assert len(consumer.assignment()) == 7


def test_the_consumer_of_the_readme_compiles_and_its_settings_are_known() -> None:
    code = compile(snippets()[0], "README.md", "exec")
    assert {"GroupConsumer", "config", "consumer"} <= set(code.co_names)
    settings: dict[str, Any] = {}
    exec(snippets()[0].split("with GroupConsumer")[0], settings)
    GroupConsumer(settings["config"]).close()


def test_every_page_and_file_the_readme_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    missing = [name for name in re.findall(r"\]\(([^)#]+)", text) if not (ROOT / name).exists()]
    assert not missing
