"""How each program is started, and the environments of the peers that need one of their own."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from benchmarks.parallel_peers.calls import Task
from consumer_coord.testing.jars import UnavailableError, cache_directory, ensure_jars, exclusive
from tests.support.jar_sets import PARALLEL_CONSUMER
from tests.support.java import JavaProgram
from tools import pythons

ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).parent
_JAVA_SOURCE = _HERE / "ParallelConsumerPeer.java"
_INSTALL_S = 300


@attrs.frozen
class Peer:
    """A program: which drivers it has, and, if it needs an environment of its own, the Pythons that it runs with."""

    drivers: Sequence[str]
    oldest: tuple[int, int] | None = None
    newest: tuple[int, int] = (3, 99)
    #: Whether it can be a member of a group on a real Kafka.
    in_group: bool = True


PEERS = {
    "bare": Peer(("asyncio", "threads", "processes"), in_group=False),
    "ours": Peer(("asyncio", "threads", "processes")),
    "pool": Peer(("threads",)),
    "java": Peer(("threads",)),
    "pyrallel": Peer(("asyncio", "processes"), oldest=(3, 12)),
    "prosody": Peer(("asyncio",), oldest=(3, 11), newest=(3, 11), in_group=False),
}


def command(name: str, task: Task) -> list[str]:
    """Return the command that runs a program; raise :class:`UnavailableError`, with one line, if it cannot be had."""
    if name == "java":
        jvm = ("-Xmx512m",)
        program = JavaProgram(ensure_jars(PARALLEL_CONSUMER), "ParallelConsumerPeer", [str(_JAVA_SOURCE)], jvm)
        place = (task.bootstrap, task.topic, task.group)
        figures = (task.concurrency, task.records, task.seconds, task.work)
        return program.command(*place, *map(str, figures), task.log, str(task.session_ms))
    peer = PEERS[name]
    python = sys.executable if peer.oldest is None else str(_environment(name, peer))
    return [python, "-m", f"benchmarks.parallel_peers.{name}", json.dumps(vars(task))]


def _environment(name: str, peer: Peer) -> Path:
    """Return the Python of a peer's environment, which is made once per machine."""
    pinned = _HERE / f"{name}.txt"
    place = cache_directory() / "environments" / f"{name}-{hashlib.sha256(pinned.read_bytes()).hexdigest()[:16]}"
    with exclusive(place.with_suffix(".lock")):
        if not place.exists():
            _install(name, peer, pinned, place)
    return place / "bin" / "python"


def _install(name: str, peer: Peer, pinned: Path, place: Path) -> None:
    found = pythons.pythons(pythons.candidates())
    able = [python for version, python in found.items() if (peer.oldest or (0, 0)) <= version[:2] <= peer.newest]
    if not able:
        raise UnavailableError(f"{name} needs a Python >= {'.'.join(map(str, peer.oldest or ()))}, and none was found")
    try:
        for arguments in (
            [str(able[-1]), "-m", "venv", str(place)],
            [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(pinned)],
        ):
            ran = subprocess.run(arguments, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
            if ran.returncode != 0:
                lines = ran.stderr.strip().splitlines() or ["no reason given"]
                raise UnavailableError(f"{name} cannot be installed with {able[-1]}: {lines[-1]}")
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
