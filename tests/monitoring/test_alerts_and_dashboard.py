"""The alerts and the dashboard in ``examples/monitoring`` use figures that exist."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumer_coord.group.metrics import NAMES
from consumer_coord.monitoring.process_figures import FIGURES
from consumer_coord.monitoring.prometheus import PREFIX
from consumer_coord.monitoring.source import is_counter
from tests.support.monitoring.promql import PromQLError, parse

HERE = Path(__file__).parents[2] / "examples" / "monitoring"
KNOWN = {
    "kafka_consumer_healthy": False,
    **{PREFIX + name.replace("-", "_"): is_counter(name) for name in (*NAMES, *FIGURES)},
}
LABELS = {"group", "client_id"}


def alerts() -> list[dict[str, Any]]:
    """Return the alert rules of the file."""
    (only,) = importlib.import_module("yaml").safe_load((HERE / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = only["rules"]
    return rules


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    found: dict[str, Any] = json.loads((HERE / "dashboard.json").read_text())
    return found


def expressions() -> Iterator[str]:
    """Return all Prometheus expressions."""
    yield from (rule["expr"] for rule in alerts())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])


def check(expression: str) -> None:
    """Check that figures and labels exist, and that only counters are inside rate() and increase()."""
    asked = parse(expression)
    assert asked.metric in KNOWN
    assert asked.counted == KNOWN[asked.metric]
    assert asked.matched <= LABELS
    assert (asked.labels or LABELS) <= LABELS


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
        f"sum by (groups) ({PREFIX}assigned_partitions)",
        f"sum by (group) {PREFIX}assigned_partitions",
        f"{PREFIX}assigned_partitions{{group=billing}}",
        f"{PREFIX}assigned_partitions > ",
        f"increase({PREFIX}join_total[5])",
        f"increase({PREFIX}join_total)",
        f"{PREFIX}assigned_partitions == 0)",
    ],
)
def test_a_wrong_expression_is_found(wrong: str) -> None:
    with pytest.raises((AssertionError, PromQLError)):
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
        # A label that the expression aggregates away would be empty in the text.
        kept = parse(rule["expr"]).labels or LABELS
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


#: By alert: its figure, values one minute apart that fire it, and similar values that do not.
FIRES = {
    "KafkaPartitionsLost": ("partition_lost_total", "0x5 1x6", "3x11"),
    "KafkaRebalancesFail": ("failed_rebalance_total", "0x5 1x6", "3x11"),
    "KafkaCoordinatorSilent": ("last_heartbeat_seconds_ago", "23x11", "22x11"),
    "KafkaConsumerSlow": ("time_between_poll_max", "240001x11", "240000x11"),
    "KafkaConsumerIdleWithoutPartitions": ("assigned_partitions", "0x11", "1x11"),
    "KafkaGroupRebalancesOften": ("rebalance_total", "0+3x11", "0+1x11"),
    "KafkaCommitsRefused": ("commit_refused_total", "0x5 2x6", "2x11"),
    "KafkaProcessStuck": ("process_unfinished_seconds", "601x11", "600x11"),
    "KafkaRecordsOwed": ("kafka_consumer_healthy", "0x11", "1x11"),
}


def full(figure: str) -> str:
    return figure if figure.startswith("kafka_") else PREFIX + figure


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not on the path (on Debian: the package prometheus has it)")
    return found


def passes(*command: str | Path) -> None:
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=180)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_has_figures_with_which_it_fires() -> None:
    assert [rule["alert"] for rule in alerts()] == list(FIRES)
    for rule in alerts():
        assert parse(rule["expr"]).metric == full(FIRES[rule["alert"]][0])


def test_prometheus_loads_the_alerts_and_the_queries_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    passes(promtool, "check", "rules", HERE / "alerts.yml")
    queries = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    # JSON is YAML.
    (tmp_path / "dashboard.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    passes(promtool, "check", "rules", tmp_path / "dashboard.yml")


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires_in_prometheus_when_it_should(promtool: str, alert: str, tmp_path: Path) -> None:
    """The alert fires after ten minutes; the figures of another group do not fire it."""
    figure, fires, quiet = FIRES[alert]
    (rule,) = (rule for rule in alerts() if rule["alert"] == alert)
    labels = {"group": "billing", "client_id": "one"}
    shown = {name: value for name, value in labels.items() if name in (parse(rule["expr"]).labels or LABELS)}
    told = {
        key: text.replace("{{ $labels.group }}", "billing").replace("{{ $labels.client_id }}", "one")
        for key, text in rule["annotations"].items()
    }
    series = {"billing": fires, "reports": quiet}
    test = {
        "interval": "1m",
        "input_series": [
            {"series": f'{full(figure)}{{group="{group}",client_id="one"}}', "values": values}
            for group, values in series.items()
        ],
        "alert_rule_test": [
            {
                "eval_time": "10m",
                "alertname": alert,
                "exp_alerts": [{"exp_labels": {**shown, **rule["labels"]}, "exp_annotations": told}],
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(HERE / "alerts.yml")], "evaluation_interval": "1m", "tests": [test]}))
    passes(promtool, "test", "rules", file)
