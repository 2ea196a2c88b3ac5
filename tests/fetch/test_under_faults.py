"""The fetcher under random faults in virtual time delivers exactly the records of the current log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs
import pytest

from consumer_coord.broker.config import RACK_AWARE_SELECTOR
from consumer_coord.broker.requests.handlers import SERVED
from consumer_coord.errors import MalformedMessageError
from consumer_coord.fetch import FetchConfig, Fetcher, FetchStart, StopReason
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from tests.support.fetch.world import FETCH, Reader, World, play

#: ``FETCH_SEEDS=5000 FETCH_FIRST_SEED=1000`` runs other seeds.
SEEDS = range(
    int(os.environ.get("FETCH_FIRST_SEED", "0")),
    int(os.environ.get("FETCH_FIRST_SEED", "0")) + int(os.environ.get("FETCH_SEEDS", "100")),
)
BROKERS = 3
PARTITIONS = [TopicPartition("t", number) for number in range(4)]
#: From this version on, a request names the leader epoch; without it, a truncation may go unnoticed.
EPOCHS_FROM = 9
PRODUCERS = (7, 8)


def visible(world: World, partition: TopicPartition, committed: bool) -> list[tuple[int, bytes]]:
    """Return the records that a reader of the whole log gets, computed from the log alone."""
    found: list[tuple[int, int, bytes]] = []
    aborted: set[tuple[int, int]] = set()
    open_since: dict[int, int] = {}
    for record in world.partition(partition).log.records():
        assert not isinstance(record, MalformedMessageError)
        if record.control:
            if not record.committed:
                aborted.update(
                    (offset, producer)
                    for offset, producer, _ in found
                    if producer == record.producer_id and offset >= open_since.get(producer, record.offset)
                )
            open_since.pop(record.producer_id, None)
            continue
        if record.transactional:
            open_since.setdefault(record.producer_id, record.offset)
        found.append((record.offset, record.producer_id, record.value or b""))
    return [(offset, value) for offset, producer, value in found if not (committed and (offset, producer) in aborted)]


@attrs.define
class Story:
    """A random history of one world."""

    world: World
    random: Random
    reader: Reader
    version: int
    committed: bool
    #: The partitions that the reader reads; faults meet all partitions.
    partitions: Sequence[TopicPartition]
    stops: list[StopReason]
    serial: int = 1

    # -- the faults of the cluster

    def strike(self) -> None:
        """Cause a random fault."""
        options = [self._write] * 6 + [self._move] * 2 + [self._disconnect, self._stop, self._slow, self._block, self._transact]
        if not self.committed and self.version >= EPOCHS_FROM:
            options.append(self._truncate)
        if self.version >= 13:
            options.append(self._recreate)
        self.random.choice(options)()

    def _partition(self) -> TopicPartition:
        return self.random.choice(PARTITIONS)

    def _write(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            producer_id = self.random.choice((-1, -1, *PRODUCERS))
            self.world.write(
                self._partition(), self.random.randrange(1, 5), value=b"v" * self.random.randrange(200), producer_id=producer_id
            )

    def _transact(self) -> None:
        for one in PARTITIONS:
            for producer_id in PRODUCERS:
                if self.random.random() < 0.5:
                    self.world.end_transaction(one, producer_id, committed=self.random.random() < 0.5)

    def _up(self) -> list[int]:
        return [node.broker_id for node in self.world.cluster.nodes if node.up]

    def _move(self) -> None:
        self.world.cluster.move_leader("t", self._partition().partition, self.random.choice(self._up()))

    def _truncate(self) -> None:
        one = self._partition()
        log = self.world.partition(one).log
        batches = sorted({batch.base_offset for batch in log._batches if batch.base_offset >= log.log_start_offset})
        if batches:
            end_offset = self.random.choice(batches[-3:])
            self.world.cluster.move_leader("t", one.partition, self.random.choice(self._up()), end_offset)

    def _recreate(self) -> None:
        if self.random.random() < 0.3:
            self.world.cluster.delete_topic("t")
            self.world.cluster.create_topic("t", len(PARTITIONS))

    def _disconnect(self) -> None:
        self.world.network.disconnect(self.world.cluster.nodes[self.random.randrange(BROKERS)].host)

    def _later(self, undo: Any) -> None:
        self.world.loop.call_later(self.random.uniform(0.1, 5), undo)

    def _stop(self) -> None:
        if len(self._up()) > 1:
            broker = self.random.choice(self._up())
            self.world.cluster.stop(broker)
            self.world.network.disconnect(self.world.cluster.nodes[broker].host)
            self._later(lambda: self.world.cluster.start(broker))

    def _slow(self) -> None:
        host = self.world.cluster.nodes[self.random.randrange(BROKERS)].host
        self.world.network.slow(host, "client", self.random.uniform(0, 2_000))
        self._later(lambda: self.world.network.slow(host, "client", 0))

    def _block(self) -> None:
        host = self.world.cluster.nodes[self.random.randrange(BROKERS)].host
        way = self.random.choice(((host, "client"), ("client", host)))
        self.world.network.block(*way)
        self._later(lambda: self.world.network.unblock(*way))

    # -- the calls of the application

    async def use(self) -> None:
        """Take records, pause, seek and wait."""
        reader, random = self.reader, self.random
        if random.random() < 0.7:
            await reader.fetcher.wait(Deadline.after(random.uniform(1, 2_000)))
        else:
            await asyncio.sleep(random.uniform(0, 2))
        reader.take(random.choice((1, 1_000, 1 << 20)))
        self.restart()
        chance = random.random()
        if chance < 0.1:
            reader.fetcher.pause(random.sample(self.partitions, min(2, len(self.partitions))))
        elif chance < 0.3:
            reader.fetcher.resume(self.partitions)
        elif chance < 0.4:
            self.assign(random.choice(self.partitions))

    def assign(self, one: TopicPartition, *, offset: int | None = None, epoch: int | None = None) -> None:
        """Assign the partition again at its current offset, or at another one."""
        self.serial += 1
        if offset is None:
            offset, epoch = self.reader.positions[one][1], self.reader.epochs[one]
        self.reader.records[one] = [row for row in self.reader.records.get(one, ()) if row[0] < offset]
        # Without an id the current topic is read, so records of a former topic are discarded with its first record.
        topic_id = self.world.cluster.topics.by_name["t"].topic_id
        if epoch is None or (one in self.topic_ids and self.topic_ids[one] != topic_id):
            offset, epoch = 0, -1
            self.reader.records[one] = []
        self.topic_ids[one] = topic_id
        self.reader.assign({one: FetchStart(self.serial, offset, epoch, topic_id)})

    topic_ids: dict[TopicPartition, Any] = attrs.field(factory=dict)

    def restart(self) -> None:
        """Restart an ended read as the caller's policy requires: where the logs agree, or at the beginning."""
        stopped, self.reader.stopped = self.reader.stopped, []
        for one in stopped:
            self.stops.append(one.reason)
            if one.reason is StopReason.TRUNCATED and one.end_epoch >= 0:
                self.assign(one.partition, offset=min(one.end_offset, one.offset), epoch=one.end_epoch)
            else:
                assert one.reason in (StopReason.TRUNCATED, StopReason.OUT_OF_RANGE, StopReason.RECREATED), one
                self.assign(one.partition, offset=0)

    def agrees(self) -> bool:
        """Return whether every partition is read to its end, and every record was delivered once and in order."""
        ends = {one: self.world.partition(one).log.last_stable_offset for one in self.partitions}
        if self.reader.stopped or any(self.reader.positions[one][1] < ends[one] for one in self.partitions):
            return False
        return all(self.reader.records.get(one, []) == visible(self.world, one, self.committed) for one in self.partitions)

    def begin(self) -> None:
        """Read every partition from its beginning."""
        for one in self.partitions:
            self.assign(one, offset=0)

    async def end(self) -> None:
        """Read to the ends, and compare all records with the logs."""
        self.reader.fetcher.resume(self.partitions)
        deadline = Deadline.after(300_000)
        while not self.agrees():
            more = await self.reader.fetcher.wait(deadline)
            assert more, f"{self.reader.positions} {[self.world.partition(one).log.end_offset for one in self.partitions]}"
            self.reader.take()
            self.restart()


