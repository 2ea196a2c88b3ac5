"""The proof's scene: queries in driver processes and plain consumers of one group, the records that flow, who got them."""

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

from tests.support.members import Member, Members
from tests.support.proxy import Proxy
from tests.support.spark.deliveries import Delivery, Run, Verdict, judge
from tests.support.spark.driver import RUNS
from tests.support.spark.drivers import Driver
from tests.support.waiting import eventually

DEADLINE_S = 300.0
SESSION_TIMEOUT_MS = 10_000
#: A query that ends because it lost its workers does so within this time.
SURVIVAL_S = 20.0
#: A member that the group still has so long after its query's stop is a ghost.
GHOST_S = 1.5
#: Spark ends a query whose Python process took more than 10 s to connect, a time that no setting changes.
SPARKS_LIMIT = "Python worker failed to connect back"


@attrs.define
class Flow(threading.Thread):
    """Writes records of 100 bytes, round about the partitions, at ``rate`` a second: ``records``, and on until told to end."""

    bootstrap_servers: str
    topic: str
    partitions: int
    records: int
    rate: float
    written: int = 0
    failure: BaseException | None = None
    #: Which topic of that name it writes to, and how many records went to those before it.
    topics: int = 0
    before: int = 0
    writing: threading.Lock = attrs.field(factory=threading.Lock)
    ending: threading.Event = attrs.field(factory=threading.Event)

    def __attrs_pre_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        """Until all are acknowledged."""
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
                        # Its producer knows the old topic's sequence numbers.
                        producer = self._producer()
                    for number in range(self.written, due):
                        value = b"%d%099d" % (self.topics, number)
                        producer.produce(self.topic, value, partition=number % self.partitions)
                        if number % 1000 == 0:
                            producer.poll(0)
                    self.written = due
                    if producer.flush(120):
                        raise RuntimeError("not every record was acknowledged")
                time.sleep(0.02)
        except BaseException as error:  # noqa: BLE001 - raised again where this thread is joined
            self.failure = error

    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5, "enable.idempotence": True})

    def made_again(self) -> None:
        """What is written from now on is another topic's; called while nothing is written (:attr:`writing`)."""
        self.topics += 1
        self.before = self.written

    def finish(self) -> None:
        """All ``records`` are enough now; wait for the end."""
        self.ending.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    __hash__ = threading.Thread.__hash__


