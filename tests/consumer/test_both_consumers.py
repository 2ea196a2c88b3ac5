"""GroupConsumer and AsyncGroupConsumer: the same call in the same state has the same outcome, and the same effect.

The differences that are meant are in two tables of ``docs/asyncio.md``. Whoever adds a public method adds it to both consumers
and to ``CALLS``, or to the page's list of methods that one consumer alone has.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer, confluent
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException
from consumer_coord.errors import WakeupError
from tests.support.consumer.embedded import BROKER, DEADLINE_S, produce, row
from tests.support.waiting import eventually, eventually_async

Outcome = str
Call = Callable[[Any], Any]


class NeverFinished:
    """A tracker whose records are never finished."""

    def finished(self, *_: object) -> None:
        """Return that no record is finished."""

    def may_release(self, *_: object) -> bool:
        """Return that a partition need not wait."""
        return True

    def metadata_rejected(self, *_: object) -> None:
        """Ignore what the broker rejected."""


def process_nothing(one: Any) -> Any:
    """Process records until an event that is set."""
    blocking = isinstance(one, GroupConsumer)
    stop: Any = threading.Event() if blocking else asyncio.Event()
    stop.set()
    return one.process(print if blocking else asyncio.sleep, stop=stop)


CALLS: Mapping[str, Call] = {
    "arrow_batches": lambda one: one.arrow_batches(),
    "assign": lambda one: one.assign([row(0, 0)]),
    "assign nothing": lambda one: one.assign([]),
    "assignment": lambda one: one.assignment(),
    "beginning_offsets": lambda one: one.beginning_offsets([row(0)]),
    "close": lambda one: one.close(),
    "cluster_id": lambda one: one.cluster_id(10),
    "commit": lambda one: one.commit(asynchronous=False),
    "commit later": lambda one: one.commit(),
    "commit nothing": lambda one: one.commit(offsets=[], asynchronous=False),
    "commit offsets later": lambda one: one.commit(offsets=[row(0, 1)]),
    "commit offsets": lambda one: one.commit(offsets=[row(0, 1)], asynchronous=False),
    "committed": lambda one: one.committed([row(0)], 10),
    "consume": lambda one: one.consume(1, 0),
    "consume_arrow": lambda one: one.consume_arrow(timeout=0),
    "consumer_group_metadata": lambda one: one.consumer_group_metadata(),
    "enforce_rebalance": lambda one: one.enforce_rebalance("a test"),
    "end_offsets": lambda one: one.end_offsets([row(0)]),
    "generation": lambda one: one.generation(),
    "health": lambda one: one.health(),
    "get_watermark_offsets": lambda one: one.get_watermark_offsets(row(0), 10),
    "incremental_assign": lambda one: one.incremental_assign([row(1, 0)]),
    "incremental_unassign": lambda one: one.incremental_unassign([row(0)]),
    "incremental_unassign of others": lambda one: one.incremental_unassign([row(0, topic="other")]),
    "lag": lambda one: one.lag(10),
    "list_topics": lambda one: one.list_topics(timeout=10),
    "memberid": lambda one: one.memberid(),
    "metrics": lambda one: one.metrics(),
    "offsets_for_times": lambda one: one.offsets_for_times([row(0, 0)], 10),
    "pause": lambda one: one.pause([row(0)]),
    "paused": lambda one: one.paused(),
    "poll": lambda one: one.poll(0),
    "position": lambda one: one.position([row(0)]),
    "process": process_nothing,
    "report_handlers": lambda one: one.report_handlers(dict),
    "resume": lambda one: one.resume([row(0)]),
    "seek": lambda one: one.seek(row(0, 1)),
    "seek unassigned": lambda one: one.seek(row(0, 1, "other")),
    "seek_to_beginning": lambda one: one.seek_to_beginning(row(0)),
    "seek_to_end": lambda one: one.seek_to_end(),
    "set_sasl_credentials": lambda one: one.set_sasl_credentials("user", "password"),
    "store_offsets": lambda one: one.store_offsets(offsets=[row(0, 1)]),
    "store_offsets of nothing": lambda one: one.store_offsets(),
    "subscribe": lambda one: one.subscribe(["orders"]),
    "subscribe to a text": lambda one: one.subscribe("orders"),
    "subscription": lambda one: one.subscription(),
    "track_records": lambda one: one.track_records(NeverFinished()),
    "unassign": lambda one: one.unassign(),
    "unsubscribe": lambda one: one.unsubscribe(),
    "wakeup": lambda one: one.wakeup(),
}

STATES = ("new", "subscribed", "assigned by hand", "inside on_assign", "closed")


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2, "other": 1}, config=BROKER) as running:
        produce(running, "orders", {0: range(3)})
        yield running


def settings(kafka: EmbeddedKafka) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": uuid.uuid4().hex,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "partition.assignment.strategy": "range",
    }


def shown(value: Any) -> Outcome:
    """Return a value without what differs from group to group."""
    match value:
        case None | bool() | int():
            return repr(value)
        case confluent.TopicPartition():
            return f"{value.topic}[{value.partition}]@{value.offset}" + (
                "" if value.error is None else f" {value.error.name()}"
            )
        case str():
            return "a text" if value else "''"
        case bytes():
            return f"generation {struct.unpack_from('=i', value, len(b'CGMDv2:'))[0]}"
        case list() | tuple():
            return str(list(map(shown, value)))
        case set() | frozenset():
            return str(sorted(map(str, map(shown, value))))
        case _:
            return type(value).__name__.removeprefix("Blocking")


def effects(one: Any) -> Iterator[Any]:
    """Return what a call may have changed."""
    yield one.assignment()
    yield one.paused()
    yield one.position([row(0)])
    yield one.subscription()


def raised(error: BaseException) -> Outcome:
    code = error.args[0].name() if isinstance(error, KafkaException) else ""
    return " ".join(filter(None, (type(error).__name__, code)))


def outcome_of_blocking(kafka: EmbeddedKafka, state: str, call: Call) -> tuple[Outcome, ...]:
    found: list[Outcome] = []

    def made() -> None:
        try:
            found.append(shown(call(one)))
        except Exception as error:  # noqa: BLE001 - the outcome
            found.append(raised(error))

    one = GroupConsumer(settings(kafka))
    try:
        if state == "inside on_assign":
            one.subscribe(["orders"], on_assign=lambda *_: made() if not found else None)
            with contextlib.suppress(WakeupError):
                eventually(lambda: found, step=lambda: one.poll(0.01))
            return tuple(found)
        if state == "subscribed":
            one.subscribe(["orders"])
            eventually(one.assignment, step=lambda: one.poll(0.01))
        elif state == "assigned by hand":
            one.assign([row(0, 3)])
        elif state == "closed":
            one.close()
        made()
        if state != "closed" and call is not CALLS["close"]:
            found.extend(map(shown, effects(one)))
        return tuple(found)
    finally:
        one.close()


async def outcome_of_asyncio(kafka: EmbeddedKafka, state: str, call: Call) -> tuple[Outcome, ...]:
    found: list[Outcome] = []

    async def made(*_: object) -> None:
        if found:
            return
        try:
            value = call(one)
            found.append(shown(await value if inspect.isawaitable(value) else value))
        except Exception as error:  # noqa: BLE001 - the outcome
            found.append(raised(error))

    one = AsyncGroupConsumer(settings(kafka))
    try:
        if state == "inside on_assign":
            await one.subscribe(["orders"], on_assign=made)
            with contextlib.suppress(WakeupError):
                await eventually_async(lambda: found, step=lambda: one.poll(0.01))
            return tuple(found)
        if state == "subscribed":
            await one.subscribe(["orders"])
            await eventually_async(one.assignment, step=lambda: one.poll(0.01))
        elif state == "assigned by hand":
            await one.assign([row(0, 3)])
        elif state == "closed":
            await one.close()
        await made()
        if state != "closed" and call is not CALLS["close"]:
            found.extend([shown(await value if inspect.isawaitable(value) else value) for value in effects(one)])
        return tuple(found)
    finally:
        await one.close()


def table(name: str, row_pattern: str) -> list[tuple[str, ...]]:
    """Return the rows of a table of the documentation."""
    page = (Path(__file__).parents[2] / "docs" / "asyncio.md").read_text()
    _, found, rest = page.partition(f"<!-- {name} -->")
    assert found, name
    return re.findall(rf"^\| {row_pattern}", rest.partition("<!-- end -->")[0], re.MULTILINE)


def differences() -> dict[tuple[str, str], tuple[Outcome, Outcome]]:
    """Return the table of the documentation: (state, call) -> the outcomes."""
    rows = table("both consumers", r"(.+?) \| `(.+?)` \| (.+?) \| (.+?) \| .+ \|$")
    return {(state, call): (blocking, other) for states, call, blocking, other in rows for state in states.split(", ")}


@pytest.mark.parametrize("state", STATES)
def test_the_same_call_in_the_same_state_has_the_same_outcome(kafka: EmbeddedKafka, state: str) -> None:
    async def all_of_asyncio() -> dict[str, tuple[Outcome, ...]]:
        async with asyncio.timeout(DEADLINE_S):
            return {name: await outcome_of_asyncio(kafka, state, call) for name, call in CALLS.items()}

    there = asyncio.run(all_of_asyncio())
    here = {name: outcome_of_blocking(kafka, state, call) for name, call in CALLS.items()}
    expected = {call: both for (where, call), both in differences().items() if where == state}
    # A call that only one consumer accepts has an effect in that one alone.
    found = {
        name: (here[name][0], there[name][0]) if name in expected else (here[name], there[name])
        for name in CALLS
        if here[name] != there[name]
    }
    assert found == expected


def public_methods(kind: type[Any]) -> set[str]:
    own = [each for each in kind.__mro__ if each.__module__.startswith("consumer_coord")]
    return {name for each in own for name in vars(each) if not name.startswith("_")}


def parameters(kind: type[Any], method: str) -> dict[str, object]:
    of_method = list(inspect.signature(getattr(kind, method)).parameters.values())[1:]
    return {one.name: (one.default, one.kind) for one in of_method}


def test_every_public_method_is_a_method_of_both_consumers_with_the_same_parameters() -> None:
    blocking, other = public_methods(GroupConsumer), public_methods(AsyncGroupConsumer)
    different = {
        (name, parameter)
        for name in blocking & other
        for here, there in [(parameters(GroupConsumer, name), parameters(AsyncGroupConsumer, name))]
        for parameter in here.keys() | there.keys()
        if here.get(parameter) != there.get(parameter)
    }
    alone = {(name, "") for name in blocking ^ other}
    assert alone | different == {(call, parameter) for call, parameter in table("parameters", r"`(.+?)` \| (?:`(.+?)`)? ?\|")}
    assert {name.partition(" ")[0] for name in CALLS} == blocking & other


@pytest.mark.parametrize("value", ["yes", "on", None, 2])
@pytest.mark.parametrize("kind", [GroupConsumer, AsyncGroupConsumer])
def test_a_setting_that_is_no_boolean_is_refused(kind: Any, value: object) -> None:
    given = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "enable.auto.offset.store": value}
    with pytest.raises(KafkaException, match=r"enable\.auto\.offset\.store=.* must be true or false"):
        kind(given)


def _statistics_of(texts: list[str], partition: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts[-1]) if texts else {}
    row: dict[str, Any] = found.get("topics", {}).get("orders", {}).get("partitions", {}).get(str(partition), {})
    group = found.get("cgrp", {})
    return {
        "committed": row.get("committed_offset"),
        "lag": row.get("consumer_lag"),
        "state": group.get("state"),
        "partitions": group.get("assignment_size"),
    }


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("kind", [GroupConsumer, AsyncGroupConsumer])
def test_statistics_and_automatic_commits_are_reported(kafka: EmbeddedKafka, kind: Any, paused: bool) -> None:
    texts: list[str] = []
    reported: list[tuple[int, int]] = []

    def on_commit(error: Any, rows: Any) -> None:
        assert error is None
        reported.extend((each.partition, each.offset) for each in rows)

    one = kind(
        settings(kafka)
        | {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "enable.auto.offset.store": True,
            "auto.commit.interval.ms": 50,
            "statistics.interval.ms": 50,
            "stats_cb": texts.append,
            "on_commit": on_commit,
        }
    )

    async def asked(value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await asked(one.subscribe(["orders"]))
            seen: list[Any] = []

            async def step() -> None:
                seen.extend(await asked(one.consume(3, 0.01)))

            await eventually_async(lambda: len(seen) == 3 and (0, 3) in reported, step=step)
            if paused:
                await asked(one.pause([row(0)]))
                texts.clear()
            expected = {"committed": 3, "lag": 0, "state": "up", "partitions": 2}
            await eventually_async(lambda: _statistics_of(texts, 0) == expected, step=step, shows=lambda: texts[-1:])
            await asked(one.close())

    asyncio.run(main())


def test_statistics_have_every_assigned_partition_and_no_other_one(kafka: EmbeddedKafka) -> None:
    """Bytewax reads its partition's row in the first statistics."""
    texts: list[str] = []
    one = GroupConsumer(settings(kafka) | {"statistics.interval.ms": 1, "stats_cb": texts.append})
    one.assign([row(1, 0)])
    eventually(lambda: len(texts) > 3, step=lambda: one.consume(1, 0.001))
    one.close()
    for text in texts:
        found = json.loads(text)["topics"]["orders"]["partitions"]
        assert "1" in found
        assert {"consumer_lag", "hi_offset", "fetch_state", "app_offset"} <= found["1"].keys()
        assert not [number for number, each in found.items() if each["unknown"] and number not in ("-1", "1")]


