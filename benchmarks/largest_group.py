"""Benchmark (l): the size at which a group's record becomes too large for the broker.

``python -m benchmarks.largest_group [--limit 16000]``

A classic group is one record of ``__consumer_offsets``: the subscription and the assignment of each member. The record must fit
into ``message.max.bytes`` (1,048,588 bytes by default), or the group cannot continue. The benchmark measures for each client:
the bytes per member and per partition, from the records of groups in which all members joined twice, because cooperative
members then send the partitions that they own; the number of members that fit together with a thousand partitions; and, with
``--limit`` as ``max.message.bytes`` of that topic, the largest group that formed, and the errors that the applications of a
larger group received.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence

import attrs
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks import cluster
from benchmarks.fleet import (
    AIOKAFKA,
    CONFLUENT,
    CONFLUENT_RANGE,
    JAVA,
    JAVA_RANGE,
    KAFKA_PYTHON,
    OURS,
    OURS_RANGE,
    Fleet,
    Variant,
    Watch,
    start_fleet,
)
from benchmarks.table import markdown
from consumer_coord.testing.real_kafka import RealKafka
from consumer_coord.wire import offsets_topic

VARIANTS = (OURS, CONFLUENT, JAVA, KAFKA_PYTHON, OURS_RANGE, CONFLUENT_RANGE, JAVA_RANGE, AIOKAFKA)
HEAD = (
    "client",
    "bytes a member",
    "bytes a partition",
    "members by 1,048,588 bytes",
    "members at the limit",
    "next member gets",
)
_DEFAULT_LIMIT = 1_048_588
_MEMBERS, _PARTITIONS = 8, 500
#: Maximum number of bytes of a batch with one record, in addition to the record's key and value.
_AROUND = 100
_TRIAL_S = 30.0
_TOPIC = "__consumer_offsets"
_groups = itertools.count(1)


@attrs.frozen
class Trial:
    """The result of one group. ``record``: size of the group's record in bytes, or None if the group did not form."""

    record: int | None
    errors: Sequence[str]


def attempt(variant: Variant, kafka: RealKafka, topic: str, partitions: int, members: int) -> Trial:
    """Form a group whose last member joins later than the others."""
    group = f"largest-{next(_groups)}"
    fleets: list[Fleet] = []

    def start(count: int) -> None:
        libs = cluster.libs()
        fleet = start_fleet(variant, libs, kafka.bootstrap_servers, group, topic, count, name=f"{group}-{len(fleets)}")
        fleets.append(fleet)
        fleet.await_ready()
        fleet.subscribe()

    try:
        start(members - 1)
        Watch(fleets, partitions).settle(members - 1, deadline_s=_TRIAL_S)
        start(1)
        Watch(fleets, partitions).settle(members, deadline_s=_TRIAL_S)
        return Trial(_record(kafka, group), ())
    except TimeoutError:
        return Trial(None, sorted({error.partition(": ")[2] for fleet in fleets for error in fleet.errors}))
    finally:
        for fleet in fleets:
            fleet.kill()


def _record(kafka: RealKafka, group: str) -> int:
    """Return the size of the group's last record, in bytes."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True})
    found = 0
    try:
        numbers = consumer.list_topics(_TOPIC, 30).topics[_TOPIC].partitions
        consumer.assign([TopicPartition(_TOPIC, number, 0) for number in numbers])
        ended: set[int] = set()
        ends = time.monotonic() + _TRIAL_S
        while len(ended) < len(numbers):
            if time.monotonic() > ends:
                raise TimeoutError(f"{_TOPIC} was not read to its end")
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                ended.add(message.partition())
                continue
            key, value = message.key(), message.value()
            if key is None or value is None or offsets_topic.decode_key(key) != offsets_topic.GroupMetadataKey(group):
                continue
            if offsets_topic.decode_group_value(value).members:
                found = len(key) + len(value) + _AROUND
        return found
    finally:
        consumer.close()


@contextlib.contextmanager
def limited(kafka: RealKafka, limit: int) -> Iterator[None]:
    """Limit the batches of ``__consumer_offsets`` to ``limit`` bytes."""

    def alter(how: AlterConfigOpType) -> None:
        entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=how)
        resource = ConfigResource(ResourceType.TOPIC, _TOPIC, incremental_configs=[entry])
        for future in kafka.admin.incremental_alter_configs([resource]).values():
            future.result(30)

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)


def measure(variant: Variant, kafka: RealKafka, limit: int) -> list[str]:
    """Return a row of the table."""
    topic, larger = kafka.new_topic(_PARTITIONS), kafka.new_topic(2 * _PARTITIONS)
    sizes = [
        attempt(variant, kafka, topic, _PARTITIONS, _MEMBERS).record,
        attempt(variant, kafka, topic, _PARTITIONS, 2 * _MEMBERS).record,
        attempt(variant, kafka, larger, 2 * _PARTITIONS, _MEMBERS).record,
    ]
    if None in sizes:
        raise TimeoutError(f"{variant.name}: a group did not settle")
    few, more, wide = (size or 0 for size in sizes)
    a_member, a_partition = (more - few) / _MEMBERS, (wide - few) / _PARTITIONS
    rest = few - _MEMBERS * a_member - _PARTITIONS * a_partition

    def fitting(of: int, partitions: int) -> int:
        return int((of - rest - partitions * a_partition) / a_member)

    heard: Sequence[str] = ()
    possible, impossible = 2 * _MEMBERS, 3 * fitting(limit, _PARTITIONS) // 2
    with limited(kafka, limit):
        while impossible - possible > 1:
            count = (possible + impossible) // 2
            trial = attempt(variant, kafka, topic, _PARTITIONS, count)
            if trial.record is None:
                impossible, heard = count, trial.errors
            else:
                possible = count
    of_default = f"{fitting(_DEFAULT_LIMIT, 1_000):,}"
    return [variant.name, f"{a_member:.0f}", f"{a_partition:.1f}", of_default, str(possible), "; ".join(heard) or "nothing"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.largest_group", description=__doc__)
    parser.add_argument("--limit", type=int, default=16_000)
    parser.add_argument("--only", nargs="+", help="names of clients, as in the table")
    options = parser.parse_args(arguments)
    rows = []
    with cluster.broker() as kafka:
        for variant in VARIANTS:
            if options.only is not None and variant.name not in options.only:
                continue
            try:
                rows.append(measure(variant, kafka, options.limit))
            except (TimeoutError, KafkaException) as error:
                rows.append([variant.name, *[str(error)] * (len(HEAD) - 1)])
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(f"\n{_PARTITIONS} partitions, a limit of {options.limit:,} bytes:\n\n{markdown(HEAD, rows)}")


if __name__ == "__main__":
    main()
