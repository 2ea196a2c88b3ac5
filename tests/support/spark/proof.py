"""The proof: queries and plain consumers share a group while records are written and every kind of process is killed.

    python -m tests.support.spark.proof --records 1000000 --master 'local[2]'
    python -m tests.support.spark.proof --embedded --static --master 'local-cluster[2,1,1024]'
    python -m tests.support.spark.proof --master standalone
    python -m tests.support.spark.proof --proxy --steps restart:a cut:* swallow:* restart:b
    python -m tests.support.spark.proof --steps restart:a recreate:* restart:b jvm:a recreate:*

Three queries in separate driver processes and two plain consumers (confluent-kafka, and the one of this package) read one
topic.  Queries are added, stopped, stopped and started again at once, killed with SIGKILL (JVM, Python driver, planner,
executors' workers) and restarted from their checkpoints. The topic is deleted and created again. With ``--proxy``, the
queries' connections are cut or blocked.  The proof fails if a record is lost, a duplicate has no known cause, the lag does
not reach zero, or a process or member is left behind.

Records of a topic that was deleted before they were read do not count; each record contains the number of its topic.  Plain
consumers do not take part in a play that creates a topic again, because they treat such topics differently.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from consumer_coord.testing import jars as kafka_jars
from consumer_coord.testing.proxy import Proxy
from consumer_coord.testing.real_kafka import Listener, RealKafka
from tests.support.members import Members
from tests.support.spark.deliveries import Verdict
from tests.support.spark.scene import DEADLINE_S, SESSION_TIMEOUT_MS, Flow, Scene

#: The name in a step that concerns all queries, or the topic.
ALL = "*"

#: (what, who): the whole play; each step begins when the members share all partitions.
PLAY: Sequence[tuple[str, str]] = (
    ("start", "c"),
    ("jvm", "a"),
    ("driver", "b"),
    ("planner", "c"),
    ("executor", "a"),
    ("stop", "b"),
    ("planner", "a"),
    ("jvm", "c"),
    ("restart", "a"),
    ("remove", "b"),
    ("restart", "c"),
)

#: A play in which the topic is deleted and created again.
RECREATED: Sequence[tuple[str, str]] = (
    ("restart", "a"),
    ("recreate", ALL),
    ("restart", "b"),
    ("jvm", "a"),
    ("recreate", ALL),
    ("stop", "b"),
)

#: A play over a proxy.
PROXIED: Sequence[tuple[str, str]] = (
    ("cut", ALL),
    ("swallow", ALL),
    ("restart", "a"),
    ("cut", ALL),
    ("planner", "b"),
    ("swallow", ALL),
    ("stop", "a"),
)

STEPS = ("start", "stop", "restart", "remove", "jvm", "driver", "planner", "executor")
STEPS_OF_ALL = ("recreate", "cut", "swallow")


def wrong_step(steps: Sequence[tuple[str, str]]) -> str | None:
    """Return the error in the steps of a play, which begins with the queries ``a`` and ``b``, or None."""
    running = {"a", "b"}
    for what, name in steps:
        if what in STEPS_OF_ALL:
            if name != ALL:
                return f"{what}:{name}: this step concerns all queries, {what}:{ALL}"
            continue
        if what not in STEPS:
            return f"{what}:{name} is no step, those are {', '.join(STEPS + STEPS_OF_ALL)}"
        if (what == "start") is (name in running):
            return f"{what}:{name}: {name} {'runs already' if name in running else f'does not run, start:{name} first'}"
        running = running - {name} if what == "remove" else running | {name}
    return None


def play(scene: Scene, members: Members, records: int, rate: float, steps: Sequence[tuple[str, str]] = PLAY) -> Verdict:
    """Play the whole proof, with records until the last step at least; return the verdict, which is not checked yet."""
    scene.create()
    scene.start("a")
    scene.start("b")
    if all(what != "recreate" for what, _ in steps):
        scene.start_plain(members)
    scene.await_whole()
    flow = Flow(scene.bootstrap_servers, scene.topic, scene.partitions, records, rate)
    flow.start()
    for what, name in steps:
        time.sleep(2)
        if what == "start":
            scene.start(name)
        elif what == "recreate":
            scene.recreate(flow)
        elif what == "restart":
            scene.restart(name)
        elif what in ("cut", "swallow"):
            trouble(scene, what)
        elif what in ("stop", "remove"):
            scene.stop(name)
            if what == "stop":
                scene.start(name)
        else:
            scene.kill(name, what)
            if name not in scene.drivers:
                scene.start(name)
        scene.await_whole()
        scene.say(f"the members share all partitions again; {flow.written} records written")
    flow.finish()
    scene.written = flow.written - flow.before
    scene.say(f"{scene.written} records written")
    scene.await_no_lag()
    scene.end()
    return scene.verdict()


def trouble(scene: Scene, what: str) -> None:
    """Cut the queries' connections a few times, or block them for less than a session and then for longer."""
    assert scene.proxy is not None, f"{what} needs --proxy"
    scene.say(f"{what}: the queries' connections")
    if what == "cut":
        for _ in range(5):
            scene.proxy.cut()
            time.sleep(0.7)
        return
    for seconds in (SESSION_TIMEOUT_MS / 2000, SESSION_TIMEOUT_MS / 1000 + 3):
        scene.proxy.swallow(True)
        time.sleep(seconds)
        scene.proxy.swallow(False)
        time.sleep(3)


