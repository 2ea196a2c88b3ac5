"""Child processes of the tests: leftover ones can be listed."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path


def running() -> frozenset[int]:
    """Return every process of the machine (empty on a system without ``/proc``)."""
    return frozenset(int(name) for name in os.listdir("/proc") if name.isdecimal()) if Path("/proc").is_dir() else frozenset()


def children(besides: Collection[int] = ()) -> Mapping[int, str]:
    """Return the living child processes of this process, except those in ``besides``: pid -> command line."""
    found = {}
    for pid in running().difference(besides):
        entry = Path("/proc", str(pid))
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # ended since the directory was listed
        state, parent = after_name[0], int(after_name[1])
        if parent == os.getpid() and state != "Z":
            found[pid] = command
    return found


def processor_s(task: str) -> float:
    """Return the processor time in seconds of a process, ``123``, or of one of its threads, ``123/task/456``."""
    fields = Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Return the memory of a process in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
