"""The proof's scene: queries in driver processes, plain consumers of the same group, the written records, and deliveries."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from consumer_coord.testing.proxy import Proxy
from tests.support.members import Member, Members
from tests.support.spark.deliveries import Delivery, Run, Verdict, judge
from tests.support.spark.driver import RUNS
from tests.support.spark.drivers import Driver
from tests.support.waiting import eventually

DEADLINE_S = 300.0
SESSION_TIMEOUT_MS = 10_000
#: A query that ends because it lost its workers does so within this time, in seconds.
SURVIVAL_S = 20.0
#: A member that is still in the group this long after its query's stop is a ghost, in seconds.
GHOST_S = 1.5
#: Spark ends a query whose Python process needs more than 10 s to connect; no setting changes this time.
SPARKS_LIMIT = "Python worker failed to connect back"


@attrs.define
class Flow(threading.Thread):
    """Writes records of 100 bytes to the partitions in turn, ``rate`` a second: at least ``records``, until :meth:`finish`."""

    bootstrap_servers: str
    topic: str
    partitions: int
    records: int
    rate: float
    written: int = 0
    failure: BaseException | None = None
    #: How many earlier topics had this name, and how many records were written to them.
    topics: int = 0
    before: int = 0
    writing: threading.Lock = attrs.field(factory=threading.Lock)
    ending: threading.Event = attrs.field(factory=threading.Event)

    def __attrs_pre_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        """Write until all records are acknowledged."""
        try:
            producer, topics = self._producer(), 0
            began = time.monotonic()
            while self.written < self.records or not self.ending.is_set():
                due = int((time.monotonic() - began) * self.rate) + 1
                if self.ending.is_set():
                    due = min(due, max(self.records, self.written))
                with self.writing:
                    if topics != self.topics:
                        topics = self.topics
                        # The old producer has sequence numbers for the old topic.
                        producer = self._producer()
                    for number in range(self.written, due):
                        value = b"%d%099d" % (self.topics, number)
                        producer.produce(self.topic, value, partition=number % self.partitions)
                        if number % 1000 == 0:
                            producer.poll(0)
                    self.written = due
                    if producer.flush(360):
                        raise RuntimeError("not every record was acknowledged")
                time.sleep(0.02)
        except BaseException as error:  # noqa: BLE001 - raised again by finish
            self.failure = error

    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5, "enable.idempotence": True})

    def recreated(self) -> None:
        """Count a new topic: later records belong to it. Call this while nothing is written (:attr:`writing`)."""
        self.topics += 1
        self.before = self.written

    def finish(self) -> None:
        """Write no more than ``records``, and wait for the end."""
        self.ending.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    __hash__ = threading.Thread.__hash__


@attrs.define(slots=False)
class Scene:
    """A group on one topic: its queries, its plain consumers, and their deliveries."""

    bootstrap_servers: str
    directory: Path
    partitions: int = 12
    master: str = "local[2]"
    static: bool = False
    conf: dict[str, str] = attrs.field(factory=dict)
    topic: str = attrs.field(factory=lambda: f"proof-{os.getpid()}-{time.time_ns()}")
    say: Callable[[str], None] = lambda line: None
    drivers: dict[str, Driver] = attrs.field(factory=dict)
    all_drivers: list[Driver] = attrs.field(factory=list)
    plain: list[Member] = attrs.field(factory=list)
    families: set[int] = attrs.field(factory=set)
    kills: list[str] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    tolerated_failures: int = 0
    deadline_s: float = DEADLINE_S
    #: Queries that Spark ended because of :data:`SPARKS_LIMIT`: a kind of crash, after which a query starts again.
    late: list[str] = attrs.field(factory=list)
    written: int = 0
    #: The proxy to which the queries connect, if they do not connect to the broker.
    proxy: Proxy | None = None
    #: How many earlier topics had this name.
    topics: int = 0
    ghosts: list[str] = attrs.field(factory=list)

    @property
    def group(self) -> str:
        """The group's id, which is the topic's name."""
        return self.topic

    @property
    def sink(self) -> Path:
        """The file to which the batches of all queries append their lines."""
        return self.directory / "sink"

    @functools.cached_property
    def admin(self) -> AdminClient:
        """An admin client that describes the group."""
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def create(self) -> None:
        """Create the topic."""
        self.admin.create_topics([NewTopic(self.topic, self.partitions, 1)])[self.topic].result(180)

    def start(self, name: str, **options: str) -> Driver:
        """Start the query ``name``, or start it again from its checkpoint; the caller must wait for its partitions."""
        settings = {
            "kafka.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "kafka.heartbeat.interval.ms": "500",
            # Only a deleted topic loses data here; the count of records finds every other loss.
            "failOnDataLoss": "false",
            **options,
        }
        if self.static:
            settings["group.instance.id"] = name
        setup = {
            "name": name,
            "bootstrap_servers": self.bootstrap_servers if self.proxy is None else f"127.0.0.1:{self.proxy.port}",
            "group": self.group,
            "topic": self.topic,
            "checkpoint": str(self.directory / f"checkpoint-{name}"),
            "sink": str(self.sink),
            "master": self.master,
            "options": settings,
            # Without a pause, three queries would leave no processor time on a small machine for the queries that start.
            "trigger": "500 milliseconds",
            "conf": self.conf,
        }
        driver = Driver(setup, self.directory / f"{name}.log")
        self.drivers[name] = driver
        self.all_drivers.append(driver)
        return driver

    def start_plain(self, members: Members) -> None:
        """Start two plain consumers with automatic commits."""
        config: dict[str, str | int | bool] = {
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 500,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
        }
        for client in ("confluent-kafka", "ours"):
            self.plain.append(
                members.start(
                    client,
                    self.group,
                    [self.topic],
                    assignors=["cooperative-sticky"],
                    bootstrap_servers=self.bootstrap_servers,
                    config=config,
                )
            )

    def whole(self) -> bool:
        """Return whether every partition has one owner, by the queries' reports, and every query owns some."""
        shares = [driver.owned for driver in self.drivers.values()]
        shares += [{(topic, number) for topic, numbers in one.owned.items() for number in numbers} for one in self.plain]
        owned = [partition for share in shares for partition in share]
        return len(owned) == len(set(owned)) == self.partitions and all(shares)

    def await_whole(self) -> None:
        """Wait until the members share all partitions; start a query again that failed, if that is tolerated."""

        def whole() -> bool:
            self.start_ended()
            return self.whole()

        def story() -> str:
            return "\n".join(
                f"{name}: {sorted(driver.owned)} {driver.events[-4:]}\n{driver.log_tail(15)}"
                for name, driver in self.drivers.items()
            )

        eventually(whole, "a group that shares everything", within_s=self.deadline_s, every_s=0.2, shows=story)

    def start_ended(self) -> bool:
        """Start failed queries again, if that is tolerated; return whether there were any."""
        ended = {name: driver for name, driver in self.drivers.items() if driver.process.poll() is not None}
        for name, driver in ended.items():
            driver.wait()
            why = f"{name} ended unexpectedly: {driver.named('failed')}"
            self.say(why[:200])
            if SPARKS_LIMIT in why or SPARKS_LIMIT in driver.log_tail():
                driver.killed = "late worker"
                self.late.append(name)
            else:
                self.failures.append(why)
                assert len(self.failures) <= self.tolerated_failures, f"{why}\n{driver.log_tail()}"
                driver.killed = "failure"
            self.start(name)
        return bool(ended)

    def kill(self, name: str, what: str) -> None:
        """Kill with SIGKILL, and wait until the query is over; the other processes of its driver must then end without help.

        A query may survive the loss of its executors' workers: between two tasks, or if tasks are retried.
        """
        if self.start_ended():
            self.await_whole()
        driver = self.drivers[name]
        self.families |= driver.processes().keys()
        self.say(f"killing the {what} of {name}")
        self.kills.append(what)
        driver.kill(what)
        try:
            driver.wait(SURVIVAL_S if what == "executor" else self.deadline_s)
        except subprocess.TimeoutExpired as error:
            if what == "executor":
                return
            raise AssertionError(f"{name} lives on without its {what}: {driver.events[-5:]}\n{driver.log_tail()}") from error
        del self.drivers[name]

    def stop(self, name: str) -> None:
        """Stop a query in good order."""
        driver = self.drivers.pop(name)
        self.families |= driver.processes().keys()
        self.say(f"stopping {name}")
        driver.stop()
        self._count_ghosts(f"{name}, stopped", driver.named("progress"))

    def _count_ghosts(self, who: str, reports: Sequence[Mapping[str, Any]]) -> None:
        """Record a ghost if the group keeps the member that the events ``reports`` name; a static member is kept on purpose."""
        if self.static or not reports:
            return
        member = reports[-1]["member"]
        end_s = time.monotonic() + GHOST_S
        while member in self.members():
            if time.monotonic() > end_s:
                self.ghosts.append(who)
                self.say(f"a ghost of {who}")
                return
            time.sleep(0.05)

    def restart(self, name: str) -> None:
        """Stop a query in good order and start it again at once, in the same driver; it soon owns its partitions again."""
        if self.start_ended():
            self.await_whole()
        driver = self.drivers[name]
        self.say(f"restarting {name}")
        reports = driver.named("progress")
        driver.restart()
        self._count_ghosts(f"{name}, restarted", reports)

    def recreate(self, flow: Flow) -> None:
        """Delete the topic and create it again, while queries read it and records are written."""
        with flow.writing:
            self.say(f"deleting the topic after {flow.written - flow.before} records")
            self.admin.delete_topics([self.topic])[self.topic].result(180)
            eventually(lambda: self.topic not in self.admin.list_topics(timeout=90).topics, "the end of the topic")
            self.create()
            flow.recreated()
        self.topics = flow.topics

    def ends(self) -> dict[int, int]:
        """Return partition -> end offset; the partition is numbered as in the sink."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "proof-looks"})
        try:
            return {
                number + 1000 * self.topics: consumer.get_watermark_offsets(TopicPartition(self.topic, number), timeout=90)[1]
                for number in range(self.partitions)
            }
        finally:
            consumer.close()

    def lag(self) -> int:
        """Return the lag of the group's committed offsets."""
        ends = self.ends()
        request = ConsumerGroupTopicPartitions(self.group, [TopicPartition(self.topic, number % 1000) for number in ends])
        answer = self.admin.list_consumer_group_offsets([request])[self.group].result(90)
        return sum(ends[one.partition + 1000 * self.topics] - max(0, one.offset) for one in answer.topic_partitions)

    def members(self) -> list[str]:
        """Return the ids of the group's members, as the broker describes it."""
        found = self.admin.describe_consumer_groups([self.group])[self.group].result(90).members
        return [member.member_id for member in found]

    def await_no_lag(self) -> None:
        """Wait until all records are committed."""
        eventually(
            lambda: not self.start_ended() and self.lag() == 0,
            "a lag of zero",
            within_s=self.deadline_s,
            every_s=0.5,
            shows=lambda: f"{self.lag()} records; {[driver.events[-3:] for driver in self.all_drivers]}",
        )

    def end(self) -> None:
        """Stop all queries, and check that neither members nor processes remain."""
        for name in list(self.drivers):
            self.stop(name)
        for member in self.plain:
            member.leave()
        eventually(lambda: not self.members(), "a group without members")
        eventually(lambda: not self.left_behind(), "the end of every process", shows=self.left_behind)

    def left_behind(self) -> list[int]:
        """Return the living processes of drivers."""
        return [pid for pid in self.families if Path(f"/proc/{pid}").exists() and not _is_zombie(pid)]

    def deliveries(self) -> Iterator[Delivery]:
        """Yield the deliveries of all queries and plain consumers."""
        for line in self.sink.read_text().splitlines() if self.sink.exists() else ():
            read = json.loads(line)
            # Without transactions offsets have no gaps, so that a range is as long as its count.
            assert read["count"] == read["last"] - read["first"] + 1, f"a batch with gaps or doubles: {read}"
            read.pop("count")
            yield Delivery(**read)
        for index, member in enumerate(self.plain):
            for one in member.records:
                assert one.count == one.last - one.first + 1, f"a poll with gaps: {one}"
                yield Delivery(one.at_ns // 1_000_000, f"plain-{index}", 0, None, one.partition, one.first, one.last)

    def verdict(self) -> Verdict:
        """Return the verdict on lost records and duplicates."""
        runs = {(f"plain-{index}", 0): Run(lost=bool(one.named("lost"))) for index, one in enumerate(self.plain)}
        causes: dict[str, str] = {}
        for driver in self.all_drivers:
            lost = bool(driver.named("lost"))
            run, unfinished = driver.process.pid * RUNS, driver.unfinished
            for again in (*driver.named("restarting"), None):
                replays = None if unfinished is None else (unfinished, causes[driver.name])
                cause = driver.killed if again is None else "restart"
                runs[driver.name, run] = Run(cause, lost, replays)
                causes[driver.name] = cause or "failure"
                if again is not None:
                    run, unfinished = again["run"], again["unfinished"]
        found = list(self.deliveries())
        ends = self.ends()
        for one in found:
            if one.partition < 1000 * self.topics:
                # Of a deleted topic, only the records that were read count, up to the last one read.
                ends[one.partition] = max(ends.get(one.partition, 0), one.last + 1)
        return judge(found, ends, runs)

    def close(self) -> None:
        """Close all drivers, in any state."""
        for driver in self.all_drivers:
            driver.close()


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