@attrs.define(slots=False)
class Scene:
    """One group on one topic: its queries, its plain consumers, and what they got."""

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
    #: Those that Spark ended by :data:`SPARKS_LIMIT`: one more kind of crash, from which a query starts again.
    late: list[str] = attrs.field(factory=list)
    written: int = 0
    #: Where the queries connect, if that is not the broker itself.
    proxy: Proxy | None = None
    #: How many topics of that name there were before this one.
    topics: int = 0
    ghosts: list[str] = attrs.field(factory=list)

    @property
    def group(self) -> str:
        """Named like the topic."""
        return self.topic

    @property
    def sink(self) -> Path:
        """Where all queries' batches leave their lines."""
        return self.directory / "sink"

    @functools.cached_property
    def admin(self) -> AdminClient:
        """For looking at the group."""
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def create(self) -> None:
        """Make the topic."""
        self.admin.create_topics([NewTopic(self.topic, self.partitions, 1)])[self.topic].result(60)

    def start(self, name: str, **options: str) -> Driver:
        """Start the query ``name``, or start it again from its checkpoint; its share is to be waited for."""
        settings = {
            "kafka.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "kafka.heartbeat.interval.ms": "500",
            # Only of a topic that was deleted; the count of records finds every other loss.
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
            # Three queries that never rest would leave nothing of a small machine for those that start.
            "trigger": "500 milliseconds",
            "conf": self.conf,
        }
        driver = Driver(setup, self.directory / f"{name}.log")
        self.drivers[name] = driver
        self.all_drivers.append(driver)
        return driver

    def start_plain(self, members: Members) -> None:
        """Two plain consumers with automatic commits."""
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
        """Every partition has one owner, by what the queries tell, and every query has some."""
        shares = [driver.owned for driver in self.drivers.values()]
        shares += [{(topic, number) for topic, numbers in one.owned.items() for number in numbers} for one in self.plain]
        owned = [partition for share in shares for partition in share]
        return len(owned) == len(set(owned)) == self.partitions and all(shares)

    def await_whole(self) -> None:
        """Wait until the group is whole; a query that ended by itself is started again, if that is tolerated."""

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
        """Start queries again that ended by themselves, if that is tolerated; True if there were any."""
        ended = {name: driver for name, driver in self.drivers.items() if driver.process.poll() is not None}
        for name, driver in ended.items():
            driver.wait()
            why = f"{name} ended by itself: {driver.named('failed')}"
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
        """SIGKILL, and wait until the query is over; its driver's other processes must end by themselves.

        A query may survive the loss of its executors' workers: between two tasks, or where tasks are tried again.
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

    def _count_ghosts(self, who: str, told: Sequence[Mapping[str, Any]]) -> None:
        """Whether the group still has the member that ``told`` of itself; a static one waits for its return."""
        if self.static or not told:
            return
        member = told[-1]["member"]
        end_s = time.monotonic() + GHOST_S
        while member in self.members():
            if time.monotonic() > end_s:
                self.ghosts.append(who)
                self.say(f"a ghost of {who}")
                return
            time.sleep(0.05)

    def restart(self, name: str) -> None:
        """Stop a query in good order and start it again at once, in its driver; then it has its share soon."""
        if self.start_ended():
            self.await_whole()
        driver = self.drivers[name]
        self.say(f"restarting {name}")
        told = driver.named("progress")
        driver.restart()
        self._count_ghosts(f"{name}, restarted", told)

    def recreate(self, flow: Flow) -> None:
        """Delete the topic and make it again, while queries read it and records are written."""
        with flow.writing:
            self.say(f"deleting the topic after {flow.written - flow.before} records")
            self.admin.delete_topics([self.topic])[self.topic].result(60)
            eventually(lambda: self.topic not in self.admin.list_topics(timeout=30).topics, "the end of the topic")
            self.create()
            flow.made_again()
        self.topics = flow.topics

    def ends(self) -> dict[int, int]:
        """partition -> end offset; the partition's number as in the sink."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "proof-looks"})
        try:
            return {
                number + 1000 * self.topics: consumer.get_watermark_offsets(TopicPartition(self.topic, number), timeout=30)[1]
                for number in range(self.partitions)
            }
        finally:
            consumer.close()

    def lag(self) -> int:
        """By the group's commits."""
        ends = self.ends()
        request = ConsumerGroupTopicPartitions(self.group, [TopicPartition(self.topic, number % 1000) for number in ends])
        answer = self.admin.list_consumer_group_offsets([request])[self.group].result(30)
        return sum(ends[one.partition + 1000 * self.topics] - max(0, one.offset) for one in answer.topic_partitions)

    def members(self) -> list[str]:
        """The ids of those that the group has, by the broker."""
        found = self.admin.describe_consumer_groups([self.group])[self.group].result(30).members
        return [member.member_id for member in found]

    def await_no_lag(self) -> None:
        """Wait until everything is committed."""
        eventually(
            lambda: not self.start_ended() and self.lag() == 0,
            "a lag of zero",
            within_s=self.deadline_s,
            every_s=0.5,
            shows=lambda: f"{self.lag()} records; {[driver.events[-3:] for driver in self.all_drivers]}",
        )

    def end(self) -> None:
        """All queries stop; no member may be left behind."""
        for name in list(self.drivers):
            self.stop(name)
        for member in self.plain:
            member.leave()
        eventually(lambda: not self.members(), "a group without members")
        eventually(lambda: not self.left_behind(), "the end of every process", shows=self.left_behind)

    def left_behind(self) -> list[int]:
        """Processes of drivers that still live."""
        return [pid for pid in self.families if Path(f"/proc/{pid}").exists() and not _is_zombie(pid)]

    def deliveries(self) -> Iterator[Delivery]:
        """What all queries got."""
        for line in self.sink.read_text().splitlines() if self.sink.exists() else ():
            read = json.loads(line)
            # Without transactions offsets have no gaps, so a range is as long as its count.
            assert read["count"] == read["last"] - read["first"] + 1, f"a batch with gaps or doubles: {read}"
            read.pop("count")
            yield Delivery(**read)
        for index, member in enumerate(self.plain):
            for one in member.records:
                assert one.count == one.last - one.first + 1, f"a poll with gaps: {one}"
                yield Delivery(one.at_ns // 1_000_000, f"plain-{index}", 0, None, one.partition, one.first, one.last)

    def verdict(self) -> Verdict:
        """Who lost what, and why some came twice."""
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
                # Of a topic that is gone, what was read counts, and nothing behind it was to be had.
                ends[one.partition] = max(ends.get(one.partition, 0), one.last + 1)
        return judge(found, ends, runs)

    def close(self) -> None:
        """Whatever state everything is in."""
        for driver in self.all_drivers:
            driver.close()


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
