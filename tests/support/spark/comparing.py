"""Queries of ``kafka_group`` and of Spark's own connector in the same trouble: ``python -m tests.support.spark.comparing``.

    python -m tests.support.spark.comparing --kafka real
    python -m tests.support.spark.comparing --troubles "no such topic" "no broker" --triggers Once

Each trouble is played with each trigger, with failOnDataLoss on and off: with the connector, and with ``kafka_group`` in both
group protocols. The program prints a table, and exits with 1 if a query of ``kafka_group`` ends otherwise than it should.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.testing import jars as kafka_jars
from consumer_coord.testing.real_kafka import RealKafka
from consumer_coord.wire.codec import Request
from consumer_coord.wire.messages.log import FetchRequest
from consumer_coord.wire.messages.offsets import ListOffsetsRequest
from tests.support.jar_sets import SPARK_CONNECTOR
from tests.support.spark.producing import produce
from tests.support.spark.queries import Rows
from tests.support.waiting import eventually

CONNECTOR, CLASSIC, CONSUMER = "connector", "classic", "consumer"
SOURCES = (CLASSIC, CONSUMER, CONNECTOR)

#: Two triggers of a query that goes on, which has trouble while it reads or while it is idle; and two of a run, which ends.
READING, IDLE, ONCE, NOW = "processing time", "idle", "Once", "AvailableNow"
TRIGGERS = (READING, IDLE, ONCE, NOW)

#: Time in which a query must read everything or end, in seconds.
WITHIN_S = 45.0
#: Time for which a query that has read everything is observed, because it may still fail, in seconds.
OBSERVED_S = 4.0
#: ``default.api.timeout.ms`` and ``kafkaConsumer.pollTimeoutMs`` of both sources, in seconds. Shorter: the time for which a
#: task of ``kafka_group`` waits for a topic that a broker does not know, and the time for which a broker does not respond.
TIMEOUT_S, UNKNOWN_S, FREEZE_S = 10.0, 3.0, 6.0


# -- the brokers ----------------------------------------------------------------------------------------------------


class Embedded:
    """The embedded Kafka with its trouble."""

    def __init__(self) -> None:
        self._kafka = EmbeddedKafka()
        self._frozen = self._denying = False
        #: How many more ListOffsets requests take three seconds.
        self.slow: int = 0

    def __enter__(self) -> Embedded:
        self._kafka.start()
        self._kafka.add_request_hook(self._fault)
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.close()

    @property
    def bootstrap_servers(self) -> str:
        return self._kafka.bootstrap_servers

    def _fault(self, _: int, request: Request) -> Fault | None:
        if self._frozen:
            return Fault(wait_until=lambda: not self._frozen)
        if self.slow and isinstance(request.message, ListOffsetsRequest):
            self.slow -= 1
            return Fault(delay_ms=3_000)
        if self._denying and isinstance(request.message, ListOffsetsRequest | FetchRequest):
            return Fault(error_code=29)
        return None

    def create(self, topic: str, partitions: int) -> None:
        self._kafka.create_topic(topic, partitions)

    def delete(self, topic: str) -> None:
        self._kafka.delete_topic(topic)

    def freeze(self, frozen: bool) -> None:
        """Keep all requests waiting, or handle them again."""
        self._frozen = frozen

    def deny(self, topic: str) -> None:
        """Withdraw the permissions on a topic; here on all topics, until :meth:`allow`."""
        self._denying = True

    def allow(self) -> None:
        """End all trouble."""
        self._frozen, self._denying, self.slow = False, False, 0


class Real:
    """Apache Kafka with its trouble."""

    def __init__(self) -> None:
        authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        properties = {"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"}
        self._kafka = RealKafka(kafka_jars.ensure_jars(kafka_jars.KAFKA), properties=properties)
        self._frozen = False

    def __enter__(self) -> Real:
        self._kafka.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.close()

    @property
    def bootstrap_servers(self) -> str:
        return self._kafka.bootstrap_servers

    @property
    def _admin(self) -> AdminClient:
        return self._kafka.admin

    def create(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(60)
        eventually(lambda: topic not in self._admin.list_topics(timeout=60).topics, "the end of the topic")

    def freeze(self, frozen: bool) -> None:
        """Stop the broker's process, or continue it."""
        if frozen:
            self._kafka.pause()
        elif self._frozen:
            self._kafka.resume()
        self._frozen = frozen

    def deny(self, topic: str) -> None:
        """Withdraw the permissions on a topic."""
        everything, denied = AclOperation.ALL, AclPermissionType.DENY
        binding = AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", everything, denied)
        self._admin.create_acls([binding])[binding].result(60)

    def allow(self) -> None:
        """End all trouble; the next case has other topics."""
        self.freeze(False)


