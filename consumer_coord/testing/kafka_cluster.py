"""A cluster of Apache Kafka brokers, started by this process or by another one."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_REQUEST_DEADLINE_S = 180
_names = itertools.count(1)


def unique_name(prefix: str) -> str:
    """Return a topic or group name that is unique in this test run."""
    return f"{prefix}-{os.getpid()}-{next(_names)}"


class NewTopicFactory(Protocol):
    """The type of the fixture ``topic``: `KafkaCluster.new_topic` of the shared broker."""

    def __call__(
        self,
        partitions: int = 1,
        *,
        prefix: str = "topic",
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic with a unique name, and return the name."""


@attrs.define
class Node:
    """A broker; ``process`` is set while it runs, if this process started it."""

    node_id: int
    directory: Path
    ports: dict[str, int]  # listener name -> port
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The file of the broker's log."""
        return self.directory / "broker.log"

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class KafkaCluster:
    """Running brokers: their addresses and topics.  The process that started them ends them (`RealKafka`)."""

    def __init__(self, nodes: Mapping[int, Node], admin: AdminClient | None = None) -> None:
        self._nodes = dict(nodes)
        self._admin = admin

    @classmethod
    def at(cls, address: str) -> KafkaCluster:
        """Return the cluster with an :attr:`address` from another process."""
        rows = [Node(number, Path(directory), ports) for number, directory, ports in json.loads(address)]
        return cls({node.node_id: node for node in rows})

    # -- addresses -----------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The argument of :meth:`at` in another process."""
        return json.dumps([(node.node_id, str(node.directory), node.ports) for node in self._nodes.values()])

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,…`` of the plain listeners."""
        return self.bootstrap("PLAINTEXT")

    def bootstrap(self, listener: str) -> str:
        """Return ``host:port,…`` of the listeners of that name."""
        return ",".join(f"127.0.0.1:{node.ports[listener]}" for node in self._nodes.values())

    @property
    def admin(self) -> AdminClient:
        """An admin client on the plain listeners, made at the first use."""
        if self._admin is None:
            # Not at the top, because tests without a JVM also run without confluent-kafka.
            from confluent_kafka.admin import AdminClient

            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        return self._admin

    def log_tail(self, broker: int = 1, lines: int = 40) -> str:
        """Return the last lines of a broker's log."""
        return self._nodes[broker].log_tail(lines)

    def await_in_sync(self) -> None:
        """Wait until every replica of every partition is in sync: a broker that stops earlier makes partitions unavailable."""

        def in_sync() -> bool:
            topics = self.admin.list_topics(timeout=_REQUEST_DEADLINE_S).topics.values()
            return all(set(one.isrs) == set(one.replicas) for topic in topics for one in topic.partitions.values())

        _until(in_sync, "replicas in sync")

    # -- topics ----------------------------------------------------------------------------------------------------

    def new_topic(
        self,
        partitions: int = 1,
        *,
        prefix: str = "topic",
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic with a unique name, and return the name."""
        name = unique_name(prefix)
        self.create_topic(name, partitions, replication_factor=replication_factor, config=config)
        return name

    def create_topic(
        self, name: str, partitions: int, *, replication_factor: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, and wait until each of its partitions has a leader."""
        from confluent_kafka.admin import NewTopic

        new = NewTopic(name, partitions, replication_factor=replication_factor, config=dict(config or {}))
        self.admin.create_topics([new], operation_timeout=30)[name].result(_REQUEST_DEADLINE_S)

        def is_there() -> bool:
            topic = self._metadata(name)
            return len(topic) == partitions and all(leader >= 0 for leader in topic.values())

        _until(is_there, f"topic {name} with {partitions} partitions")

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it has disappeared from the metadata."""
        self.admin.delete_topics([name], operation_timeout=30)[name].result(_REQUEST_DEADLINE_S)
        _until(lambda: not self._metadata(name), f"the end of topic {name}")

    def _metadata(self, topic: str) -> Mapping[int, int]:
        """Return partition -> leader, empty for a missing topic.  A look-up by name would add it to the client's cache."""
        metadata = self.admin.list_topics(timeout=_REQUEST_DEADLINE_S)
        found = metadata.topics.get(topic)
        return {} if found is None else {number: partition.leader for number, partition in found.partitions.items()}


def _until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + _REQUEST_DEADLINE_S
    while not condition():
        if time.monotonic() >= ends:
            raise TimeoutError(f"{what}: not within {_REQUEST_DEADLINE_S} s")
        time.sleep(0.02)
