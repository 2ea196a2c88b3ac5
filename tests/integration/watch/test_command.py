"""``consumer-coord watch``: its flags, and a run against the embedded Kafka."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from confluent_kafka import Consumer

import consumer_coord.watch
from consumer_coord import GroupConsumer
from consumer_coord.admin.listening import parse_listen
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.cli import main
from consumer_coord.errors import ConfigurationError
from consumer_coord.testing.kafka_cluster import KafkaCluster, unique_name
from consumer_coord.watch.changes import Tracker
from consumer_coord.watch.history import State
from consumer_coord.watch.recording import Meta, Recording, read_recording
from tests.support.waiting import eventually
from tests.support.watch.looks import group, member
from tests.support.watch.recordings import write_recording

DEADLINE_S = 180.0


def recorded(path: Path) -> Path:
    """A small recording."""
    tracker = Tracker()
    looks = [group(member("ann", "0-3")), group(member("ann", "0-1"), member("bob", "2-3"))]
    told = tuple(tracker.take([look], {}, 100.0 + at) for at, look in enumerate(looks))
    write_recording(path, Recording(Meta("kafka:9092"), told))
    return path


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "choose a source"),
        (["--bootstrap-server", "localhost:1", "--replay", "x"], "choose a source"),
        (["--replay", "x", "--record", "y"], "a whole recording"),
        (["--replay", "x", "group"], "a whole recording"),
        (["--replay", "x", "--no-page"], "nothing to do"),
        (["--replay", "x", "--listen", "8098x"], "HOST:PORT"),
        (["--replay", "/nonexistent"], "No such file"),
    ],
)
def test_flags_that_make_no_sense(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--duration-ms", "5000", *flags]) == 2
    assert complaint in capsys.readouterr().err


def test_where_to_listen() -> None:
    assert parse_listen("127.0.0.1:80") == ("127.0.0.1", 80)
    assert parse_listen(":80") == ("127.0.0.1", 80)
    assert parse_listen("[::1]:0") == ("::1", 0)
    with pytest.raises(ConfigurationError):
        parse_listen("localhost:70000")


@pytest.fixture
def _without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, "consumer_coord.watch.server", raising=False)
    monkeypatch.delattr(consumer_coord.watch, "server", raising=False)


@pytest.mark.usefixtures("_without_the_extra")
def test_a_missing_extra_is_named_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--duration-ms", "5000", "--replay", str(recorded(tmp_path / "r"))]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "pip install 'consumer-coord[web]'" in line


@pytest.mark.usefixtures("_without_the_extra")
def test_without_the_extra_a_recording_becomes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["watch", "--replay", str(recorded(tmp_path / "r")), "--html", str(page)]) == 0
    assert "bob-123456 joined" in page.read_text()


def test_a_cluster_that_does_not_answer_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--bootstrap-server", "127.0.0.1:1", "--timeout", "300", "--listen", "127.0.0.1:0"]) == 6
    assert "Error" in capsys.readouterr().err


class Watch:
    """The command as a process."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "consumer_coord", "watch", "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def events(self) -> Iterator[tuple[str, Any]]:
        """(name, value) as they come."""
        with httpx.stream("GET", f"{self.url}events", timeout=DEADLINE_S) as answer:
            name, ends = "message", time.monotonic() + DEADLINE_S
            for line in answer.iter_lines():
                assert time.monotonic() < ends
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))
                    name = "message"

    def end(self) -> tuple[str, str]:
        """Ask it to end; its output."""
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def kafka_here() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 6}) as kafka:
        yield kafka


def poll_until_shared(consumers: list[Any], each: int) -> None:
    """Poll until every consumer owns ``each`` partitions."""
    eventually(
        lambda: all(len(consumer.assignment()) == each for consumer in consumers),
        step=lambda: [consumer.poll(0.05) for consumer in consumers],
    )


@attrs.frozen
class Place:
    """Brokers, and a group there that reads a topic of six partitions."""

    servers: str
    group: str = "shop"
    topic: str = "orders"

    def join(self, client: str, name: str) -> Any:
        """One more member: ours of the classic protocol, or ours or librdkafka's of the consumer protocol (KIP-848)."""
        settings = {"bootstrap.servers": self.servers, "group.id": self.group, "client.id": name}
        made: Any
        match client:
            case "classic":
                made = GroupConsumer({**settings, "heartbeat.interval.ms": 500})
            case "ours":
                made = GroupConsumer({**settings, "group.protocol": "consumer"})
            case _:
                made = Consumer({**settings, "group.protocol": "consumer"})
        made.subscribe([self.topic])
        return made

    def shares(self, state: State) -> dict[str | None, int]:
        """Return the number of partitions of each client."""
        told = state.as_message()["groups"].get(self.group, {"owners": {}})
        found: dict[str | None, int] = {}
        for first, last, owner in told["owners"].get(self.topic, ()):
            client = told["members"][str(owner)]["client"] if owner >= 0 else None
            found[client] = found.get(client, 0) + last + 1 - first
        return found


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest) -> Place:
    """On either broker."""
    if request.param == "embedded":
        return Place(request.getfixturevalue("kafka_here").bootstrap_servers)
    kafka: KafkaCluster = request.getfixturevalue("kafka")
    return Place(kafka.bootstrap_servers, unique_name("shop"), kafka.new_topic(6))


