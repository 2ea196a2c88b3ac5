"""``consumer-coord watch``: its flags, and a run against the embedded Kafka."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import consumer_coord.watch
from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.cli import main
from consumer_coord.errors import ConfigurationError
from consumer_coord.watch.command import parse_listen
from consumer_coord.watch.model import Tracker
from consumer_coord.watch.recording import Meta, Recording, read_recording, write_recording
from tests.watch.looks import group, member

DEADLINE_S = 60.0


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
        ([], "say once what to show"),
        (["--bootstrap-server", "localhost:1", "--replay", "x"], "say once what to show"),
        (["--replay", "x", "--record", "y"], "as it is"),
        (["--replay", "x", "group"], "as it is"),
        (["--replay", "x", "--no-page"], "nothing to do"),
        (["--replay", "x", "--listen", "8098x"], "HOST:PORT"),
        (["--replay", "/nonexistent"], "No such file"),
    ],
)
def test_flags_that_make_no_sense(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--duration", "5", *flags]) == 2
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
    assert main(["watch", "--duration", "5", "--replay", str(recorded(tmp_path / "r"))]) == 2
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


def poll_until_shared(consumers: list[GroupConsumer], each: int) -> None:
    """Until every consumer owns so many partitions."""
    ends = time.monotonic() + DEADLINE_S
    while any(len(consumer.assignment()) != each for consumer in consumers):
        assert time.monotonic() < ends
        for consumer in consumers:
            consumer.poll(0.05)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_rebalances_and_the_events_follow(protocol: str, kafka_here: EmbeddedKafka, tmp_path: Path) -> None:
    def consumer(name: str) -> GroupConsumer:
        settings = {"bootstrap.servers": kafka_here.bootstrap_servers, "group.id": "shop", "client.id": name}
        made = GroupConsumer({**settings, "heartbeat.interval.ms": 500} if protocol == "classic" else settings)
        made.subscribe(["orders"])
        return made

    record, page = tmp_path / "recording", tmp_path / "page.html"
    watch = Watch(
        *("shop", "--bootstrap-server", kafka_here.bootstrap_servers, "--interval", "0.1"),
        *("--record", str(record), "--html", str(page)),
    )
    consumers: list[Any] = []
    try:
        join = consumer if protocol == "classic" else lambda name: _modern(kafka_here, name)
        consumers.append(join("ann"))
        poll_until_shared(consumers, 6)
        consumers.append(join("bob"))
        poll_until_shared(consumers, 3)
        seen: list[dict[str, Any]] = []
        for name, value in watch.events():
            seen += value["messages"] if name == "start" else [value]
            if settled(seen):
                break
    finally:
        for one in consumers:
            one.close()
        out, err = watch.end()
    assert watch.process.returncode == 0, err
    assert out.strip() == str(page)
    assert "bob-" in page.read_text()
    told = read_recording(record)
    assert told.meta.title == kafka_here.bootstrap_servers
    assert settled(list(told.messages))


def settled(messages: list[dict[str, Any]]) -> bool:
    """At some moment ann and bob owned three each, after a rebalance that bob is the reason of."""
    from consumer_coord.watch.history import State

    state = State()
    for message in messages:
        state.apply(message)
        shop = state.as_message()["groups"].get("shop")
        if shop is None or "orders" not in shop["owners"]:
            continue
        clients = {number: one["client"] for number, one in shop["members"].items()}
        counts = dict.fromkeys(("ann", "bob", None), 0)
        for first, last, owner in shop["owners"]["orders"]:
            counts[clients.get(str(owner))] += last + 1 - first
        reasons = [reason for row in shop["rebalances"] for reason in row[3]]
        if counts == {"ann": 3, "bob": 3, None: 0} and any(one.startswith("bob-") for one in reasons):
            return True
    return False


def _modern(kafka: EmbeddedKafka, name: str) -> Any:
    """librdkafka's consumer, by the consumer protocol (KIP-848)."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "shop", "client.id": name}
    made = Consumer({**settings, "group.protocol": "consumer"})
    made.subscribe(["orders"])
    return made


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
    assert err.startswith("Warning: 0.0.0.0 may be reached from other machines")


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch("--replay", str(recorded(tmp_path / "recording")))
    try:
        address = watch.url.removeprefix("http://").rstrip("/")
        assert main(["watch", "--duration", "5", "--replay", str(tmp_path / "recording"), "--listen", address]) == 2
        assert f"--listen {address}: " in capsys.readouterr().err
    finally:
        watch.end()