# -- one query ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Case:
    """One query in one trouble."""

    trouble: str
    trigger: str
    source: str
    fail_on_data_loss: bool

    def __str__(self) -> str:
        return f"{self.trouble}, {self.trigger}, {self.source}, failOnDataLoss={str(self.fail_on_data_loss).lower()}"


@attrs.frozen
class Outcome:
    """What became of a query: ``end`` is "fails", "ends", "runs" (it is still active), or "too early"."""

    end: str
    read: int
    wanted: int
    seconds: float
    error: str = ""

    def __str__(self) -> str:
        rows = f"{self.read} of {self.wanted} records"
        return (
            f"{self.end} ({self.seconds:.0f} s): {self.error}" if self.error else f"{self.end}, {rows} ({self.seconds:.0f} s)"
        )

    @property
    def short(self) -> str:
        """The outcome for a table: without the error's text, and without numbers if everything was read."""
        if self.error:
            return f"{self.end}: {self.error.partition(':')[0]}"
        return self.end if self.read >= self.wanted else f"{self.end}, {self.read} of {self.wanted} records"


@attrs.define
class Play:
    """The topics ``a`` and ``b`` of one case, and its query."""

    spark: Any
    kafka: Embedded | Real
    case: Case
    directory: Path
    options: dict[str, str] = attrs.field(factory=dict)
    interval_s: float = 1.0
    rows: Rows = attrs.field(factory=Rows)
    query: Any = None
    name: str = attrs.field(factory=lambda: f"t{time.time_ns()}")
    began_s: float = 0.0

    @property
    def ends(self) -> bool:
        """Whether the query is a run."""
        return self.case.trigger in (ONCE, NOW)

    def topic(self, letter: str) -> str:
        """Return the name of a topic of this case."""
        return f"{self.name}-{letter}"

    def create(self, *letters: str, records: int = 20) -> None:
        """Create topics of two partitions with records."""
        for letter in letters:
            self.kafka.create(self.topic(letter), 2)
            self.write(letter, records)

    def write(self, letter: str, count: int, partitions: int = 2) -> None:
        """Write records."""
        records = [{"partition": number % partitions, "value": b"v"} for number in range(count)]
        produce(self.kafka.bootstrap_servers, self.topic(letter), records)

    def read(self, letter: str = "a") -> int:
        """Return how many records of a topic were read."""
        return sum(topic == self.topic(letter) for _, topic, _, _ in self.rows.seen)

    def frame(self, address: str | None = None) -> Any:
        """Return the query's frame, with the case's options."""
        timeout_ms = str(int(TIMEOUT_S * 1000))
        given = {
            "kafka.bootstrap.servers": address or self.kafka.bootstrap_servers,
            "startingOffsets": "earliest",
            "failOnDataLoss": str(self.case.fail_on_data_loss).lower(),
            "kafka.default.api.timeout.ms": timeout_ms,
            "kafkaConsumer.pollTimeoutMs": timeout_ms,
            **self.options,
        }
        if not given.keys() & {"subscribe", "subscribePattern"}:
            given["subscribePattern"] = f"{self.name}-.*"
        if self.case.source == CONNECTOR:
            # So that the connector does not wait longer for one request than for the call.
            given |= {"kafka.request.timeout.ms": timeout_ms}
            return self.spark.readStream.format("kafka").options(**given).load()
        given |= {"group.id": self.name, "kafka.group.protocol": self.case.source}
        given |= {"kafka.topic.metadata.propagation.max.ms": str(int(UNKNOWN_S * 1000))}
        if self.case.source == CLASSIC:
            given |= {"kafka.rebalance.timeout.ms": timeout_ms}
        return self.spark.readStream.format("kafka_group").options(**given).load()

    def start(self, address: str | None = None, trigger: str | None = None) -> None:
        """Start the query, or start it again from its checkpoint."""
        interval = f"{int(self.interval_s * 1000)} milliseconds"
        kinds: Mapping[str, Mapping[str, Any]] = {ONCE: {"once": True}, NOW: {"availableNow": True}}
        writer = self.frame(address).writeStream.foreachBatch(self.rows).option("checkpointLocation", str(self.directory))
        self.began_s = time.monotonic()
        self.query = writer.trigger(**kinds.get(trigger or self.case.trigger, {"processingTime": interval})).start()

    def await_read(self, count: int, letter: str = "a") -> None:
        """Wait until the query has read ``count`` records of a topic."""
        eventually(lambda: self.read(letter) >= count, f"{count} records of {self.case}", within_s=WITHIN_S)

    def outcome(self, wanted: int) -> Outcome:
        """Observe the query until it ends, or for some time after it has read ``wanted`` records of topic ``a``."""
        until_s, whole = self.began_s + WITHIN_S, False
        while self.query.isActive and time.monotonic() < until_s:
            if not (self.ends or whole) and self.read() >= wanted:
                until_s, whole = min(until_s, time.monotonic() + OBSERVED_S), True
            time.sleep(0.05)
        error = self.query.exception()
        end = "runs" if self.query.isActive else "ends" if error is None else "fails"
        return Outcome(end, self.read(), wanted, time.monotonic() - self.began_s, "" if error is None else brief(str(error)))


