"""A member in a process of its own that says, every few milliseconds, which partitions it may hand out records of.

Run with settings as JSON on the command line, ``topic`` among them.  With ``proxy`` its connections to any broker go to that
port of this host.  A line: the machine's clock in seconds, then the partitions.  After SIGUSR1 it stops itself (SIGSTOP) at the
worst moment: it has read what it holds, and is about to look at its lease.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

from assignors import CooperativeStickyAssignor
from consumer_coord.environment import Transport
from consumer_coord.net.tcp import TcpConnector
from consumer_coord.runtime import background as runtime
from consumer_coord.runtime.blocking_coordinator import BlockingCoordinator

#: The data of one sample are no older than this when it is written.
EVERY_S = 0.005


def through(port: int) -> type[TcpConnector]:
    """A connector that connects to a port of this host, whatever is asked for."""

    class Through(TcpConnector):
        async def connect(self, host: str, _: int) -> Transport:
            return await super().connect("127.0.0.1", port)

    return Through


def main() -> None:
    """Poll for ever."""
    # Here, before there are other threads: it waits until it is asked for.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    settings = json.loads(sys.argv[1])
    topic, proxy = settings.pop("topic"), settings.pop("proxy", None)
    if proxy is not None:
        vars(runtime)["TcpConnector"] = through(proxy)
    member = BlockingCoordinator(settings, assignors=[CooperativeStickyAssignor])
    member.subscribe([topic])
    core = member.core
    while True:
        # As a consumer does: what is held was read ahead, and the lease is looked at when a record is handed out.
        held = sorted(partition.partition for partition in core.assignment.held)
        if signal.sigtimedwait({signal.SIGUSR1}, 0) is not None:
            # To this thread: the call does not return before the process goes on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        moment = core.lease.clock()
        if moment < core.lease.until:
            print(f"{moment:.6f}", *held, flush=True)
        else:
            print(f"{moment:.6f}", flush=True)
        member.polled()
        change = member.change()
        member.let_go(change.lost)
        member.let_go(change.revoked)
        member.take_up(change)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
