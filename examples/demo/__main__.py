"""``make demo``: four members and an assignor in Python; one joins, one leaves, one dies; nothing is lost."""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from consumer_coord.broker.server import EmbeddedKafka
from examples.demo.group import Group, MemberProcess
from examples.demo.ledger import Ledger
from examples.demo.screen import Screen, screen
from examples.demo.stream import OrderStream
from examples.web_page import add_argument, watched

PARTITIONS = 24
ORDERS = 300_000
PER_SECOND = 12_000
PATIENCE_S = 55.0
#: For ``--protocol=consumer``: broker settings that correspond to client settings of members of the classic protocol.
BROKERS = {"group.consumer.session.timeout.ms": 6_000, "group.consumer.heartbeat.interval.ms": 1_000}


def main() -> int:
    """Run the demo; return 0 if every order was processed."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--kafka", help="host:port of a Kafka to use instead of the embedded one")
    parser.add_argument("--orders", type=int, default=ORDERS, help="number of orders (default %(default)s)")
    parser.add_argument(
        "--protocol",
        choices=("classic", "consumer"),
        default="classic",
        help="who assigns the partitions: a member (classic), or the broker (consumer, KIP-848)",
    )
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, help="seconds after which the demo ends in any case (default %(default)g)"
    )
    add_argument(parser)
    arguments = parser.parse_args()
    name = f"demo-{os.getpid()}"
    page = Path(tempfile.gettempdir()) / "consumer-coord-demo.html"
    with cluster(arguments.kafka) as (servers, topic), watched(arguments.web, servers, name, page):
        return run(servers, name, topic, arguments.orders, arguments.protocol, arguments.patience)


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[tuple[str, str]]:
    """Yield the brokers' addresses and a new topic."""
    topic = f"demo-orders-{os.getpid()}"
    if address is None:
        print("using an embedded Kafka of three brokers, in this process; KAFKA=host:port uses a real Kafka")
        with EmbeddedKafka(topics={topic: PARTITIONS}, brokers=3, config=BROKERS) as kafka:
            yield kafka.bootstrap_servers, topic
        return
    admin = AdminClient({"bootstrap.servers": address})
    try:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)], operation_timeout=20)[topic].result(30)
    except KafkaException as error:
        raise SystemExit(f"no topic could be created on {address}: {error.args[0].str()}") from None
    try:
        yield address, topic
    finally:
        admin.delete_topics([topic])[topic].result(30)


def run(servers: str, name: str, topic: str, orders: int, protocol: str = "classic", patience_s: float = PATIENCE_S) -> int:
    """Run the steps of the demo, and then print the summary."""
    show, ledger = screen(), Ledger(PARTITIONS)
    group = Group(servers, name, topic, protocol)
    stream = OrderStream(servers, topic, orders, PER_SECOND)
    started = time.monotonic()
    try:
        ann, bob, _, _ = (group.start(name, capacity) for name, capacity in CAST)
        shares = "ann can take twice as much as the others" if protocol == "classic" else "the broker shares out evenly"
        show.event(f"four members start; {shares}")
        stream.start()
        story: list[tuple[float, str, Callable[[], object]]] = [
            (3.0, "eve joins: only the partitions that move pause", lambda: group.start("eve")),
            (5.0, "bob leaves", lambda: group.leave(bob)),
            (5.0, "ann is killed; her session ends after 6 s", lambda: die(group, ann, ledger)),
        ]
        calm_since: float | None = None
        while time.monotonic() - started < patience_s:
            # The next step begins when all members have had partitions for some time.
            if not shared(group, ledger):
                calm_since = None
            elif calm_since is None:
                calm_since = time.monotonic()
            elif story and time.monotonic() - calm_since >= story[0][0]:
                _, text, act = story.pop(0)
                show.event(text)
                act()
                calm_since = None
            listen(group, ledger, show, until=time.monotonic() + 0.25)
            show.update(group.members, ledger, stream.count)
            if stream.failed is not None:
                raise SystemExit(stream.failed)
            crashed = [member.name for member in group.members if member.state == "consuming" and not member.alive]
            if crashed:
                raise SystemExit(f"member {crashed[0]} ended unexpectedly")
            if not story and not stream.is_alive() and ledger.distinct >= stream.count and shared(group, ledger):
                break
        finished = time.monotonic() - started
    finally:
        group.close()
        show.close()
    for _, text, _ in story:
        print(f"not reached within {patience_s:g} s (--patience): {text}")
    return summary(ledger, stream, finished)


CAST = (("ann", 2), ("bob", 1), ("cid", 1), ("dan", 1))


def die(group: Group, member: MemberProcess, ledger: Ledger) -> None:
    """Kill a member, and record the kill in the ledger, because a killed member cannot report it."""
    group.kill(member)
    ledger.freed(member.name, ledger.owned_by(member.name), time.time())


def shared(group: Group, ledger: Ledger) -> bool:
    """Return whether every partition has an owner, and every member has partitions."""
    alive = {member.name for member in group.members if member.alive and member.state != "leaving"}
    return len(ledger.owner) == ledger.partitions and set(ledger.owner.values()) == alive


def listen(group: Group, ledger: Ledger, show: Screen, until: float) -> None:
    """Record the members' events until the time ``until``, when the screen is drawn again."""
    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            member, said = group.lines.get(timeout=left)
            take_in(member, said, ledger, show)


def take_in(member: MemberProcess, said: dict[str, object], ledger: Ledger, show: Screen) -> None:
    """Record one event of a member."""
    event, at = said["event"], float(str(said["at"]))
    partitions = said.get("partitions")
    numbers = list(partitions) if isinstance(partitions, list) else []
    if event == "processed":
        ranges, customers = said["ranges"], said["customers"]
        assert isinstance(ranges, dict)
        assert isinstance(customers, dict)
        ledger.done(ranges, customers)
        count = sum(customers.values())
        member.processed += count
        member.recent.append((time.monotonic(), count))
    elif event == "closed":
        member.state = "left"
    elif member.state != "killed":
        generation = said.get("generation")
        if isinstance(generation, int):
            member.generation = generation
        if event == "assigned":
            ledger.assigned(member.name, numbers, at)
            member.state = "consuming" if member.state == "joining" else member.state
        elif event in ("revoked", "lost"):
            ledger.freed(member.name, numbers, at)
        if event != "generation" and numbers:
            show.event(f"{member.name} {event} {len(numbers)} of {ledger.partitions} (generation {member.generation})")


def summary(ledger: Ledger, stream: OrderStream, seconds: float) -> int:
    """Print the result; return 0 if no order is missing."""
    missing = {
        customer: count - ledger.processed[customer]
        for customer, count in stream.acknowledged.items()
        if ledger.processed[customer] < count
    }
    surplus = ledger.processed.total() - stream.count
    whole = not missing and not ledger.gaps and ledger.distinct == stream.count and surplus == ledger.duplicates
    print()
    print(f"{stream.count:,} orders of {len(stream.acknowledged)} customers produced in {seconds:.0f} s")
    print(
        f"{ledger.distinct:,} processed, counted by customer: "
        + ("none missing" if whole else f"MISSING for {len(missing)} customers, {ledger.gaps} gaps")
    )
    print(f"{ledger.duplicates:,} processed twice (ann processed these orders, but was killed before she committed them)")
    print(f"{ledger.moves} partitions changed owners; without an owner for {ledger.unowned_s:.1f} partition-seconds in total")
    print("  (nearly all after ann was killed: the group notices a kill only after the session timeout)")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