def brief(error: str) -> str:
    """Return the part of a query's error that says what happened: the innermost error of a class with a name."""
    found = re.findall(r"^(?:Caused by: |.*?: )?([\w.$]*\.\w*(?:Error|Exception)): (.+)", error, re.MULTILINE)
    ours = [one for one in found if one[0].startswith("consumer_coord.")]
    name, text = (ours or found or [("", error.strip())])[-1]
    return f"{name.rpartition('.')[2]}: {text}"[:160]


# -- the troubles ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Trouble:
    """Something that happens to a query, the triggers with which it can, and what ``kafka_group`` should do.

    ``play`` returns the outcome; ``right`` the end and (for "fails") the error of the query of a case.
    """

    play: Callable[[Play], Outcome]
    right: Callable[[Case], tuple[str, str]]
    triggers: Sequence[str] = TRIGGERS


def reads_all(case: Case) -> tuple[str, str]:
    """The query reads everything."""
    return ("ends" if case.trigger in (ONCE, NOW) else "runs"), ""


def loses(case: Case) -> tuple[str, str]:
    """The query fails, or with failOnDataLoss=false reads what is left."""
    return ("fails", "DataLossError") if case.fail_on_data_loss else reads_all(case)


def new_records(play: Play) -> Outcome:
    """Write a record, call processAllAvailable, and count; a run must read what existed when it began."""
    play.create("a")
    play.interval_s = 0.2
    play.start()
    if not play.ends:
        for count in range(20, 30):
            play.query.processAllAvailable()
            if play.read() < count:
                return Outcome("too early", play.read(), count, time.monotonic() - play.began_s)
            time.sleep(0.2)
            play.write("a", 1)
        play.query.processAllAvailable()
        return play.outcome(30)
    return play.outcome(20)


def deleted_while_stopped(play: Play) -> Outcome:
    """Delete a topic, with unread records unless the query is idle, while the query is stopped."""
    play.create("a", "b")
    play.start(trigger=NOW)
    play.query.awaitTermination(WITHIN_S)
    if play.case.trigger != IDLE:
        play.write("b", 20)
    play.write("a", 20)
    play.kafka.delete(play.topic("b"))
    play.start()
    return play.outcome(40)


def gone_while_running(play: Play, change: Callable[[], None]) -> Outcome:
    """Change topic b in the first batch with records, after it was planned, or while the query is idle."""
    play.create("a", "b")
    if play.case.trigger == IDLE:
        play.start()
        play.await_read(20)
        play.await_read(20, "b")
        time.sleep(2)
        change()
        play.write("a", 20)
        return play.outcome(40)
    changed: list[int] = []

    def before(batch: int) -> None:
        if not changed:
            changed.append(batch)
            play.write("a", 20)
            change()

    play.rows.before = before
    if play.case.trigger == NOW:
        play.options["maxOffsetsPerTrigger"] = "10"
    play.start()
    return play.outcome(20 if play.ends else 40)


