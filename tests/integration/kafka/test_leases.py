"""Leases on a real broker: frozen processes and dead connections, and never two members that may deliver one partition."""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.kafka.lease_process import DEADLINE_S, LeaseProcess, shared
from tests.support.waiting import eventually

pytestmark = pytest.mark.kafka

_SESSION_S = 2.0


def _may_deliver(process: LeaseProcess) -> bool:
    return process.may_deliver > 0


def _more_accepted(proxy: _Proxy, before: int) -> bool:
    return proxy.accepted > before


def _settings(kafka: KafkaCluster, topic: str, group: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": group,
        "topic": topic,
        "session.timeout.ms": int(_SESSION_S * 1000),
        "heartbeat.interval.ms": 300,
        "max.poll.interval.ms": 60_000,
        **more,
    }


@contextlib.contextmanager
def _pair(first: dict[str, Any], second: dict[str, Any]) -> Iterator[tuple[LeaseProcess, LeaseProcess]]:
    one, two = LeaseProcess(**first), LeaseProcess(**second)
    try:
        eventually(lambda: one.may_deliver == two.may_deliver == 2, "two partitions for each", within_s=DEADLINE_S)
        yield one, two
    finally:
        one.end()
        two.end()


@pytest.mark.parametrize("lease", [True, False], ids=["lease", "without"])
def test_a_frozen_member_wakes_up_and_hands_out_nothing_old(
    lease: bool, kafka: KafkaCluster, topic: NewTopicFactory, group: str
) -> None:
    """Frozen for half a session to three of them.  Without leases the same play shows both at work at one time."""
    settings = _settings(kafka, topic(partitions=4), group, **{"group.lease.enable": lease})
    # Without: until it shows, for a busy machine may keep the other member from a sample at that moment.
    again = [] if lease else [1.5] * 7
    with _pair(settings, settings) as (one, two):
        for sessions in (0.5, 1.5, 3.0, *again):
            one.freeze()
            time.sleep(sessions * _SESSION_S)
            if sessions > 1:
                eventually(lambda: two.may_deliver == 4, "all partitions for the other member", within_s=DEADLINE_S)
            one.thaw()
            eventually(lambda: one.may_deliver == two.may_deliver == 2, "two partitions for each", within_s=DEADLINE_S)
            if not lease and shared(one.samples, two.samples):
                break
        both = shared(one.end(), two.end())
    assert (both == 0) is lease, both


@attrs.define
class _Proxy:
    """Forwards connections to a broker. After :meth:`swallow`, the existing connections remain open, but forward nothing."""

    target: tuple[str, int]
    listener: socket.socket = attrs.field(factory=lambda: socket.create_server(("127.0.0.1", 0)))
    accepted: int = 0
    _pairs: dict[socket.socket, socket.socket] = attrs.field(factory=dict)
    _swallowed: set[socket.socket] = attrs.field(factory=set)
    _selector: selectors.BaseSelector = attrs.field(factory=selectors.DefaultSelector)
    _over: bool = False

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def swallow(self) -> int:
        """From now on what exists is dead: bytes are taken and vanish; how many connections."""
        alive = self._pairs.keys() - self._swallowed
        self._swallowed |= alive
        return len(alive) // 2

    def run(self) -> None:
        self._selector.register(self.listener, selectors.EVENT_READ)
        while not self._over:
            for key, _ in self._selector.select(0.05):
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj is self.listener:
                    near, _ = self.listener.accept()
                    self.accepted += 1
                    far = socket.create_connection(self.target)
                    for one, other in ((near, far), (far, near)):
                        self._pairs[one] = other
                        self._selector.register(one, selectors.EVENT_READ)
                else:
                    self._pass_on(key.fileobj)

    def _pass_on(self, source: socket.socket) -> None:
        try:
            data = source.recv(65_536)
        except OSError:
            data = b""
        target = self._pairs[source]
        if source not in self._swallowed and data:
            with contextlib.suppress(OSError):
                target.sendall(data)
        if not data:
            self._selector.unregister(source)
            source.close()
            if source not in self._swallowed:
                with contextlib.suppress(OSError):
                    target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._over = True


@pytest.fixture
def proxy(kafka: KafkaCluster) -> Iterator[_Proxy]:
    host, port = kafka.bootstrap_servers.split(",")[0].rsplit(":", 1)
    made = _Proxy((host, int(port)))
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    yield made
    made.close()
    thread.join(5)


def test_connections_that_die_without_a_sign_cost_neither_a_shared_partition_nor_a_rebalance_timeout(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str, proxy: _Proxy
) -> None:
    """A firewall forgets every connection of a member, several times, also in the midst of a rebalance."""
    settings = _settings(kafka, topic(partitions=4), group, **{"max.poll.interval.ms": 200_000})
    with _pair({**settings, "proxy": proxy.port, "client.id": "proxied"}, settings) as (one, two):
        for rebalances in (False, True, True):
            accepted = proxy.accepted
            # Another member makes the group rebalance at that moment.
            newcomer = LeaseProcess(**settings) if rebalances else None
            try:
                assert proxy.swallow() > 0
                started = time.monotonic()
                eventually(functools.partial(_more_accepted, proxy, accepted), "a new connection", within_s=DEADLINE_S)
                if newcomer is not None:
                    eventually(functools.partial(_may_deliver, newcomer), "a share for the newcomer", within_s=DEADLINE_S)
            finally:
                samples = newcomer.end() if newcomer is not None else []
            assert shared(samples, one.samples) == shared(samples, two.samples) == 0
            eventually(lambda: one.may_deliver == two.may_deliver == 2, "two partitions for each", within_s=DEADLINE_S)
            # Its session and that of the newcomer that was killed, not the rebalance timeout.
            assert time.monotonic() - started < settings["max.poll.interval.ms"] / 1000
        assert shared(one.end(), two.end()) == 0
