"""Members in processes of their own (``lease_member.py``): what each might hand out when, and whether two might at once."""

from __future__ import annotations

import bisect
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from tests.support.waiting import eventually

#: For whatever these processes are to come to.
DEADLINE_S = 40.0
#: Two samples of one member that are no further apart stand for the time between them.
_NEAR_S = 0.1

#: (moment, partitions), in order.
Samples = list[tuple[float, frozenset[int]]]


class LeaseProcess:
    """A member's process, and what it said."""

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
                moment, *partitions = line.split()
                self.samples.append((float(moment), frozenset(map(int, partitions))))

    @property
    def may_deliver(self) -> int:
        """Of how many partitions, at its last sample."""
        return len(self.samples[-1][1]) if self.samples else 0

    def freeze(self) -> None:
        """It has stopped itself, between what it holds and its lease."""
        self._process.send_signal(signal.SIGUSR1)
        eventually(self._is_stopped, "the stop of a member", within_s=DEADLINE_S)

    def _is_stopped(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG) is not None

    def thaw(self) -> None:
        """SIGCONT, and until it said something."""
        before = len(self.samples)
        self._process.send_signal(signal.SIGCONT)
        eventually(lambda: len(self.samples) > before, "a sample of a member that goes on", within_s=DEADLINE_S)

    def end(self) -> Samples:
        """SIGKILL; returns what it said."""
        self._process.kill()
        self._process.wait(10)
        self._reader.join(10)
        return self.samples


def shared(one: Samples, other: Samples) -> int:
    """How many samples of one member name a partition that the other one might hand out at that moment, too."""
    moments = [moment for moment, _ in other]
    count = 0
    for moment, held in one:
        after = bisect.bisect(moments, moment)
        if 0 < after < len(other) and moments[after] - moments[after - 1] <= _NEAR_S:
            count += bool(held & other[after - 1][1] & other[after][1])
    return count
