"""Apache Kafka for tests: brokers in KRaft mode on loopback ports."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import attrs

from consumer_coord.confluent import KafkaException
from consumer_coord.testing.jvm import java_command
from consumer_coord.testing.kafka_cluster import KafkaCluster, Node
from consumer_coord.testing.processes import end, spawn

#: Generous, because a broker may start next to other work on a small machine; a healthy broker starts much faster.
_START_DEADLINE_S = 360
_REQUEST_DEADLINE_S = 180
_START_TRIES = 3
_DATA_PREFIX = "real-kafka-"
_names = itertools.count(1)


class RealKafkaError(Exception):
    """Raised if a broker did not start, or died; the message ends with the tail of its log."""


@attrs.frozen
class Listener:
    """One more listener on every broker, in addition to the plain one that tests and brokers use.

    ``name`` as in ``listeners`` (say ``SASL``), ``security_protocol`` as in ``listener.security.protocol.map``.
    Its other properties (``listener.name.sasl.…``) go into the ``properties`` of `RealKafka`.
    """

    name: str
    security_protocol: str
    #: By node id, the port to advertise in place of the listener's own, if a proxy is in between.
    advertised_ports: Mapping[int, int] = attrs.field(factory=dict)


class RealKafka(KafkaCluster):
    """A cluster of Apache Kafka brokers, each broker and controller in one, which ends with the test run at the latest.

    ``libs``: the directory with Kafka's jars.  ``brokers``: their number; their node ids are 1 to ``brokers``.
    ``properties`` are added to (and override) every broker's ``server.properties``.  ``listeners`` are added to
    the plain one; ``racks`` are the racks of the brokers, in the order of their ids; ``format_arguments`` go to
    ``StorageTool format`` (for instance ``--add-scram``), ``jvm_arguments`` to the Java of the brokers, and
    ``plug_ins`` are directories with further classes for the brokers.
    Use the cluster as a context manager, or call :meth:`start` and :meth:`close`.
    """

    def __init__(
        self,
        libs: Path,
        *,
        brokers: int = 1,
        properties: Mapping[str, str] | None = None,
        listeners: Sequence[Listener] = (),
        format_arguments: Sequence[str] = (),
        jvm_arguments: Sequence[str] = ("-Xmx512m", "-XX:TieredStopAtLevel=1"),
        racks: Sequence[str] = (),
        plug_ins: Sequence[Path] = (),
        outlives_test: bool = False,
    ) -> None:
        super().__init__({})
        self._racks = racks
        self._libs = libs
        #: The jars of brokers that run another version.
        self._node_libs: dict[int, Path] = {}
        self._brokers = brokers
        self._properties = dict(properties or {})
        self._listeners = (Listener("PLAINTEXT", "PLAINTEXT"), *listeners)
        self._format_arguments = tuple(format_arguments)
        self._jvm_arguments = tuple(jvm_arguments)
        self._class_path = tuple(map(str, plug_ins))
        self._outlives_test = outlives_test
        _remove_abandoned_data()
        self._directory = Path(tempfile.mkdtemp(prefix=f"{_DATA_PREFIX}{os.getpid()}-"))

    # -- life cycle ------------------------------------------------------------------------------------------------

    def start(self) -> RealKafka:
        """Format the storage, start the brokers, and wait until every broker serves; raise `RealKafkaError` if one does not."""
        for last_try in (*[False] * (_START_TRIES - 1), True):
            try:
                self._configure()
                self._format()
                for node in self._nodes.values():
                    self._launch(node)
                self._await_ready(range(1, self._brokers + 1))
            except RealKafkaError as error:
                self._end_all()
                # Another process may have taken a port between our probe and the broker's bind.
                if last_try or "Address already in use" not in str(error):
                    self.close()
                    raise
                continue
            except BaseException:  # Ctrl-C, for instance: leave no broker running
                self.close()
                raise
            break
        return self

    def close(self) -> None:
        """Kill every broker and remove the data."""
        self._admin = None
        self._end_all()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> RealKafka:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- failures --------------------------------------------------------------------------------------------------

    def port(self, broker: int, listener: str) -> int:
        """Return the port of a broker's listener."""
        return self._nodes[broker].ports[listener]

    def pid(self, broker: int = 1) -> int:
        """Return the process id of a broker that runs."""
        return self._running(broker).pid

    @property
    def pids(self) -> Sequence[int]:
        """The process ids of all brokers, which must run."""
        return [self.pid(broker) for broker in self._nodes]

    def stop(self, broker: int = 1) -> None:
        """Shut a broker down in good order (SIGTERM), so that it transfers its leaderships first."""
        self._end(self._nodes[broker], grace_s=_REQUEST_DEADLINE_S)

    def kill(self, broker: int = 1) -> None:
        """Kill a broker with SIGKILL."""
        self._end(self._nodes[broker], grace_s=0)

    def pause(self, broker: int = 1) -> None:
        """Stop a broker with SIGSTOP: its connections stay open, and it does not respond."""
        self._running(broker).send_signal(signal.SIGSTOP)

    def resume(self, broker: int = 1) -> None:
        """Continue a broker with SIGCONT."""
        self._running(broker).send_signal(signal.SIGCONT)

    def restart(self, broker: int = 1) -> None:
        """Start a stopped or killed broker again, on its data and its ports; stop it first if it runs."""
        node = self._nodes[broker]
        if node.process is not None:
            self.stop(broker)
        self._launch(node)
        self._await_ready([broker])

    def upgrade(self, libs: Path, broker: int = 1) -> None:
        """Stop a broker, and start it again on its data with the jars of another version."""
        self._node_libs[broker] = libs
        self.restart(broker)

    # -- start and end ----------------------------------------------------------------------------------------------

    def _configure(self) -> None:
        self._nodes = {}
        ports = iter(free_ports(self._brokers * (len(self._listeners) + 1)))
        names = [*(listener.name for listener in self._listeners), "CONTROLLER"]
        for node_id in range(1, self._brokers + 1):
            directory = self._directory / f"node-{node_id}"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            self._nodes[node_id] = Node(node_id, directory, {name: next(ports) for name in names})
        for node in self._nodes.values():
            rack = {"broker.rack": self._racks[node.node_id - 1]} if self._racks else {}
            lines = [f"{key}={value}\n" for key, value in {**self._defaults(node), **rack, **self._properties}.items()]
            (node.directory / "server.properties").write_text("".join(lines))

    def _defaults(self, node: Node) -> Mapping[str, str]:
        advertised = {one.name: one.advertised_ports.get(node.node_id, node.ports[one.name]) for one in self._listeners}
        protocols = {listener.name: listener.security_protocol for listener in self._listeners}
        protocols["CONTROLLER"] = "PLAINTEXT"
        voters = (f"{one.node_id}@127.0.0.1:{one.ports['CONTROLLER']}" for one in self._nodes.values())
        replicas = str(min(3, self._brokers))
        return {
            "process.roles": "broker,controller",
            "node.id": str(node.node_id),
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in node.ports.items()),
            "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in advertised.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "log.dirs": str(node.directory / "data"),
            # A killed broker may register again, and its partitions get new leaders, when its session has ended.
            "broker.session.timeout.ms": "5000",
            "broker.heartbeat.interval.ms": "500",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",  # so that a test of an expired session does not take six seconds
            # The consumer protocol's defaults stay; `admin.set_consumer_timeouts` changes them for one group.
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "6",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "3",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "3",
            "log.cleaner.dedupe.buffer.size": "4194304",  # the default of 128 MB does not fit a small heap
            "num.network.threads": "2",
            "num.io.threads": "4",
        }

    def _format(self) -> None:
        """Format every node's storage, in parallel."""
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        running = []
        for node in self._nodes.values():
            command = self._java_command("kafka.tools.StorageTool", ["-Xmx128m", "-XX:TieredStopAtLevel=1"], self._libs)
            command += ["format", "--cluster-id", f"c{cluster[1:]}"]  # an id may not begin with a dash
            command += ["--config", str(node.directory / "server.properties")]
            with node.log.open("ab") as log:
                process = spawn([*command, *self._format_arguments], stdout=log, stderr=subprocess.STDOUT)
            running.append((node, process))
        for node, process in running:
            try:
                code = process.wait(_START_DEADLINE_S)
            except subprocess.TimeoutExpired:
                code = end(process)
            if code != 0:
                raise RealKafkaError(f"formatting the storage of broker {node.node_id} failed:\n{node.log_tail()}")

    def _launch(self, node: Node) -> None:
        command = self._java_command("kafka.Kafka", self._jvm_arguments, self._node_libs.get(node.node_id, self._libs))
        with node.log.open("ab") as log:
            node.process = spawn(
                [*command, str(node.directory / "server.properties")],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=node.directory,
                outlives_test=self._outlives_test,
            )

    def _java_command(self, main: str, arguments: Sequence[str], libs: Path) -> list[str]:
        log = ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"]
        return [*java_command(libs), *log, *arguments, "-cp", ":".join((f"{libs}/*", *self._class_path)), main]

    def _await_ready(self, brokers: Sequence[int]) -> None:
        """Wait until each of ``brokers`` accepts connections and the cluster's metadata names them all."""
        deadline = time.monotonic() + _START_DEADLINE_S
        for broker in brokers:
            node = self._nodes[broker]
            while not _accepts_connections(node.ports["PLAINTEXT"]):
                self._check_alive(node, deadline)
                time.sleep(0.05)
        while not self._knows(brokers):
            for broker in brokers:
                self._check_alive(self._nodes[broker], deadline)
            time.sleep(0.1)

    def _knows(self, brokers: Sequence[int]) -> bool:
        try:
            known = self.admin.list_topics(timeout=5).brokers
        except KafkaException:
            return False  # the broker listens, but does not respond yet
        return set(brokers) <= set(known)

    def _check_alive(self, node: Node, deadline: float) -> None:
        if node.process is None or node.process.poll() is not None:
            code = None if node.process is None else node.process.returncode
            raise RealKafkaError(f"broker {node.node_id} ended with code {code} while starting:\n{node.log_tail()}")
        if time.monotonic() > deadline:
            raise RealKafkaError(f"broker {node.node_id} did not serve in {_START_DEADLINE_S} s:\n{node.log_tail()}")

    def _running(self, broker: int) -> subprocess.Popen[bytes]:
        node = self._nodes[broker]
        if node.process is None or node.process.poll() is not None:
            raise RealKafkaError(f"broker {broker} is not running:\n{node.log_tail()}")
        return node.process

    def _end(self, node: Node, grace_s: float) -> None:
        if node.process is not None:
            end(node.process, grace_s=grace_s)
            node.process = None

    def _end_all(self) -> None:
        for node in self._nodes.values():
            self._end(node, grace_s=0)


def _remove_abandoned_data() -> None:
    """Remove the data of killed test runs; their brokers died with them."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_DATA_PREFIX}*"):
        owner = directory.name.removeprefix(_DATA_PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(directory, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are free now.

    The ports are below the range for outgoing connections, so that no connection takes one before the broker binds it, or
    while a killed broker is down.
    """
    try:
        first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first_ephemeral = 32768
    candidates = range(10_000, first_ephemeral) if first_ephemeral > 12_000 else range(10_000, 65_000)
    found: list[int] = []
    chooser = random.SystemRandom()
    while len(found) < count:
        port = chooser.choice(candidates)
        if port not in found and _can_bind(port):
            found.append(port)
    return found


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