@attrs.define
class Stories:
    """The histories of several readers with one client, which share their Fetches."""

    random: Random
    begin: Callable[[Sequence[TopicPartition]], Story]
    stories: list[Story]

    async def play(self) -> None:
        """Let all readers read under faults, then to the ends of the logs."""
        world = self.stories[0].world
        using = [asyncio.ensure_future(self._use(number)) for number in range(len(self.stories))]
        for _ in range(60):
            for _ in range(self.random.randrange(3)):
                self.stories[0].strike()
            await asyncio.sleep(self.random.uniform(0, 2))
        await asyncio.gather(*using)
        await asyncio.sleep(10)  # every fault has ended
        for one in PARTITIONS:
            for producer_id in PRODUCERS:
                world.end_transaction(one, producer_id, committed=True)
        for story in self.stories:
            await story.end()
        await asyncio.sleep(10)
        before = len(world.fetches())
        await asyncio.sleep(10)
        # An idle task sends two Fetches a second. Each broker has one task, or two tasks for partitions with two readers.
        most = BROKERS * 2 * 22
        if self.stories[0].reader.fetcher.config.client_rack:
            # The replica in the rack is chosen again every five seconds. After that, two tasks may send brief Fetches for half
            # a second.
            most += len(PARTITIONS) * 2 * 2 * 6
        assert len(world.fetches()) - before <= most
        for story in self.stories:
            await story.reader.fetcher.close()

    async def _use(self, number: int) -> None:
        for _ in range(60):
            if self.random.random() < 0.01:
                # Another reader takes over, while Fetches of the former reader may be in flight.
                await self.stories[number].reader.fetcher.close()
                self.stories[number] = self.begin(self.stories[number].partitions)
            await self.stories[number].use()