def deleted_while_running(play: Play) -> Outcome:
    """Delete a topic while the query runs."""
    return gone_while_running(play, lambda: play.kafka.delete(play.topic("b")))


def recreated_while_running(play: Play) -> Outcome:
    """Delete a topic while the query runs, and create it again with one partition and fewer records."""

    def change() -> None:
        play.kafka.delete(play.topic("b"))
        play.kafka.create(play.topic("b"), 1)
        play.write("b", 3, partitions=1)

    return gone_while_running(play, change)


def no_broker(play: Play) -> Outcome:
    """Start a query where no broker is."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        play.options["subscribe"] = play.topic("a")
        play.start(f"127.0.0.1:{nobody.getsockname()[1]}")
        return play.outcome(1)


def frozen_broker(play: Play) -> Outcome:
    """Let the broker not respond for some seconds, while the query starts or when its trigger comes."""
    play.create("a")
    if not play.ends:
        # Spark's triggers are the multiples of the interval.
        play.interval_s = 12.0
        play.start()
        play.await_read(20)
        time.sleep(play.interval_s - time.time() % play.interval_s - 2)
        play.write("a", 20)
    play.kafka.freeze(True)
    if play.ends:
        play.start()
    time.sleep(FREEZE_S)
    play.kafka.freeze(False)
    thawed_s = time.monotonic()
    if play.ends:
        return play.outcome(20)
    play.await_read(40)
    late_s = time.monotonic() - thawed_s
    return Outcome("runs" if late_s < 4 else "runs, a whole interval late", play.read(), 40, late_s)


def slow_broker(play: Play) -> Outcome:
    """Let two requests ListOffsets take three seconds."""
    assert isinstance(play.kafka, Embedded), "only the embedded Kafka can be slow"
    play.create("a")
    if not play.ends:
        play.start()
        play.await_read(20)
        play.write("a", 20)
    play.kafka.slow = 2
    if play.ends:
        play.start()
    return play.outcome(20 if play.ends else 40)


def long_interval(play: Play) -> Outcome:
    """Let the trigger's interval be longer than max.poll.interval.ms."""
    play.create("a")
    play.interval_s = 4.0
    if play.case.source != CONNECTOR:
        play.options["kafka.max.poll.interval.ms"] = "2000"
    play.start()
    for count in (20, 40, 60):
        play.await_read(count)
        play.write("a", 20)
    return play.outcome(80)


def access_withdrawn(play: Play) -> Outcome:
    """Withdraw the permissions on the topic: before a run, in a batch, or while the query is idle."""
    play.create("a")
    # For a pattern, Kafka does not tell of topics that may not be described.
    play.options["subscribe"] = play.topic("a")
    if play.case.trigger == READING:
        play.rows.before = lambda batch: play.kafka.deny(play.topic("a"))
    if not play.ends:
        play.start()
    if play.case.trigger == IDLE:
        play.await_read(20)
        time.sleep(2)
    if play.case.trigger != READING:
        play.kafka.deny(play.topic("a"))
    if play.ends:
        play.start()
    return play.outcome(1_000)


def no_such_topic(play: Play) -> Outcome:
    """Subscribe to a topic that does not exist; nobody creates it for a run."""
    play.options["subscribe"] = play.topic("a")
    play.start()
    if not play.ends:
        time.sleep(5)
        if play.query.isActive:
            play.create("a")
    return play.outcome(20)


