"""A process with our members without a data plane. ``benchmarks/growth.py`` controls the process with lines of JSON.

The argument is an object with the members' ``config`` and their ``topics``. A line ``{"add": n}`` starts n more members. The
response to ``{"figures": true}`` is the process's :class:`Figures`; the response to any other line is its :class:`State`. At
the end of the input, all members leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from assignors import CooperativeStickyAssignor
from consumer_coord.config import parse
from consumer_coord.group.apply_changes import Holder, apply_changes, run_through
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.net import tcp
from consumer_coord.net.shared_clusters import cluster_client
from tests.support.processes import rss_mb


@attrs.frozen
class State:
    """The state of a process and its members. Times are in seconds of the monotonic clock that all processes share."""

    members: int
    joined: int
    held: int
    """Partitions that the members hold."""
    least: int
    """Partitions that the member with the fewest holds."""
    moved_at: float
    generation: int
    cpu_s: float
    sent: int
    """Bytes sent and received."""


@attrs.frozen
class Figures:
    """The figures of a process and its members: memory in megabytes, and times of requests in milliseconds."""

    rss_mb: float
    #: The longest time of a JoinGroup, a SyncGroup and a Heartbeat request of any member in the last minute.
    join_ms: float
    sync_ms: float
    heartbeat_ms: float
    #: Number of heartbeats of all members so far.
    heartbeats: float


class Application:
    """The application of every member in the process, which accepts assignments at once."""

    def __init__(self, settings: Mapping[str, Any], topics: Sequence[str]) -> None:
        self._config = parse(settings)
        self._topics = topics
        self.shared = cluster_client(self._config.client)
        self.members: list[ConsumerCoordinator] = []
        self._holder = Holder()
        self._moved_at = 0.0

    def add(self) -> None:
        """Start one more member."""
        member = ConsumerCoordinator(self._config.coordinator, self.shared, [CooperativeStickyAssignor()])
        member.subscribe(self._topics)
        self.members.append(member)

    async def run(self) -> None:
        """Run the member's application until it is cancelled."""
        while True:
            for member in self.members:
                if member.application.attention:
                    self._attend(member)
            await asyncio.sleep(0.005)

    def _attend(self, member: ConsumerCoordinator) -> None:
        member.application.record_poll()
        if member.assignment.change():
            self._moved_at = time.monotonic()
            run_through(apply_changes(member, self._holder))

    def state(self) -> State:
        """Return the present state."""
        shares = [len(member.assignment.held) for member in self.members]
        return State(
            members=len(self.members),
            joined=sum(member.protocol.joined for member in self.members),
            held=sum(shares),
            least=min(shares, default=0),
            moved_at=self._moved_at,
            generation=max((member.generation for member in self.members), default=-1),
            cpu_s=time.process_time(),
            sent=_sent[0],
        )

    def figures(self) -> Figures:
        """Return the figures since the start."""
        metrics = [member.metrics() for member in self.members]
        return Figures(
            rss_mb=rss_mb(os.getpid()),
            join_ms=max((one["join-time-max"] for one in metrics), default=math.nan),
            sync_ms=max((one["sync-time-max"] for one in metrics), default=math.nan),
            heartbeat_ms=max((one["heartbeat-response-time-max"] for one in metrics), default=math.nan),
            heartbeats=sum(one["heartbeat-total"] for one in metrics),
        )

    async def close(self) -> None:
        """Close all members."""
        await asyncio.gather(*(member.close(10_000) for member in self.members), return_exceptions=True)
        await self.shared.close()


_sent = [0]


def count_bytes() -> None:
    """Count all bytes that the process sends and receives."""
    send, receive = tcp.TcpTransport.send, tcp.TcpTransport.buffer_updated

    def counting_send(self: tcp.TcpTransport, frame: bytes) -> None:
        _sent[0] += len(frame) + 4
        send(self, frame)

    def counting_receive(self: tcp.TcpTransport, nbytes: int) -> None:
        _sent[0] += nbytes
        receive(self, nbytes)

    setattr(tcp.TcpTransport, "send", counting_send)  # noqa: B010 - this process measures, nothing else
    setattr(tcp.TcpTransport, "buffer_updated", counting_receive)  # noqa: B010


async def _main(setup: Mapping[str, Any]) -> None:
    count_bytes()
    application = Application(setup["config"], setup["topics"])
    running = asyncio.create_task(application.run())
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    try:
        while line := await lines.readline():
            command = json.loads(line)
            for _ in range(command.get("add", 0)):
                application.add()
            answer = application.figures() if "figures" in command else application.state()
            print(json.dumps(attrs.asdict(answer)), flush=True)
            if running.done():
                running.result()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await application.close()


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