@contextlib.contextmanager
def broker(embedded: bool, proxy: Proxy | None = None) -> Iterator[str]:
    """Start a separate broker and yield its bootstrap servers; ``proxy`` leads to its second listener."""
    if embedded:
        from consumer_coord.broker.server import EmbeddedKafka

        with EmbeddedKafka() as kafka:
            yield kafka.bootstrap_servers
    else:
        listeners = [] if proxy is None else [Listener("PROXIED", "PLAINTEXT", {1: proxy.port})]
        with RealKafka(kafka_jars.ensure_jars(kafka_jars.KAFKA), listeners=listeners) as cluster:
            if proxy is not None:
                proxy.target = int(cluster.bootstrap("PROXIED").rpartition(":")[2])
            yield cluster.bootstrap_servers


@contextlib.contextmanager
def master(name: str, directory: Path) -> Iterator[str]:
    """Yield the URL of Spark's master; ``standalone`` starts a master with two workers on loopback."""
    if name != "standalone":
        yield name
        return
    from tests.support.spark.standalone import standalone

    with standalone(directory) as url:
        yield url


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="minimum; records are written until the last kill")
    parser.add_argument("--rate", type=float, default=5_000, help="records a second")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--master", default="local[2]", help="local[2], local-cluster[2,1,1024], standalone, or a URL")
    parser.add_argument("--static", action="store_true", help="static membership")
    parser.add_argument(
        "--tolerate", type=int, default=0, help="unexpected failures of queries, without those of Spark's 10 s to connect"
    )
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="seconds for each step, more on a busy machine")
    parser.add_argument("--proxy", action="store_true", help="queries behind a proxy that cuts and blocks connections")
    parser.add_argument("--recreate", action="store_true", help="a play in which the topic is deleted and created again")
    parser.add_argument("--steps", nargs="+", help="what:who instead of the whole play, such as jvm:a planner:b stop:a")
    parser.add_argument("--embedded", action="store_true", help="on the embedded Kafka, not on a real one")
    given = parser.parse_args(arguments)
    steps: Sequence[tuple[str, str]] = PROXIED if given.proxy else RECREATED if given.recreate else PLAY
    if given.embedded and given.proxy:
        parser.error("--proxy needs a real Kafka, which may advertise another port than its own")
    if given.steps:
        steps = [(what, name) for what, _, name in (step.partition(":") for step in given.steps)]
        problem = wrong_step(steps)
        if problem is not None:
            parser.error(f"--steps: {problem}")
    directory = Path(tempfile.mkdtemp(prefix="spark-proof-"))
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    with (
        Proxy() if given.proxy else contextlib.nullcontext() as proxy,
        broker(given.embedded, proxy) as address,
        master(given.master, directory) as url,
    ):
        members = Members(lambda: Path(), lambda: address)
        conf = {} if url.startswith("local[") else {"spark.executor.memory": "512m", "spark.cores.max": "2"}
        scene = Scene(
            address,
            directory,
            partitions=given.partitions,
            master=url,
            static=given.static,
            conf=conf,
            say=say,
            tolerated_failures=given.tolerate,
            deadline_s=given.deadline,
            proxy=proxy,
        )
        try:
            verdict = play(scene, members, given.records, given.rate, steps)
        finally:
            scene.close()
            members.close()
    result: dict[str, Any] = {
        "records": scene.written,
        "delivered": verdict.delivered,
        "lost": verdict.lost,
        "duplicates": verdict.duplicates,
        "topics": scene.topics + 1,
        "ghosts": scene.ghosts,
        "failures": scene.failures,
        "ended by Spark's 10 s": len(scene.late),
        "kills": {what: scene.kills.count(what) for what in sorted(set(scene.kills))},
        "master": given.master,
        "static": given.static,
        "broker": "embedded" if given.embedded else "Apache Kafka",
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(result, indent=2))
    for pair in verdict.unexplained[:10]:
        print("unexplained:", *pair, sep="\n  ")
    # Of a deleted topic, only the records that were read count.
    missed = not scene.topics and verdict.delivered != scene.written
    failed = bool(verdict.lost or verdict.unexplained or missed or scene.ghosts)
    if not failed:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"logs, sink and checkpoints: {directory}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