TROUBLES: Mapping[str, Trouble] = {
    "1 new records": Trouble(new_records, reads_all, (READING, ONCE, NOW)),
    "2 a topic is deleted while the query is stopped": Trouble(deleted_while_stopped, loses),
    "2 a topic is deleted while the query runs": Trouble(deleted_while_running, loses),
    "3 a topic is created again with fewer partitions": Trouble(recreated_while_running, loses),
    "4 no broker": Trouble(no_broker, lambda _: ("fails", "RetriableError"), (READING, ONCE, NOW)),
    "4 the broker does not respond for 6 s": Trouble(frozen_broker, reads_all, (IDLE, ONCE, NOW)),
    "4 ListOffsets takes 3 s": Trouble(slow_broker, reads_all, (IDLE, ONCE, NOW)),
    "5 the interval is longer than max.poll.interval.ms": Trouble(long_interval, reads_all, (READING,)),
    "6 access is withdrawn": Trouble(access_withdrawn, lambda _: ("fails", "AuthorizationError")),
    "7 no such topic": Trouble(
        no_such_topic,
        lambda case: ("fails", "MissingTopicError") if case.trigger in (ONCE, NOW) else ("runs", ""),
        (READING, ONCE, NOW),
    ),
}


def compare(spark: Any, kafka: Embedded | Real, case: Case) -> Outcome:
    """Play one case."""
    with tempfile.TemporaryDirectory() as directory:
        play = Play(spark, kafka, case, Path(directory))
        try:
            return TROUBLES[case.trouble].play(play)
        except TimeoutError as error:
            return Outcome("stalls", play.read(), 0, WITHIN_S, str(error)[:160])
        except Exception as error:  # noqa: BLE001 - load() or processAllAvailable() may tell what the query would tell
            return Outcome("fails", play.read(), 0, time.monotonic() - play.began_s, brief(str(error)))
        finally:
            kafka.allow()
            if play.query is not None:
                play.query.stop()


def is_right(case: Case, outcome: Outcome) -> bool:
    """Return whether ``kafka_group`` did what it should; the connector may do anything."""
    end, error = TROUBLES[case.trouble].right(case)
    if case.source == CONNECTOR:
        return True
    return outcome.end == end and error in outcome.error and (end == "fails" or outcome.read >= outcome.wanted)


# -- the table ------------------------------------------------------------------------------------------------------


def table(found: Mapping[Case, Outcome]) -> Iterator[str]:
    """Yield the lines of a table: a row for each trouble and trigger, a column for each source and failOnDataLoss."""
    columns = [(source, fail) for fail in (True, False) for source in SOURCES]
    heads = [f"{source}, {'true' if fail else 'false'}" for source, fail in columns]
    yield f"| trouble | trigger | {' | '.join(heads)} |"
    yield "| --- " * (len(heads) + 2) + "|"
    for trouble, trigger in dict.fromkeys((case.trouble, case.trigger) for case in found):
        cells = [found.get(Case(trouble, trigger, source, fail)) for source, fail in columns]
        yield f"| {trouble} | {trigger} | {' | '.join('' if one is None else one.short for one in cells)} |"


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """Yield a session with both sources."""
    from pyspark.sql import SparkSession

    from consumer_coord.spark import register
    from consumer_coord.spark.launcher import write_python_launcher

    jars = sorted(kafka_jars.ensure_jars(SPARK_CONNECTOR).glob("*.jar"))
    with tempfile.TemporaryDirectory() as directory:
        os.environ["PYSPARK_PYTHON"] = write_python_launcher(directory, fork_server=True)
        conf = {
            "spark.jars": ",".join(map(str, jars)),
            "spark.ui.enabled": "false",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
        spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        register(spark)
        try:
            yield spark
        finally:
            spark.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the cases, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", choices=["embedded", "real"], default="embedded")
    parser.add_argument("--troubles", nargs="+", default=list(TROUBLES), help="the beginnings of their names")
    parser.add_argument("--triggers", nargs="+", choices=TRIGGERS, default=list(TRIGGERS))
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    given = parser.parse_args(arguments)
    cases = [
        Case(name, trigger, source, fail)
        for name, trouble in TROUBLES.items()
        if name.startswith(tuple(given.troubles)) and (given.kafka == "embedded" or trouble.play is not slow_broker)
        for trigger in trouble.triggers
        if trigger in given.triggers
        for source in given.sources
        for fail in (True, False)
    ]
    found: dict[Case, Outcome] = {}
    with session() as spark, Embedded() if given.kafka == "embedded" else Real() as kafka:
        for case in cases:
            found[case] = compare(spark, kafka, case)
            print(f"{'' if is_right(case, found[case]) else 'WRONG: '}{case}: {found[case]}", flush=True)
    print("\n".join(table(found)))
    return 0 if all(is_right(*one) for one in found.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
