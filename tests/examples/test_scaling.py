"""The manifests in ``examples/scaling``: serve-metrics runs as one says, and is asked as the others say."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.cli import main
from tests.support.monitoring.promql import parse
from tests.support.processes import end, spawn
from tests.support.waiting import eventually

HERE = Path(__file__).resolve().parents[2] / "examples" / "scaling"
PARTITIONS = 12

pytestmark = pytest.mark.slow


def manifests(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(importlib.import_module("yaml").safe_load_all((HERE / name).read_text()))
    return found


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as running:
        flags = ["--to-latest", "--topic", "orders", "--execute", "--bootstrap-server", running.bootstrap_servers]
        assert main(["reset", "orders", *flags]) == 0
        yield running


def produce(kafka: EmbeddedKafka, count: int, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(count):
        producer.produce("orders", b"order", partition=number % partitions)
    assert producer.flush(60) == 0


class Cluster:
    """The container of the manifest as a process, behind the name and port of its service."""

    def __init__(self, servers: str, directory: Path) -> None:
        deployment, service = manifests("serve-metrics.yml")
        pod = deployment["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        (port,), (exposed,) = container["ports"], service["spec"]["ports"]
        assert service["spec"]["selector"] == pod["metadata"]["labels"]
        assert exposed["targetPort"] == port["name"] == container["readinessProbe"]["httpGet"]["port"]
        assert f"--listen=0.0.0.0:{port['containerPort']}" in container["args"]
        assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
        self._service = f"{service['metadata']['name']}:{exposed['port']}"
        self._scraped = pod["metadata"]["annotations"]["prometheus.io/path"]
        self._probe = container["readinessProbe"]["httpGet"]["path"]
        instead = {
            "--bootstrap-server=kafka:9092": f"--bootstrap-server={servers}",
            f"--listen=0.0.0.0:{port['containerPort']}": "--listen=127.0.0.1:0",
        }
        assert container["command"][0] == "consumer-coord"
        given = [instead.get(one, one) for one in (*container["command"][1:], *container["args"])]
        self.output = directory / "output"
        with self.output.open("wb") as output:
            command = [sys.executable, "-m", "consumer_coord", *given, "--interval-ms", "200", "--timeout", "1000"]
            self.process: Popen[bytes] = spawn(command, stdout=output, stderr=output)
        eventually(lambda: "http://" in self.output.read_text(), shows=self.output.read_text)
        self._url = self.output.read_text().split()[0]

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self._url}{path.removeprefix('/')}", timeout=60)

    def ready(self) -> bool:
        """Return what the readiness probe says."""
        return self.get(self._probe).status_code == 200

    def metrics_api(self) -> float:
        """Return KEDA's value of the metrics-api trigger."""
        trigger = trigger_of("keda-metrics-api.yml", "metrics-api")
        url = urlsplit(trigger["url"])
        assert url.netloc == self._service
        answer = self.get(url.path)
        answer.raise_for_status()
        return float(answer.json()[trigger["valueLocation"]])

    def prometheus(self) -> float:
        """Return KEDA's value of the Prometheus trigger: exactly one series."""
        trigger = trigger_of("keda-prometheus.yml", "prometheus")
        asked = parse(trigger["query"])
        assert asked.matched == asked.labels == frozenset({"group"})
        return self._series(asked.metric)

    def external_metric(self) -> float:
        """Return the value of the HPA's metric."""
        metric = hpa()["metrics"][0]["external"]["metric"]
        assert metric["selector"]["matchLabels"] == {"group": "orders"}
        return self._series(metric["name"])

    def _series(self, name: str) -> float:
        families = text_string_to_metric_families(self.get(self._scraped).text)
        (found,) = (one.value for each in families for one in each.samples if one.name == name)
        return float(found)


def trigger_of(name: str, kind: str) -> Mapping[str, str]:
    (scaled,) = manifests(name)
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == (kind, "AverageValue")
    found: Mapping[str, str] = trigger["metadata"]
    return found


def hpa() -> dict[str, Any]:
    (found,) = manifests("hpa.yml")
    spec: dict[str, Any] = found["spec"]
    return spec


def desired(value: float, target: float, least: int, most: int) -> int:
    """The replicas of an HPA with a target of the kind AverageValue."""
    return max(least, min(most, math.ceil(value / target)))


@pytest.fixture
def cluster(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(kafka.bootstrap_servers, tmp_path)
    yield one
    end(one.process)


def all_desired(cluster: Cluster) -> set[int]:
    """Return what each of the three autoscalers would set."""
    found = set()
    for name, kind, target, value in (
        ("keda-metrics-api.yml", "metrics-api", "targetValue", cluster.metrics_api()),
        ("keda-prometheus.yml", "prometheus", "threshold", cluster.prometheus()),
    ):
        (scaled,) = manifests(name)
        bounds = (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"])
        found.add(desired(value, float(trigger_of(name, kind)[target]), *bounds))
    spec = hpa()
    average = float(spec["metrics"][0]["external"]["target"]["averageValue"])
    found.add(desired(cluster.external_metric(), average, spec["minReplicas"], spec["maxReplicas"]))
    return found


def test_the_autoscalers_set_the_wanted_replicas(kafka: EmbeddedKafka, cluster: Cluster) -> None:
    assert cluster.ready()
    assert all_desired(cluster) == {2}, "nothing to read, but the bounds say two"
    produce(kafka, 22_000, partitions=6)
    eventually(lambda: all_desired(cluster) == {5}, "22,000 records, 5,000 a replica")
    produce(kafka, 60_000, partitions=6)
    eventually(lambda: all_desired(cluster) == {6}, "no more than the partitions with lag")
    kafka.add_fault("ConsumerGroupDescribe", Fault(error_code=15), times=100_000)
    kafka.add_fault("DescribeGroups", Fault(error_code=15), times=100_000)
    eventually(lambda: cluster.get("/groups/orders").json()["held"], "a coordinator that does not answer")
    assert all_desired(cluster) == {6}


def test_the_bounds_are_everywhere_the_same() -> None:
    deployment, _ = manifests("serve-metrics.yml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (bounds,) = (one.removeprefix("--replicas=") for one in container["args"] if one.startswith("--replicas="))
    (api,), (prometheus,) = manifests("keda-metrics-api.yml"), manifests("keda-prometheus.yml")
    for spec in (api["spec"], prometheus["spec"]):
        assert f"{spec['minReplicaCount']}..{spec['maxReplicaCount']}" == bounds
        assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa()["behavior"]
    assert f"{hpa()['minReplicas']}..{hpa()['maxReplicas']}" == bounds
    assert trigger_of("keda-prometheus.yml", "prometheus")["ignoreNullValues"] == "false"
