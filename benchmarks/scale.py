"""Benchmark (m): one group of up to 10,000 members and 100,000 partitions on the embedded broker.

``python -m benchmarks.scale [--sizes 100 1000 10000]``

Members without a data plane run in four processes, with ten partitions for each member, cooperative-sticky and sessions of 2
min. *start*: until all own their partitions; *join* and *sync*: the longest JoinGroup and SyncGroup of a member; *heartbeats*:
heartbeats per second of the idle group, and the longest of them. The memory is that of each process, minus the memory of an
empty process.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from benchmarks.growth import Growing
from benchmarks.table import markdown, number
from consumer_coord.broker.server import EmbeddedKafka
from tests.support.processes import rss_mb

_PARTITIONS_A_MEMBER = 10
_IDLE_S = 10.0
_PROCESSES = 4
#: The group's record must fit into a batch of ``__consumer_offsets``. Each member needs a connection while its JoinGroup waits.
#: And the first rebalance should wait for all members, which is the purpose of the last setting.
_BROKER = {"message.max.bytes": 64 * 2**20, "max.connections": 19_000, "group.initial.rebalance.delay.ms": 3_000}
#: Ten thousand members on two cores need longer timeouts than the defaults. Otherwise, a member would send JoinGroup again
#: after its session timeout, open connections again, and report a join that takes long.
_SETTINGS = {
    "session.timeout.ms": 120_000,
    "socket.connection.setup.timeout.ms": 120_000,
    "default.api.timeout.ms": 600_000,
}
HEAD = (
    "members",
    "partitions",
    "start, s",
    "join, ms",
    "sync, ms",
    "heartbeats/s",
    "heartbeat, ms",
    "client KB a member",
    "broker KB a member",
)


def measure(members: int) -> list[str]:
    """Return a row of the table."""
    partitions = members * _PARTITIONS_A_MEMBER
    empty_mb = rss_mb(os.getpid())
    with EmbeddedKafka(topics={"records": partitions}, config=_BROKER) as kafka:
        group = Growing(kafka.bootstrap_servers, ["records"], _PROCESSES, **_SETTINGS)
        try:
            client_mb = sum(one.rss_mb for one in group.figures())
            began = time.monotonic()
            group.add(members)
            settled_at, _ = group.settled(members, partitions)
            before = group.figures()
            time.sleep(_IDLE_S)
            after = group.figures()
            broker_mb = rss_mb(os.getpid())
        finally:
            group.close()
    return [
        f"{members:,}",
        f"{partitions:,}",
        number(settled_at - began),
        number(max(one.join_ms for one in before)),
        number(max(one.sync_ms for one in before)),
        number((sum(one.heartbeats for one in after) - sum(one.heartbeats for one in before)) / _IDLE_S),
        number(max(one.heartbeat_ms for one in after)),
        number((sum(one.rss_mb for one in after) - client_mb) * 1024 / members),
        number((broker_mb - empty_mb) * 1024 / members),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000], help="numbers of members")
    options = parser.parse_args(arguments)
    print(markdown(HEAD, [measure(members) for members in options.sizes]), flush=True)


if __name__ == "__main__":
    main()
