"""The Kafka that a test suite runs on: the embedded one, Apache Kafka in processes of its own, or a cluster of yours.

The fixture ``kafka`` returns one of the three; see :mod:`consumer_coord.pytest_plugin`. All have the same calls, so the same
tests run on all of them, as far as these can do what a test asks for.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.confluent import KafkaException
from consumer_coord.errors import ConfigurationError
from consumer_coord.testing import jars
from consumer_coord.testing.kafka_cluster import KafkaCluster
from consumer_coord.testing.proxy import Proxy
from consumer_coord.testing.real_kafka import Listener, RealKafka
from consumer_coord.testing.security import MECHANISMS, Acl, Security, add_acls

_numbers: Final = itertools.count(1)


class UnsupportedError(Exception):
    """The Kafka that was asked for cannot be had; the fixture ``kafka`` skips the tests with this text, which is one line."""


@attrs.frozen(kw_only=True)
class KafkaOptions:
    """What the fixture ``kafka_options`` returns, checked.

    * ``brokers``: their number.
    * ``topics``: name -> number of partitions.
    * ``config``: settings of all brokers, by Kafka's names.
    * ``tls``: encrypt the clients' connections; ``sasl``: ``"PLAIN"``, ``"SCRAM-SHA-256"``, ``"SCRAM-SHA-512"`` or
      ``"OAUTHBEARER"``. ``users``: names of principals that can log in.
    * ``acls``: what users may do; with any, they may do nothing else. See :class:`~consumer_coord.testing.security.Acl`.
    """

    brokers: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    topics: Mapping[str, int] = attrs.field(factory=dict)
    config: Mapping[str, object] = attrs.field(factory=dict)
    tls: bool = False
    sasl: str | None = None
    users: Sequence[str] = ("alice",)
    acls: Sequence[Acl] = ()

    def __attrs_post_init__(self) -> None:
        if self.sasl not in (None, *MECHANISMS):
            raise ConfigurationError(f"sasl must be one of {', '.join(MECHANISMS)}, not {self.sasl!r}")
        if not self.users:
            raise ConfigurationError("users needs at least one name")
        if self.acls and self.sasl is None:
            raise ConfigurationError("acls need to know who asks: set sasl, for instance to 'SCRAM-SHA-512'")

    @property
    def secured(self) -> bool:
        """Whether only the real Kafka can do this."""
        return self.tls or self.sasl is not None


class KafkaUnderTest(ABC):
    """A cluster of brokers for tests. A broker is named by its id, one of :attr:`brokers`."""

    #: ``embedded``, the version of Apache Kafka, or ``remote``.
    version: str

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """The brokers' addresses for clients."""

    @property
    @abstractmethod
    def brokers(self) -> Sequence[int]:
        """The ids of the brokers."""

    def config(self, user: str | None = None) -> dict[str, Any]:
        """Return the settings with which a client connects: the addresses, and what TLS and SASL need, for a user."""
        return {"bootstrap.servers": self.bootstrap_servers}

    # -- topics and groups ----------------------------------------------------------------------------------------------

    def topic(self, partitions: int = 1, *, name: str = "topic", configs: Mapping[str, str] | None = None) -> str:
        """Create a topic, and return its name: ``name`` with a number that no other topic has."""
        unique = self._unique(name)
        self.create_topic(unique, partitions, configs=configs)
        return unique

    def group(self, name: str = "group") -> str:
        """Return a group id that no other test has."""
        return self._unique(name)

    def _unique(self, name: str) -> str:
        words = re.sub(r"[^a-zA-Z0-9._-]+", "-", name).strip("-")[:150]
        return f"{words or 'name'}-{os.getpid()}-{next(_numbers)}"

    @abstractmethod
    def create_topic(self, name: str, partitions: int = 1, *, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic, with a replica on each broker up to three."""

    @abstractmethod
    def delete_topic(self, name: str) -> None:
        """Delete a topic."""

    # -- failures -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def stop(self, broker: int) -> None:
        """Stop a broker in good order; :meth:`restart` starts it again."""

    @abstractmethod
    def kill(self, broker: int) -> None:
        """End a broker as a crash does; :meth:`restart` starts it again."""

    @abstractmethod
    def restart(self, broker: int) -> None:
        """Start a broker that was stopped or killed again, with its data and at its address."""

    @abstractmethod
    def suspend(self, broker: int) -> None:
        """Let a broker stand still: its connections stay open, and it answers nothing until :meth:`resume`."""

    @abstractmethod
    def resume(self, broker: int) -> None:
        """End :meth:`suspend`."""

    @abstractmethod
    def partition(self, broker: int) -> None:
        """Cut the network between clients and a broker, without a word to either: nothing passes until :meth:`heal`.

        The brokers still reach one another.
        """

    @abstractmethod
    def heal(self, broker: int) -> None:
        """End :meth:`partition`."""


class EmbeddedKafkaUnderTest(KafkaUnderTest):
    """The embedded Kafka, a context manager; :attr:`embedded` is the cluster itself, with further calls."""

    version = "embedded"

    def __init__(self, options: KafkaOptions) -> None:
        self.embedded: EmbeddedKafka = EmbeddedKafka(dict(options.topics), options.brokers, config=options.config)
        #: Brokers that answer nothing. The brokers' thread reads it.
        self._silent: frozenset[int] = frozenset()

    def __enter__(self) -> EmbeddedKafkaUnderTest:
        self.embedded.start()
        self.embedded.add_request_hook(self._fault)
        return self

    def __exit__(self, *_: object) -> None:
        self._silent = frozenset()
        self.embedded.close()

    def _fault(self, broker: int, _: object) -> Fault | None:
        return Fault(wait_until=lambda: broker not in self._silent) if broker in self._silent else None

    @property
    def bootstrap_servers(self) -> str:
        return self.embedded.bootstrap_servers

    @property
    def brokers(self) -> Sequence[int]:
        return self.embedded.brokers

    def create_topic(self, name: str, partitions: int = 1, *, configs: Mapping[str, str] | None = None) -> None:
        self.embedded.create_topic(name, partitions, configs=configs)

    def delete_topic(self, name: str) -> None:
        self.embedded.delete_topic(name)

    def stop(self, broker: int) -> None:
        self.embedded.stop_broker(broker)

    def kill(self, broker: int) -> None:
        self.embedded.stop_broker(broker)

    def restart(self, broker: int) -> None:
        self.embedded.start_broker(broker)

    def suspend(self, broker: int) -> None:
        self._silent |= {broker}

    def resume(self, broker: int) -> None:
        self._silent -= {broker}

    # To clients, a broker behind a cut network and one that stands still are the same.
    partition = suspend
    heal = resume


class RealKafkaUnderTest(KafkaUnderTest):
    """Apache Kafka, in processes on this machine that end with this process; a context manager."""

    def __init__(self, version: str, libs: Path, options: KafkaOptions) -> None:
        self.version: str = version
        self._options = options
        self._security = Security(tls=options.tls, sasl=options.sasl, users=options.users)
        #: Clients connect through these, by broker.
        self._proxies = {broker: Proxy() for broker in range(1, options.brokers + 1)}
        self._libs = libs
        self._kafka: RealKafka | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> RealKafkaUnderTest:
        with contextlib.ExitStack() as stack:
            ports = {broker: stack.enter_context(proxy).port for broker, proxy in self._proxies.items()}
            security, options = self._security, self._options
            stack.callback(security.close)
            config = {name: str(value) for name, value in options.config.items()}
            kafka = self._kafka = stack.enter_context(
                RealKafka(
                    self._libs,
                    brokers=options.brokers,
                    listeners=[Listener("CLIENT", security.protocol, advertised_ports=ports)],
                    properties={**security.broker_properties("CLIENT", authorizes=bool(options.acls)), **config},
                    format_arguments=security.format_arguments,
                    outlives_test=True,
                )
            )
            for broker, proxy in self._proxies.items():
                proxy.target = kafka.port(broker, "CLIENT")
            add_acls(kafka.admin, options.acls)
            for name, partitions in options.topics.items():
                self.create_topic(name, partitions)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def _running(self) -> RealKafka:
        assert self._kafka is not None
        return self._kafka

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{proxy.port}" for proxy in self._proxies.values())

    @property
    def brokers(self) -> Sequence[int]:
        return tuple(self._proxies)

    def config(self, user: str | None = None) -> dict[str, Any]:
        return {**super().config(), **self._security.client_settings(user)}

    def create_topic(self, name: str, partitions: int = 1, *, configs: Mapping[str, str] | None = None) -> None:
        replicas = min(3, self._options.brokers)
        self._running.create_topic(name, partitions, replication_factor=replicas, config=configs)

    def delete_topic(self, name: str) -> None:
        self._running.delete_topic(name)

    def stop(self, broker: int) -> None:
        self._running.stop(broker)

    def kill(self, broker: int) -> None:
        self._running.kill(broker)

    def restart(self, broker: int) -> None:
        self._running.restart(broker)

    def suspend(self, broker: int) -> None:
        self._running.pause(broker)

    def resume(self, broker: int) -> None:
        self._running.resume(broker)

    def partition(self, broker: int) -> None:
        self._proxies[broker].swallow(True)

    def heal(self, broker: int) -> None:
        self._proxies[broker].swallow(False)


class RemoteKafkaUnderTest(KafkaUnderTest):
    """A cluster of yours, of which only topics and groups with names of this run are used, and removed at the end."""

    version = "remote"

    def __init__(self, bootstrap_servers: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._servers = bootstrap_servers
        self._admin: Any = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._cluster = KafkaCluster({}, admin=self._admin)
        #: Two runs on one cluster must not have the same names.
        self._run = secrets.token_hex(4)
        self._topics: list[str] = []
        self._groups: list[str] = []

    def __enter__(self) -> RemoteKafkaUnderTest:
        try:
            self._brokers = tuple(self._admin.list_topics(timeout=10).brokers)
        except KafkaException as error:
            raise UnsupportedError(f"--kafka {self._servers}: no broker answers there: {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._topics:
            self._cluster.delete_topic(name)
        if self._groups:
            listed = {one.group_id for one in self._admin.list_consumer_groups(request_timeout=30).result().valid}
            present = [name for name in self._groups if name in listed]
            for future in self._admin.delete_consumer_groups(present, request_timeout=30).values() if present else ():
                future.result()

    def _unique(self, name: str) -> str:
        return f"{super()._unique(name)}-{self._run}"

    @property
    def bootstrap_servers(self) -> str:
        return self._servers

    @property
    def brokers(self) -> Sequence[int]:
        return self._brokers

    def group(self, name: str = "group") -> str:
        self._groups.append(super().group(name))
        return self._groups[-1]

    def create_topic(self, name: str, partitions: int = 1, *, configs: Mapping[str, str] | None = None) -> None:
        self._cluster.create_topic(name, partitions, replication_factor=min(3, len(self._brokers)), config=configs)
        self._topics.append(name)

    def delete_topic(self, name: str) -> None:
        if name not in self._topics:
            raise ConfigurationError(f"topic {name!r} was not created by this run, so it is not deleted")
        self._cluster.delete_topic(name)
        self._topics.remove(name)

    def _refuse(self, broker: int) -> None:
        import pytest

        pytest.skip("a broker of your cluster is not stopped: run this test with --kafka embedded, or 4.4.0")

    stop = kill = restart = suspend = resume = partition = heal = _refuse


def open_kafka(
    where: str, options: KafkaOptions, home: Path | None = None
) -> contextlib.AbstractContextManager[KafkaUnderTest]:
    """Return the Kafka that ``--kafka`` names: ``embedded``, a version of Apache Kafka, or ``host:port``.

    ``home``: the directory of an unpacked Apache Kafka, in place of fetched jars. Raise :class:`UnsupportedError`, with one
    line, if it cannot be had here, or cannot do what ``options`` ask for.
    """
    if where == "embedded":
        if options.secured:
            raise UnsupportedError("the embedded Kafka has no TLS, SASL and ACLs: run this test with --kafka 4.4.0")
        return EmbeddedKafkaUnderTest(options)
    if ":" in where:
        if options.secured or options.config:
            raise UnsupportedError("a cluster of yours is used as it is: run this test with --kafka 4.4.0")
        return RemoteKafkaUnderTest(where)
    try:
        libs = _libs_of(where, home)
    except jars.UnavailableError as error:
        raise UnsupportedError(str(error)) from None
    return RealKafkaUnderTest(where, libs, options)


def _libs_of(version: str, home: Path | None) -> Path:
    """Return the directory with the jars of a version."""
    jars.java_executable()
    if home is not None:
        libs = home / "libs"
        if not any(libs.glob(f"kafka-clients-{version}*.jar")):
            raise jars.UnavailableError(f"--kafka-home {home}: there is no libs/kafka-clients-{version}.jar")
        return libs
    known = {one.version: one for one in jars.BROKERS}
    if version not in known:
        raise jars.UnavailableError(
            f"--kafka {version}: not embedded, host:port, or one of {', '.join(known)}; for another one, add --kafka-home DIR"
        )
    return jars.ensure_jars(known[version])
