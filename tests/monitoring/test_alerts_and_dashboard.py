"""The alerts and the dashboard in ``examples/monitoring`` ask for figures that exist."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumer_coord.group.metrics import NAMES
from consumer_coord.monitoring.prometheus import PREFIX
from consumer_coord.monitoring.source import is_counter

HERE = Path(__file__).parents[2] / "examples" / "monitoring"
KNOWN = {PREFIX + name.replace("-", "_"): is_counter(name) for name in NAMES}
#: What may stand in an expression beside figures, labels and numbers.
WORDS = {"increase", "rate", "sum", "max", "avg", "by"}
LABELS = {"group", "client_id"}


def alerts() -> list[dict[str, Any]]:
    """The rules of the file."""
    (only,) = importlib.import_module("yaml").safe_load((HERE / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = only["rules"]
    return rules


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    found: dict[str, Any] = json.loads((HERE / "dashboard.json").read_text())
    return found


def expressions() -> Iterator[str]:
    """Everything that Prometheus is asked for."""
    yield from (rule["expr"] for rule in alerts())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])


def check(expression: str) -> None:
    """Brackets that match, known words, and counters alone inside rate() and increase()."""
    bare = re.sub(r'"[^"]*"', "", expression)
    closing = {")": "(", "]": "[", "}": "{"}
    opened: list[str] = []
    for character in bare:
        if character in closing.values():
            opened.append(character)
        elif character in closing:
            assert opened.pop() == closing[character]
    assert not opened
    names = set(re.findall(r"[a-z_]{2,}", re.sub(r"\[\d+[smh]\]", "", bare)))
    assert names <= KNOWN.keys() | WORDS | LABELS, names - KNOWN.keys() - WORDS - LABELS
    figures = names & KNOWN.keys()
    assert len(figures) == 1
    counted = bool(re.search(r"(rate|increase)\(", bare))
    assert KNOWN[figures.pop()] == counted


def test_every_expression_asks_for_a_figure_that_exists() -> None:
    found = list(expressions())
    assert len(found) > 15
    for expression in found:
        check(expression)


@pytest.mark.parametrize(
    "wrong",
    [
        f"increase({PREFIX}join_total[5m]",
        f"increase({PREFIX}joins_total[5m])",
        f"rate({PREFIX}assigned_partitions[5m])",
        f"{PREFIX}join_total > 1",
        f"median({PREFIX}assigned_partitions)",
    ],
)
def test_a_wrong_expression_is_found(wrong: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        check(wrong)


def test_every_alert_says_what_it_means() -> None:
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Kafka[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        told = " ".join(rule["annotations"].values())
        labels = set(re.findall(r"\{\{ \$labels\.(\w+) \}\}", told))
        # A label that the expression sums away would be shown as nothing.
        kept = set(re.findall(r"by \((\w+)\)", rule["expr"])) or LABELS
        assert labels <= kept
        assert "group" in labels


def test_the_dashboard_is_one_that_grafana_draws() -> None:
    made = dashboard()
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {one["name"] for one in made["templating"]["list"]} == {"datasource", "group"}
    places = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        places.add((place["x"], place["y"]))
        assert panel["title"]
        assert all(set(target) == {"refId", "expr", "legendFormat"} for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert len(places) == len(panels)
