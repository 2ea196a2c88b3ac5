"""A member in a separate process that writes, every few milliseconds, the partitions whose records it may deliver.

The argument is a JSON object of settings, with ``topic``.  With ``proxy``, all connections go to that port of this host. Each
line of output has the machine's clock in seconds, then the partitions.  After SIGUSR1 the process stops itself (SIGSTOP) at the
worst moment: between the read of the held partitions and the check of the lease.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time

from assignors import CooperativeStickyAssignor
from consumer_coord.environment import Transport
from consumer_coord.net import shared_clusters
from consumer_coord.net.tcp import TcpConnector
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator

#: A sample is at most this old when it is written, in seconds.
EVERY_S = 0.005


def through(port: int) -> type[TcpConnector]:
    """Return a connector that always connects to a port of this host."""

    class Through(TcpConnector):
        async def connect(self, host: str, _: int) -> Transport:
            return await super().connect("127.0.0.1", port)

    return Through


def main() -> None:
    """Poll for ever."""
    # Block the signal before other threads start, so that it stays pending until the loop below receives it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    # A failed test prints why the member rejoined, and what it lost.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    settings = json.loads(sys.argv[1])
    topic, proxy = settings.pop("topic"), settings.pop("proxy", None)
    if proxy is not None:
        vars(shared_clusters)["TcpConnector"] = through(proxy)
    member = BlockingCoordinator(settings, assignors=[CooperativeStickyAssignor])
    member.subscribe([topic])
    core = member.core
    while True:
        # As in a consumer: the held partitions were read earlier, and the lease is checked when a record is delivered.
        held = sorted(partition.partition for partition in core.assignment.held)
        if signal.sigtimedwait({signal.SIGUSR1}, 0) is not None:
            # A signal to this thread: the call returns only when the process continues.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        moment = core.lease.clock()
        if moment < core.lease.until:
            print(f"{moment:.6f}", *held, flush=True)
        else:
            print(f"{moment:.6f}", flush=True)
        member.record_poll()
        change = member.pending_change()
        member.release(change.lost)
        member.release(change.revoked)
        member.accept(change)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
