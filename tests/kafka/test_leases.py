"""Leases on a real broker: frozen processes and dead connections, and never two members that may hand out one partition."""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from tests.support.kafka_cluster import KafkaCluster, NewTopicFactory

pytestmark = pytest.mark.kafka

_SESSION_S = 2.0
#: Two samples of one member that are no further apart stand for the time between them.
_NEAR_S = 0.1

#: (moment, partitions), in order.
Samples = list[tuple[float, frozenset[int]]]


class _Process:
    """A member's process, and what it said."""

    def __init__(self, **settings: Any) -> None:
        self.samples: Samples = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kafka.lease_member", json.dumps(settings)], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            moment, *partitions = line.split()
            self.samples.append((float(moment), frozenset(map(int, partitions))))

    @property
    def may_hand_out(self) -> int:
        """Of how many partitions, at its last sample."""
        return len(self.samples[-1][1]) if self.samples else 0

    def freeze_for(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT."""
        os.kill(self._process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> Samples:
        self._process.kill()
        self._process.wait(10)
        self._reader.join(10)
        return self.samples


def _shared(one: Samples, other: Samples) -> int:
    """How many samples of one member name a partition that the other one might hand out at that moment, too."""
    moments = [moment for moment, _ in other]
    shared = 0
    for moment, held in one:
        after = bisect.bisect(moments, moment)
        if 0 < after < len(other) and moments[after] - moments[after - 1] <= _NEAR_S:
            shared += bool(held & other[after - 1][1] & other[after][1])
    return shared


def _until(condition: Any, within_s: float = 40) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.02)


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
def _pair(first: dict[str, Any], second: dict[str, Any]) -> Iterator[tuple[_Process, _Process]]:
    one, two = _Process(**first), _Process(**second)
    try:
        _until(lambda: one.may_hand_out == two.may_hand_out == 2)
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
    with _pair(settings, settings) as (one, two):
        for sessions in (0.5, 1.5, 3.0):
            one.freeze_for(sessions * _SESSION_S)
            _until(lambda: one.may_hand_out == two.may_hand_out == 2)
        shared = _shared(one.end(), two.end())
    assert (shared == 0) is lease, shared


@attrs.define
class _Proxy:
    """Forwards connections to a broker.  Those that exist at :meth:`swallow` carry nothing any more, and stay open."""

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
    settings = _settings(kafka, topic(partitions=4), group)
    with _pair({**settings, "proxy": proxy.port, "client.id": "proxied"}, settings) as (one, two):
        for rebalances in (False, True, True):
            accepted = proxy.accepted
            # Another member makes the group rebalance at that moment.
            newcomer = _Process(**settings) if rebalances else None
            try:
                assert proxy.swallow() > 0
                started = time.monotonic()
                _until(lambda accepted=accepted: proxy.accepted > accepted)
                if newcomer is not None:
                    _until(lambda newcomer=newcomer: newcomer.may_hand_out >= 1)
            finally:
                samples = newcomer.end() if newcomer is not None else []
            assert _shared(samples, one.samples) == _shared(samples, two.samples) == 0
            _until(lambda: one.may_hand_out == two.may_hand_out == 2)
            # Its session and that of the newcomer that was killed, not the rebalance timeout of a minute.
            assert time.monotonic() - started < 30
        assert _shared(one.end(), two.end()) == 0
