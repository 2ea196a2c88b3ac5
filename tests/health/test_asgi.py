"""Probes over HTTP: the paths, the status, and the body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import ClosedError
from consumer_coord.health import Health, Owed, PartitionHealth, Reason, asgi
from consumer_coord.health.asgi import HealthApp
from tests.support.consumer.embedded import BROKER, consumer
from tests.support.waiting import eventually

FINE = Health(healthy=True, live=True, state="stable", joined=True, lease_s=40.0)
FROZEN = PartitionHealth(
    topic="orders",
    partition=3,
    owed=Owed.UNKNOWN,
    records=None,
    since_s=14.0,
    reason=Reason.LEADER_SILENT,
    detail="broker 2 has not answered for 14.0 s",
)
SICK = Health(
    healthy=False, live=True, state="stable", joined=True, lease_s=40.0, partitions=(FROZEN,), problems=(FROZEN.text,)
)
STUCK = Health(healthy=False, live=False, state="stable", joined=True, lease_s=40.0, problems=("stuck",))


class Blocking:
    """A consumer with one answer, and the limits that it was asked with."""

    def __init__(self, answer: Health | Exception) -> None:
        self.answer = answer
        self.limits: list[float] = []

    def health(self, limit: float = 60.0) -> Health:
        """Return the answer, or raise it."""
        self.limits.append(limit)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Async(Blocking):
    """The same for asyncio."""

    async def health(self, limit: float = 60.0) -> Health:  # type: ignore[override]  # as in the real classes
        """Return the answer, or raise it."""
        return super().health(limit)


@pytest.mark.parametrize("kind", [Blocking, Async])
@pytest.mark.parametrize(("answer", "ready", "live"), [(FINE, 200, 200), (SICK, 503, 200), (STUCK, 503, 503)])
def test_the_status_says_whether_to_send_traffic_and_whether_to_restart(
    kind: type[Blocking], answer: Health, ready: int, live: int
) -> None:
    one = kind(answer)
    with TestClient(HealthApp(one, limit=30.0)) as client:
        assert client.get("/ready").status_code == ready
        assert client.get("/live").status_code == live
        assert client.head("/ready").status_code == ready
        assert not client.head("/ready").content
    assert set(one.limits) == {30.0}


def test_the_body_names_the_partition_and_why() -> None:
    told = TestClient(HealthApp(Blocking(FINE), Blocking(SICK))).get("/ready")
    assert told.status_code == 503
    assert told.headers["content-type"] == "application/json"
    assert told.headers["cache-control"] == "no-store"
    body = told.json()
    assert (body["healthy"], body["live"]) == (False, True)
    first, second = body["consumers"]
    assert first["healthy"]
    assert second["problems"] == [
        "orders-3: unknown whether there are records for 14.0 s (leader does not answer: broker 2 has not answered for 14.0 s)"
    ]
    (named,) = second["partitions"]
    assert (named["topic"], named["partition"], named["since_s"], named["reason"]) == (
        "orders",
        3,
        14.0,
        "leader does not answer",
    )


@pytest.mark.parametrize("kind", [Blocking, Async])
def test_a_closed_consumer_is_not_ready_and_says_why(kind: type[Blocking]) -> None:
    told = TestClient(HealthApp(kind(ClosedError("Consumer closed")))).get("/live")
    assert told.status_code == 503
    assert told.json()["consumers"][0]["problems"] == ["Consumer closed"]


def test_a_consumer_that_does_not_answer_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Async):
        async def health(self, limit: float = 60.0) -> Health:  # type: ignore[override]  # as in the real classes
            await asyncio.Event().wait()
            return FINE

    monkeypatch.setattr(asgi, "_ANSWER_S", 0.01)
    told = TestClient(HealthApp(Hanging(FINE))).get("/ready")
    assert told.status_code == 503
    assert told.json()["consumers"][0]["problems"] == ["the consumer did not answer within 0.01 s"]


def test_other_paths_and_methods_are_refused() -> None:
    client = TestClient(HealthApp(Blocking(FINE)))
    assert client.get("/").status_code == 404
    assert client.post("/ready").status_code == 405
    with pytest.raises(ValueError, match="at least one consumer"):
        HealthApp()


def test_it_can_be_mounted_below_a_prefix() -> None:
    client = TestClient(Starlette(routes=[Mount("/probes", HealthApp(Blocking(FINE)))]))
    assert client.get("/probes/ready").status_code == 200


def test_a_websocket_is_refused() -> None:
    async def never(*_: Any) -> Any:
        raise AssertionError("nothing is received or sent")

    scope: dict[str, Any] = {"type": "websocket"}
    refused: Callable[[], Awaitable[None]] = lambda: HealthApp(Blocking(FINE))(scope, never, never)  # noqa: E731
    with pytest.raises(ValueError, match="HTTP requests only"):
        asyncio.run(refused())  # type: ignore[arg-type]  # it is a coroutine


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as running:
        yield running


def test_a_group_consumer_answers_probes_from_another_thread(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        client = TestClient(HealthApp(one))
        one.subscribe(["orders"])

        def names() -> list[int]:
            told = client.get("/ready")
            assert told.status_code == 200
            return [part["partition"] for part in told.json()["consumers"][0]["partitions"] if part["owed"] == "no"]

        eventually(lambda: names() == [0, 1], step=one.poll_and_keep)
    assert client.get("/ready").status_code == 503