def play_history(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[StopReason]:
    """Run a history; return the reasons for which reads ended."""
    random = Random(seed)
    version = random.choice((4, 8, 9, 11, 12, 13, 16, 18))
    monkeypatch.setitem(SERVED, FETCH, attrs.evolve(SERVED[FETCH], max_version=version))
    committed = random.random() < 0.4
    config = FetchConfig(
        read_committed=committed,
        queued_max_bytes=random.choice((500, 5_000, 1 << 20)),
        max_partition_fetch_bytes=random.choice((200, 1_000, 1 << 20)),
        fetch_max_bytes=random.choice((500, 1 << 20)),
        fetch_min_bytes=random.choice((1, 300)),
        client_rack=random.choice(("", "a")),
    )
    readers: list[list[TopicPartition]] = random.choice(
        ([PARTITIONS], [PARTITIONS[:1], PARTITIONS[1:]], [PARTITIONS[:3], PARTITIONS[1:]], [[one] for one in PARTITIONS])
    )
    stops: list[StopReason] = []

    async def history(world: World) -> None:
        client = world.client(metadata_max_age_ms=5_000)

        def begin(partitions: Sequence[TopicPartition]) -> Story:
            reader = Reader(Fetcher(client, config), committed)
            story = Story(world, Random(random.random()), reader, version, committed, partitions, stops)
            story.begin()
            return story

        await Stories(Random(random.random()), begin, [begin(partitions) for partitions in readers]).play()

    cluster = {
        "replica.selector.class": RACK_AWARE_SELECTOR,
        "max.incremental.fetch.session.cache.slots": random.choice((0, 1, 5)),
    }
    play(history, brokers=BROKERS, topics={"t": len(PARTITIONS)}, racks=["b", "a", "c"], config=cluster, seed=seed)
    return stops


@pytest.mark.parametrize("seed", SEEDS)
def test_the_delivered_records_are_those_of_the_log(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    play_history(seed, monkeypatch)


def test_the_histories_meet_every_end_of_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    met = {stop for seed in range(30) for stop in play_history(seed, monkeypatch)}
    assert {StopReason.TRUNCATED, StopReason.RECREATED} <= met
