"""Start, stop and kill the members' processes, and read their output."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs

_ROOT = Path(__file__).resolve().parents[2]


@attrs.define(eq=False)
class MemberProcess:
    """A member's process, and the state that the member reported last."""

    name: str
    capacity: int
    process: subprocess.Popen[str]
    state: str = "joining"
    generation: int = -1
    processed: int = 0
    recent: list[tuple[float, int]] = attrs.field(factory=list)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def per_second(self, moment: float) -> float:
        """Return orders per second over the last two seconds."""
        self.recent = [(at, count) for at, count in self.recent if moment - at < 2.0]
        return sum(count for _, count in self.recent) / 2.0


class Group:
    """The processes of the members. Their output arrives in :attr:`lines` as (member, event)."""

    def __init__(self, servers: str, group: str, topic: str, protocol: str = "classic") -> None:
        self.members: list[MemberProcess] = []
        self.lines: queue.Queue[tuple[MemberProcess, dict[str, Any]]] = queue.Queue(maxsize=10_000)
        self._arguments = [servers, group, topic]
        self._protocol = protocol

    def start(self, name: str, capacity: int = 1) -> MemberProcess:
        """Start one more member."""
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo.member", *self._arguments, name, str(capacity), self._protocol],
            cwd=_ROOT,
            env={**os.environ, "CAPACITY": str(capacity)},
            stdout=subprocess.PIPE,
            text=True,
        )
        member = MemberProcess(name, capacity, process)
        self.members.append(member)
        threading.Thread(target=self._listen, args=(member,), name=f"listen to {name}", daemon=True).start()
        return member

    def _listen(self, member: MemberProcess) -> None:
        assert member.process.stdout is not None
        for line in member.process.stdout:
            self.lines.put((member, json.loads(line)))

    def leave(self, member: MemberProcess) -> None:
        """Close a member: it commits, revokes its partitions and leaves."""
        member.state = "leaving"
        member.process.send_signal(signal.SIGTERM)

    def kill(self, member: MemberProcess) -> None:
        """Kill a member with SIGKILL; the group notices when the session expires."""
        member.state = "killed"
        member.process.kill()

    def close(self) -> None:
        """End every member that still runs."""
        running = [member for member in self.members if member.alive]
        for member in running:
            member.process.send_signal(signal.SIGTERM)
        ends = time.monotonic() + 15
        for member in running:
            try:
                member.process.wait(max(0.1, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
