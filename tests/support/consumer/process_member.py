"""A member that processes in parallel, as a child process that a test kills or stops: ``python -m ... <bootstrap.servers>``.

Its handlers wait for ever at the values 0 to 3. It prints a line for each record: the value, and why the result does not count.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from consumer_coord import AsyncGroupConsumer
from consumer_coord.process import context

#: The settings of the members of a test; a session is short, so that the group soon removes a member that was killed.
SETTINGS = {
    "group.id": "billing",
    "auto.offset.reset": "earliest",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 1_500,
    "heartbeat.interval.ms": 100,
    "auto.commit.interval.ms": 10,
}


async def handle(message: Any) -> None:
    """Print the value; at the first four values, wait until the result no longer counts."""
    number = int(message.value())
    if number < 4:
        await context().lost.wait()
        print(number, context().reason, flush=True)
        raise asyncio.CancelledError
    print(number, "finished", flush=True)


async def main(bootstrap: str) -> None:
    """Process until the process is killed."""
    async with AsyncGroupConsumer({**SETTINGS, "bootstrap.servers": bootstrap}) as member:
        await member.subscribe(["orders"])
        await member.process(handle, drain_timeout=60)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
