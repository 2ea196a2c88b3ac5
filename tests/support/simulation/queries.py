"""Spark queries in virtual time, without Spark: the production planner, a model of Spark's checkpoint, and faults.

A :class:`SimulatedQuery` plays Spark: it asks the planner for a batch, records the batch in its checkpoint, runs it, records
that it is finished, and asks again. A life of a query ends with its run (Trigger.AvailableNow, Trigger.Once), with an error, or
with a kill at any moment; the next life continues from the checkpoint. Meanwhile brokers hang, crash, become slow and get other
ports, partitions have no leader, and topics are deleted, created and created again.

The rules: a run reads exactly what was there when it began, or fails and says why; nothing is lost without an error or a log
line, and no loss is reported that did not happen; a batch id has the same rows for ever; a planning call that finds nothing new
has planned every record that existed at the call; every start ends in time; and at the end the group's commits are where the
records end.

This module needs PySpark, because the package ``consumer_coord.spark`` does; the other modules of the simulation do not import
it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import attrs

from assignors.built_in import BUILT_IN
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.topics import NO_LEADER
from consumer_coord.config import parse
from consumer_coord.errors import BrokerError, CoordinatorError, RetriableError, UnsupportedVersionError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.simulation.brokers import SimulatedCluster
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.history import History
from consumer_coord.simulation.loop import VirtualTimeLoop, run
from consumer_coord.simulation.member_spec import CONSUMER_SESSION_MS, MemberSpec, settings_of
from consumer_coord.simulation.network import SimulatedNetwork
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.scenario import Fault
from consumer_coord.simulation.virtual_kafka import VirtualKafka
from consumer_coord.simulation.wrong_answers import EDITED, edited
from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.errors import DataLossError, MissingTopicError
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.query import Query
from consumer_coord.spark.status import Status
from consumer_coord.wire.apis import APIS

GROUP: Final = "group"

NOW, ONCE, CONTINUOUS = "AvailableNow", "Once", "ProcessingTime"

#: Kinds of faults. The target is a broker, a topic or a query; for a topic that is created again, the value is its partitions.
KINDS = (
    *("hang", "hang", "crash", "other port", "all away", "slow", "no leader"),
    *("delete", "recreate", "recreate", "kill", "kill"),
)
#: Kinds that may delay requests and rebalances.
DELAYS = ("hang", "crash", "other port", "all away", "slow", "no leader", "edit")

#: Further options of queries.
OPTIONS: tuple[Mapping[str, str], ...] = (
    {},
    {},
    {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "5s"},
    {"kafka.isolation.level": "read_uncommitted"},
)

#: The times of a run, in virtual seconds: the last fault begins, the last lives begin, the run ends.
FAULTS_END_S, LAST_LIVES_S, END_S = 35.0, 80.0, 180.0
#: A life of a run that ends must end within this time after the last fault, and after its start.
ENDS_WITHIN_S = 100.0
#: Time after a fault in which it may still be the cause of an error.
TROUBLE_S = 75.0

#: A partition of one topic, whatever topic has the name later.
Log = tuple[uuid.UUID, int]


@attrs.frozen(kw_only=True)
class QueryScenario:
    """The contents of one run: the queries' triggers, and the protocol of their group."""

    seed: int
    protocol: str
    triggers: tuple[str, ...]
    fail_on_data_loss: bool
    pattern: bool
    #: Time between two triggers of a continuous query, in seconds.
    interval_s: float
    max_offsets: int | None
    max_poll_interval_ms: int
    faults: tuple[Fault, ...]
    options: Mapping[str, str] = attrs.field(factory=dict)
    #: The frame between the first query and a broker after which the query is killed, as the number since the run's start.
    killed_at: int | None = None