@pytest.mark.parametrize("kind", [GroupConsumer, AsyncGroupConsumer])
def test_a_wakeup_ends_the_next_poll_and_no_other_one(kafka: EmbeddedKafka, kind: Any) -> None:
    async def asked(value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value

    async def main() -> None:
        one = kind(settings(kafka))
        await asked(one.subscribe(["orders"]))
        one.wakeup()
        with pytest.raises(WakeupError):
            await asked(one.poll(DEADLINE_S))
        assert await asked(one.poll(0)) is None
        await asked(one.close())

    asyncio.run(main())


def test_a_wakeup_ends_the_poll_of_another_task(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with AsyncGroupConsumer(settings(kafka)) as one, asyncio.timeout(DEADLINE_S):
            await one.subscribe(["orders"])
            polls = asyncio.create_task(one.poll())
            await eventually_async(one.assignment)
            one.wakeup()
            with pytest.raises(WakeupError):
                await polls

    asyncio.run(main())


@pytest.mark.parametrize("blocking", [True, False])
def test_consume_waits_for_more_bytes_than_are_fetched_ahead(kafka: EmbeddedKafka, blocking: bool) -> None:
    """Neither the queue's room for 4 MiB nor the limit of what is fetched ahead ends the call before its timeout."""
    kafka.create_topic("large", 1)
    produce(kafka, "large", {0: [str(at) * 900_000 for at in range(9)]})
    given = settings(kafka) | {"auto.offset.reset": "earliest", "queued.max.messages.kbytes": 2048}

    async def of_asyncio() -> list[Any]:
        async with AsyncGroupConsumer(given) as one:
            await one.assign([row(0, 0, "large")])
            return await one.consume(9, 20)

    if blocking:
        with GroupConsumer(given) as consumer:
            consumer.assign([row(0, 0, "large")])
            messages = consumer.consume(9, 20)
    else:
        messages = asyncio.run(of_asyncio())
    assert [message.value() for message in messages] == [str(at).encode() * 900_000 for at in range(9)]
