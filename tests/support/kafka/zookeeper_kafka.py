"""Apache Kafka 2.x with ZooKeeper: one broker, and the ZooKeeper that it needs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from consumer_coord.testing.kafka_cluster import Node
from consumer_coord.testing.processes import end, spawn
from consumer_coord.testing.real_kafka import RealKafka

#: Prefixes of the settings for KRaft mode, which these brokers do not know.
_OF_KRAFT = ("process.", "node.", "controller.", "broker.", "share.")


class ZooKeeperKafka(RealKafka):
    """A broker of Kafka 2.x and its ZooKeeper, whose server is in the zookeeper jar next to Kafka's.

    ``libs`` also needs a back end for log4j's API, which these brokers use directly (reload4j).
    """

    def __init__(self, libs: Path) -> None:
        super().__init__(libs)
        self._zookeeper: subprocess.Popen[bytes] | None = None

    def _defaults(self, node: Node) -> Mapping[str, str]:
        of_kraft = super()._defaults(node)
        plain = {key: value for key, value in of_kraft.items() if not key.startswith(_OF_KRAFT)}
        return {
            **plain,
            "broker.id": str(node.node_id),
            "zookeeper.connect": f"127.0.0.1:{node.ports['CONTROLLER']}",
            # ZooKeeper starts at the same time, perhaps next to other tests.
            "zookeeper.connection.timeout.ms": "60000",
            "listeners": f"PLAINTEXT://127.0.0.1:{node.ports['PLAINTEXT']}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        }

    def _format(self) -> None:
        """Start ZooKeeper, for which the broker waits; there is no storage to format."""
        (node,) = self._nodes.values()
        data = node.directory / "zookeeper"
        shutil.rmtree(data, ignore_errors=True)
        options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false"]
        command = self._java_command("org.apache.zookeeper.server.ZooKeeperServerMain", options, self._libs)
        with (node.directory / "zookeeper.log").open("ab") as log:
            self._zookeeper = spawn(
                [*command, str(node.ports["CONTROLLER"]), str(data)], stdout=log, stderr=subprocess.STDOUT, cwd=node.directory
            )

    def _end_all(self) -> None:
        super()._end_all()
        if self._zookeeper is not None:
            end(self._zookeeper)
            self._zookeeper = None