def draw(seed: int) -> QueryScenario:
    """Draw the scenario of a seed."""
    random = Random(f"{seed}-queries")
    return QueryScenario(
        seed=seed,
        protocol=random.choice(("classic", "consumer")),
        triggers=tuple(random.choice((NOW, NOW, ONCE, CONTINUOUS)) for _ in range(random.choice((1, 1, 2)))),
        fail_on_data_loss=random.random() < 0.5,
        pattern=random.random() < 0.5,
        interval_s=random.choice((0.2, 2.0, 12.0)),
        max_offsets=random.choice((None, 7, 40)),
        max_poll_interval_ms=random.choice((300_000, 8_000)),
        faults=tuple(
            Fault(
                random.randint(500, int(FAULTS_END_S) * 1000),
                random.choice(KINDS),
                random.randrange(6),
                random.randint(1, 3),
                one,
            )
            for one in random.choices((1_000, 4_000, 12_000, 25_000), k=random.randint(0, 5))
        ),
        options=random.choice(OPTIONS),
    )


class Losses(logging.Handler):
    """Reports the losses that queries with failOnDataLoss=false log."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a loss."""
        text = record.getMessage()
        if text.startswith("data loss in "):
            self._report(text)


class QueryWorld:
    """The brokers, the topics with all their logs, and the queries of one run."""

    def __init__(self, loop: VirtualTimeLoop, scenario: QueryScenario) -> None:
        self.loop = loop
        self.history: History = History(loop.time)
        config = BrokerConfig(
            group_min_session_timeout_ms=1_000,
            group_initial_rebalance_delay_ms=0,
            group_consumer_session_timeout_ms=CONSUMER_SESSION_MS,
            group_consumer_heartbeat_interval_ms=1_000,
            offsets_topic_num_partitions=3,
            auto_create_topics_enable=False,
        )
        topics = {"orders-a": 2, "orders-b": 2}
        self.kafka: VirtualKafka = VirtualKafka(loop, scenario.seed, config=config, topics=topics, brokers=2, latency_ms=2.0)
        self.network: SimulatedNetwork = self.kafka.network
        self.cluster: SimulatedCluster = self.kafka.cluster
        self.failure: asyncio.Future[None] = loop.create_future()
        #: The time until which an earlier fault may delay requests and rebalances.
        self.troubled_until: float = 0.0
        self.play = scenario
        #: The losses and the errors that queries have reported so far.
        self.reports: list[str] = []
        self.random: Random = Random(f"{scenario.seed}-query-world")
        #: Log -> its topic and end when it was deleted, the number of reports so far, and whether a checkpoint named it.
        self.deleted: dict[Log, tuple[str, int, int, bool]] = {}
        self.queries: list[SimulatedQuery] = []
        self.names: tuple[str, ...] = ("orders-a", "orders-b")
        #: The last time at which a topic did not exist.
        self.absent_s: float = float("-inf")
        #: The number of requests of the first query and of their responses.
        self.frames: int = 0
        self.network.on_request = self.network.on_answer = self._on_frame

    def fail(self, breach: Violation) -> None:
        """End the run, because a rule was violated."""
        self.history.note("checkers", f"VIOLATION {breach}")
        if not self.failure.done():
            self.failure.set_exception(breach)

    # -- logs -------------------------------------------------------------------------------------------------------

    def ends(self) -> dict[Log, int]:
        """Return the end of the log of each partition that exists."""
        return {(self._id(one.topic), one.partition): self.cluster.end_offset(one) or 0 for one in self.cluster.partitions()}

    def _id(self, topic: str) -> uuid.UUID:
        return self.cluster.kafka.topics.by_name[topic].topic_id

    def read(self, log: Log) -> set[int]:
        """Return the offsets of a log that are in finished batches of any query."""
        return {offset for query in self.queries for offset in query.read.get(log, ())}

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        if topic in self.cluster.kafka.topics.by_name:
            for (topic_id, number), end in self.ends().items():
                if topic_id == self._id(topic):
                    promised = any(query.promised((topic_id, number)) for query in self.queries)
                    self.deleted[topic_id, number] = (topic, end, len(self.reports), promised)
            self.cluster.kafka.delete_topic(topic)
            self.absent_s = float("inf")
            self.history.note("world", f"deleted {topic}")

    def create(self, topic: str, count: int) -> None:
        """Create a topic, with records."""
        if topic not in self.cluster.kafka.topics.by_name:
            self.cluster.kafka.create_topic(topic, count)
            if all(name in self.cluster.kafka.topics.by_name for name in self.names):
                self.absent_s = self.loop.time()
            self.produce()
            self.history.note("world", f"created {topic} with {count} partitions")

    def produce(self) -> None:
        """Write some records to some partitions."""
        for partition in self.cluster.partitions():
            if self.random.random() < 0.5:
                self.cluster.produce(partition, self.random.randint(1, 9))

    def report(self, text: str) -> None:
        """Keep a loss or an error that a query has reported; a topic that was never deleted has lost nothing."""
        self.reports.append(text)
        told = re.match(r"data loss in topic '([^']*)'", text)
        if told is not None and all(topic != told[1] for topic, *_ in self.deleted.values()):
            self.fail(Violation("false loss", f"{told[1]} exists, but a query reports: {text}"))

    # -- faults -----------------------------------------------------------------------------------------------------

    def _fault(self, fault: Fault) -> None:
        """Begin a fault, which ends by itself."""
        loop, for_s, topic = self.loop, fault.for_ms / 1000, self.names[fault.target % 2]
        self.history.note("world", str(fault))
        if fault.kind in DELAYS:
            self.troubled_until = max(self.troubled_until, loop.time() + for_s + TROUBLE_S)
            self._delay(fault, for_s, fault.target % 2, topic)
        elif fault.kind == "kill":
            self.queries[fault.target % len(self.queries)].kill()
        else:
            self.delete(topic)
            loop.call_later(0 if fault.kind == "recreate" else for_s, self.create, topic, fault.value)

    def _delay(self, fault: Fault, for_s: float, broker: int, topic: str) -> None:
        """Begin a fault that may delay requests."""
        loop, cluster = self.loop, self.cluster
        if fault.kind == "hang":
            cluster.processes[broker].freeze()
            loop.call_later(for_s, cluster.processes[broker].thaw)
        elif fault.kind in ("crash", "all away", "other port"):
            for index in range(2) if fault.kind == "all away" else (broker,):
                cluster.stop_broker(index)
                loop.call_later(for_s, cluster.start_broker, index)
            if fault.kind == "other port":
                cluster.move_broker(broker)
        elif fault.kind == "slow":
            for query in self.queries:
                self.network.slow(cluster.kafka.nodes[broker].host, query.name, 3_000)
                loop.call_later(for_s, self.network.slow, cluster.kafka.nodes[broker].host, query.name, 0)
        elif fault.kind == "no leader":
            self._lead(topic, NO_LEADER)
            loop.call_later(for_s, self._lead, topic, broker)
        else:
            # As in ``faults.py``: the brokers edit their responses to one kind of request in one way.
            api_key, edit = EDITED[fault.target % len(EDITED)]
            self.history.note("world", f"{APIS[api_key].name}: {edit}")
            loop.call_later(for_s, cluster.answer_wrongly(edited(api_key, edit, fault.value)))

    def _lead(self, topic: str, leader: int) -> None:
        """Make a broker the leader of a topic's first partition, or leave the partition without a leader."""
        partition = self.cluster.kafka.topics.partition(topic, 0)
        if partition is not None and (leader == NO_LEADER or self.cluster.kafka.is_up(leader)):
            self.cluster.kafka.topics.set_leader(partition, leader)

    def _on_frame(self, client: str, *_: object) -> None:
        if client.startswith("query-0."):
            self.frames += 1
            if self.frames == self.play.killed_at:
                self.loop.call_soon(self.queries[0].kill)

    # -- the course -------------------------------------------------------------------------------------------------

    async def course(self) -> None:
        """Play the run from start to end; raise :class:`Violation` when a rule is violated."""
        logger = get_logger("consumer_coord.spark.query")
        losses = Losses(self.report)
        logger.addHandler(losses)
        self.cluster.start()
        for _ in range(8):
            self.produce()
        self.queries = [SimulatedQuery(self, number, trigger) for number, trigger in enumerate(self.play.triggers)]
        for query in self.queries:
            query.begin()
        for fault in self.play.faults:
            self.loop.call_at(fault.at_ms / 1000, self._fault, fault)
        producer = self.loop.create_task(self._produce())
        try:
            await self._until(LAST_LIVES_S)
            producer.cancel()
            await self._until(END_S)
            self._check_end()
        finally:
            producer.cancel()
            logger.removeHandler(losses)

    async def _until(self, moment: float) -> None:
        await asyncio.wait([self.failure], timeout=max(0.0, moment - self.loop.time()))
        if self.failure.done():
            self.failure.result()

    async def _produce(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.3, 3.0))
            self.produce()

    def _check_end(self) -> None:
        for query in self.queries:
            query.check_over()
        for log, end in self.ends().items():
            unread = set(range(end)) - self.read(log)
            if unread:
                raise Violation("lost", f"no query read offsets {sorted(unread)[:5]} of {log}, whose topic exists")
        for log, (topic, end, reports, promised) in self.deleted.items():
            unread = set(range(end)) - self.read(log)
            if promised and unread and not any(f"data loss in topic '{topic}'" in text for text in self.reports[reports:]):
                raise Violation("silent loss", f"{topic} {log} was deleted with {len(unread)} unread records, silently")
        self._check_commits()

    def _check_commits(self) -> None:
        """Check the commits of a continuous query, which commits its last batches."""
        if any(query.trigger == ONCE for query in self.queries):
            return
        node = self.cluster.coordinator_of(GROUP)
        assert node is not None
        for partition in self.cluster.partitions():
            _, ((_, _, found),) = node.coordinator.offsets.fetch(GROUP, [(partition.topic, partition.partition)], False)
            offset, end = (found if isinstance(found, int) else found.offset), self.cluster.end_offset(partition)
            if offset != end:
                raise Violation("commits", f"the group's commit of {partition} is {offset}, but all {end} records are finished")