@pytest.mark.slow
@pytest.mark.parametrize("client", ["classic", "librdkafka", "ours"])
def test_a_group_rebalances_and_the_events_follow(client: str, place: Place, tmp_path: Path) -> None:
    protocol = "classic" if client == "classic" else "consumer"
    record, page = tmp_path / "recording", tmp_path / "page.html"
    watch = Watch(
        *(place.group, "--bootstrap-server", place.servers, "--interval-ms", "100"),
        *("--record", str(record), "--html", str(page)),
    )
    consumers: list[Any] = []
    try:
        state, events = State(), watch.events()
        for name, each in (("ann", 6), ("bob", 3)):
            consumers.append(place.join(client, name))
            poll_until_shared(consumers, each)
            wanted = dict.fromkeys(("ann", "bob")[: len(consumers)], each)
            while place.shares(state) != wanted:
                kind, value = next(events)
                for message in value["messages"] if kind == "start" else [value]:
                    state.apply(message)
    finally:
        for one in consumers:
            one.close()
        out, err = watch.end()
    assert watch.process.returncode == 0, err
    assert out.strip() == str(page)
    shop = state.as_message()["groups"][place.group]
    assert shop["info"]["type"].lower() == protocol
    assert any(reason.startswith("bob-") and reason.endswith(" joined") for row in shop["rebalances"] for reason in row[3])
    assert {one["host"] for one in shop["members"].values()} == {"/127.0.0.1"}
    if protocol == "consumer":
        assert all(one["generation"] > 0 for one in shop["members"].values())

    assert "bob-" in page.read_text()
    told = read_recording(record)
    assert told.meta.title == place.servers
    replayed, seen = State(), []
    for message in told.messages:
        replayed.apply(message)
        seen.append(place.shares(replayed))
    assert {"ann": 3, "bob": 3} in seen


def test_a_misspelled_group_is_said_to_be_absent_until_it_comes(kafka_here: EmbeddedKafka) -> None:
    place = Place(kafka_here.bootstrap_servers, "orders-billing")
    consumers = [place.join("classic", "ann")]
    poll_until_shared(consumers, 6)
    watch = Watch("order-billing", "--bootstrap-server", place.servers, "--interval-ms", "100")
    try:
        state, events = State(), watch.events()

        def until(told: Callable[[dict[str, Any]], bool]) -> None:
            while not (state.at and told(state.as_message()["groups"]["order-billing"])):
                kind, value = next(events)
                for message in value["messages"] if kind == "start" else [value]:
                    state.apply(message)

        until(lambda group: bool(group["info"].get("error")))
        told = state.as_message()["groups"]["order-billing"]["info"]["error"]
        assert told.startswith("The cluster has no group 'order-billing'; did you mean 'orders-billing'? The page")
        consumers.append(Place(place.servers, "order-billing").join("classic", "bob"))
        poll_until_shared(consumers, 6)
        until(lambda group: not group["info"].get("error") and len(group["members"]) == 1)
    finally:
        for one in consumers:
            one.close()
        _, err = watch.end()
    assert watch.process.returncode == 0, err


def test_a_replay_is_served_until_it_is_stopped(tmp_path: Path) -> None:
    watch = Watch("--replay", str(recorded(tmp_path / "recording")))
    try:
        assert httpx.get(watch.url).status_code == 200
        name, start = next(iter(watch.events()))
        assert (name, start["live"], len(start["messages"])) == ("start", False, 2)
    finally:
        _, err = watch.end()
    assert (watch.process.returncode, err) == (0, "")


def test_another_address_than_loopback_is_warned_of(tmp_path: Path) -> None:
    watch = Watch("--replay", str(recorded(tmp_path / "recording")), "--listen", "0.0.0.0:0")
    _, err = watch.end()
    assert watch.process.returncode == 0
    assert err.startswith("Warning: other machines may reach 0.0.0.0")


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch("--replay", str(recorded(tmp_path / "recording")))
    try:
        address = watch.url.removeprefix("http://").rstrip("/")
        assert main(["watch", "--duration-ms", "5000", "--replay", str(tmp_path / "recording"), "--listen", address]) == 2
        assert f"--listen {address}: " in capsys.readouterr().err
    finally:
        watch.end()
