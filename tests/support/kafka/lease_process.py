"""Members in separate processes (``lease_member.py``): when each may deliver which partitions, and whether two may at once."""

from __future__ import annotations

import bisect
import itertools
import json
import operator
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from tests.support.waiting import eventually

#: Deadline for every expected state of the processes, in seconds.
DEADLINE_S = 40.0
#: Two samples of a member with at most this distance are valid for the time between them, in seconds.
_NEAR_S = 0.1

#: (moment, partitions), in order.
Samples = list[tuple[float, frozenset[int]]]


class LeaseProcess:
    """A member's process, and its samples."""

    def __init__(self, **settings: Any) -> None:
        self.samples: Samples = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kafka.lease_member", json.dumps(settings)], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if not line.endswith("\n"):
                    # The kill cut the line. With PYTHONUNBUFFERED, each field is written by itself.
                    break
                moment, *partitions = line.split()
                self.samples.append((float(moment), frozenset(map(int, partitions))))

    @property
    def may_deliver(self) -> int:
        """The number of partitions that the member may deliver, in its last sample."""
        return len(self.samples[-1][1]) if self.samples else 0

    def freeze(self) -> None:
        """Let the process stop itself between the read of its held partitions and the check of its lease."""
        self._process.send_signal(signal.SIGUSR1)
        eventually(self._is_stopped, "the stop of a member", within_s=DEADLINE_S)

    def _is_stopped(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG) is not None

    def thaw(self) -> None:
        """Continue the process with SIGCONT, and wait for its next sample."""
        before = len(self.samples)
        self._process.send_signal(signal.SIGCONT)
        eventually(lambda: len(self.samples) > before, "a sample of a member that continues", within_s=DEADLINE_S)

    def end(self) -> Samples:
        """Kill the process with SIGKILL, and return its samples."""
        self._process.kill()
        self._process.wait(10)
        self._reader.join(10)
        return self.samples


def changes_of(samples: Samples) -> Samples:
    """Return the first sample, and each sample whose partitions differ from the sample before."""
    return [next(same) for _, same in itertools.groupby(samples, key=operator.itemgetter(1))]


def shared(one: Samples, other: Samples) -> int:
    """Return how many samples of one member name a partition that the other member might deliver at the same moment."""
    moments = [moment for moment, _ in other]
    count = 0
    for moment, held in one:
        after = bisect.bisect(moments, moment)
        if 0 < after < len(other) and moments[after] - moments[after - 1] <= _NEAR_S:
            count += bool(held & other[after - 1][1] & other[after][1])
    return count