class SimulatedQuery:
    """One query: its checkpoint, which outlives it, and its lives one after another."""

    def __init__(self, world: QueryWorld, number: int, trigger: str) -> None:
        self.trigger = trigger
        #: The offset log, and how many of its batches are finished.
        self.log: list[Offsets] = []
        self.finished: int = 0
        #: Log -> offsets in finished batches.
        self.read: dict[Log, set[int]] = {}
        #: Batch id -> the rows when the batch first ran.
        self._rows: dict[int, dict[Log, tuple[int, int]]] = {}
        self._world = world
        self._number = number
        self._lives = 0
        self._random = Random(f"{world.play.seed}-query-{number}")
        self._fails_on_loss = world.play.fail_on_data_loss
        self._process: Process | None = None
        self._began_s = 0.0
        self._over = self._well = False

    @property
    def name(self) -> str:
        """The name of the process of the present life, for the network."""
        return f"query-{self._number}.{self._lives}"

    def promised(self, log: Log) -> bool:
        """Return whether the last finished batch names a log."""
        offsets = self.log[self.finished - 1] if self.finished else None
        return offsets is not None and any(part.id == log[0] and log[1] in part.spans for part in offsets.topics.values())

    # -- lives ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a life."""
        self._lives += 1
        self._began_s = self._world.loop.time()
        self._over = False
        self._process = Process.on(self._world.loop, self.name)
        self._world.history.note(self.name, f"starts, {self.trigger}, failOnDataLoss={self._fails_on_loss}")
        self._process.create_task(self._life(self._process), name=self.name)
        if self.trigger != CONTINUOUS:
            limit_s = max(self._world.troubled_until - self._began_s, 0.0) + ENDS_WITHIN_S
            self._world.loop.call_later(limit_s, self._check_ended, self._lives)

    def kill(self) -> None:
        """Kill the process (SIGKILL); a new life begins soon."""
        if self._process is not None and not self._over:
            self._world.history.note(self.name, "killed")
            self._world.kafka.kill(self._process)
            self._ended(well=False)

    def _ended(self, *, well: bool) -> None:
        """Begin the next life soon, unless this was a run of the last phase, which read everything."""
        self._over = True
        self._well = well and self._began_s >= LAST_LIVES_S
        if not self._well:
            self._world.loop.call_later(self._random.uniform(0.5, 15.0), self.begin)

    def _check_ended(self, life: int) -> None:
        if life == self._lives and not self._over and self._world.troubled_until < self._began_s + ENDS_WITHIN_S:
            self._world.fail(Violation("ends in time", f"{self.name} has not ended {ENDS_WITHIN_S:g} s after its start"))

    def check_over(self) -> None:
        """Raise :class:`Violation` if no run of the last phase ended well."""
        if self.trigger != CONTINUOUS and not self._well:
            raise Violation("ends in time", f"{self.name} has not ended")

    async def _life(self, process: Process) -> None:
        world = self._world
        stage = world.play
        random = Random(f"{stage.seed}-{self.name}")
        spec = MemberSpec(
            name=self.name,
            protocol=stage.protocol,
            max_poll_interval_ms=stage.max_poll_interval_ms,
            heartbeat_interval_ms=1_000,
        )
        assignors = [] if stage.protocol == "consumer" else [BUILT_IN["cooperative-sticky"]()]
        config = parse(settings_of(spec, GROUP, world.cluster.bootstrap, self.name))
        cluster = ClusterClient(config.client, world.kafka.environment(process, random))
        core = ConsumerCoordinator(config.coordinator, cluster, assignors)
        query = Query(core, parse_options(self._options()), Status(GROUP))
        world.history.note(self.name, "joins")
        well = False
        try:
            query.begin()
            await self._run(query)
            well = True
            world.history.note(self.name, "ended well")
        except CoordinatorError as error:
            self._failed(error)
        except Violation as breach:
            world.fail(breach)
        except Exception as error:  # noqa: BLE001 - it ends the run
            world.fail(Violation("crash", f"{self.name}: {type(error).__name__}: {error}"))
        finally:
            query.end()
        try:
            await core.close(2_000)
        except RetriableError as error:
            world.history.note(self.name, f"left without an answer: {error}")
        await cluster.close()
        self._ended(well=well)

    def _options(self) -> Mapping[str, str]:
        stage = self._world.play
        options = {
            "kafka.bootstrap.servers": "simulated:9092",
            "group.id": GROUP,
            "startingOffsets": "earliest",
            "failOnDataLoss": str(self._fails_on_loss).lower(),
            "kafka.group.protocol": stage.protocol,
        }
        options |= {"subscribePattern": "orders-.*"} if stage.pattern else {"subscribe": "orders-a,orders-b"}
        limit = {} if stage.max_offsets is None else {"maxOffsetsPerTrigger": str(stage.max_offsets)}
        return {**options, **limit, **stage.options}

    def _failed(self, error: CoordinatorError) -> None:
        world = self._world
        world.history.note(self.name, f"failed: {type(error).__name__}: {error}")
        world.report(str(error))
        if isinstance(error, DataLossError):
            # The operator accepts the loss.
            self._fails_on_loss = False
        elif isinstance(error, RetriableError):
            if world.troubled_until <= self._began_s:
                world.fail(Violation("fails without a reason", f"{self.name}: {error}"))
        elif isinstance(error, (BrokerError, UnsupportedVersionError)) and world.cluster.edits:
            # A broker that edits its responses gives errors that no other broker gives, and offers other versions.
            pass
        elif not (isinstance(error, MissingTopicError) and world.absent_s > self._began_s):
            world.fail(Violation("crash", f"{self.name}: {type(error).__name__}: {error}"))

    # -- Spark ------------------------------------------------------------------------------------------------------

    async def _run(self, query: Query) -> None:
        start, most = self._world.ends(), None
        if self.trigger == NOW:
            await query.prepare_available_now()
            most = self._world.ends()
        if len(self.log) > self.finished:
            self._finish(await query.check_replay(self.log[-1]))
            if self.trigger == ONCE:
                return
        while True:
            finished = self.log[self.finished - 1] if self.finished else Offsets(GROUP)
            before = self._world.ends()
            if self.trigger == ONCE:
                start = before
            planned = await query.next_batch(finished, once=self.trigger == ONCE)
            if planned is not None:
                self.log.append(planned)
                # Its tasks begin now, so a life that is killed has run the batch in part.
                self._rows[len(self.log) - 1] = rows_of(planned)
                await asyncio.sleep(self._random.choice((0.01, 0.2, 1.5)))
                self._finish(planned)
            elif self.trigger == CONTINUOUS:
                self._check_nothing_new(query, before)
            if self.trigger == ONCE or (planned is None and self.trigger == NOW):
                return self._check_read(start, most)
            await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        # In the last phase the limits of a batch must not keep records waiting.
        unlimited = self._world.play.max_offsets is None
        waits = self.trigger == CONTINUOUS and (unlimited or self._world.loop.time() < LAST_LIVES_S)
        return max(0.02, self._world.play.interval_s if waits else 0.2)

    def _finish(self, batch: Offsets) -> None:
        rows, number = rows_of(batch), self.finished
        former = self._rows[number]
        for log, whole in former.items():
            if rows.get(log) != whole and log not in self._world.deleted:
                raise Violation("same rows", f"batch {number} of {self.name} had {whole} of {log}, and has {rows.get(log)} now")
        if not rows.keys() <= former.keys():
            raise Violation("same rows", f"batch {number} of {self.name} has {rows}, but had {former}")
        for log, (first, end) in rows.items():
            self.read.setdefault(log, set()).update(range(first, end))
        self.finished = number + 1

    def _check_nothing_new(self, query: Query, before: Mapping[Log, int]) -> None:
        """Check a call that found nothing new: it must have planned every record of the owned logs that existed at the call."""
        if "minOffsetsPerTrigger" in self._world.play.options:
            return
        for partition, holding in query.ledger.held.items():
            end = before.get((holding.topic_id, partition.partition), 0)
            if holding.position < end:
                raise Violation("nothing new", f"{self.name} is at {holding.position} of {partition}, which ended at {end}")

    def _check_read(self, start: Mapping[Log, int], most: Mapping[Log, int] | None) -> None:
        """Check a run that ended well: it has read exactly what was there at its start, if it is the only query."""
        group = self._world.cluster.consumer_group(GROUP) or self._world.cluster.group(GROUP)
        if len(self._world.queries) > 1 or (group is not None and len(group.members) > 1):
            # Other members read the rest: another query, or a killed life whose session has not expired.
            return
        if self._world.play.pattern and self._world.cluster.edits:
            # No client can notice that a list of all topics has not all of them. The next run reads the others.
            return
        for log, end in start.items():
            unread = set(range(end)) - self.read.get(log, set())
            if unread and log not in self._world.deleted:
                raise Violation("exactly what was there", f"{self.name} ended well without {sorted(unread)[:5]} of {log}")
        if most is not None:
            for log, offsets in self.read.items():
                beyond = {offset for offset in offsets if offset >= most.get(log, 0)}
                if beyond and log in most:
                    raise Violation("exactly what was there", f"{self.name} read {sorted(beyond)[:5]} of {log}, written later")


def rows_of(batch: Offsets) -> dict[Log, tuple[int, int]]:
    """Return the first offset and the end of each log of which a batch has records."""
    return {
        (batch.topics[partition.topic].id, partition.partition): (span.start, span.end)
        for partition, span in batch.spans()
        if span.start < span.end
    }


@attrs.frozen
class QueryOutcome:
    """The result of a run: None as ``violation`` if every rule held, and the timeline."""

    scenario: QueryScenario
    violation: Violation | None
    lines: tuple[str, ...]


def play_queries(scenario: QueryScenario) -> QueryOutcome:
    """Play one run."""
    worlds: list[QueryWorld] = []

    async def course() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        worlds.append(QueryWorld(loop, scenario))
        await worlds[0].course()

    violation: Violation | None = None
    try:
        run(course(), seed=scenario.seed, max_time_s=END_S + 100)
    except Violation as breach:
        violation = breach
    return QueryOutcome(scenario, violation, tuple(worlds[0].history.lines))
