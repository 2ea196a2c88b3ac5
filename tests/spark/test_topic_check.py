"""The topics of promised records: a topic is gone when two responses agree, and an outdated broker loses nothing."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, cast

import attrs
import pytest

from consumer_coord.errors import AuthorizationError
from consumer_coord.net.metadata import NO_TOPIC_ID, Metadata, Topic
from consumer_coord.net.topic_ids import TopicIds
from consumer_coord.retry import Deadline
from consumer_coord.simulation.loop import run
from consumer_coord.spark import topic_check
from consumer_coord.spark.checkpoint import Offsets, Span, TopicSpans
from consumer_coord.spark.ledger import Holding, Key, Ledger, State
from consumer_coord.spark.topic_check import TopicCheck
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes

OLD, NEW = uuid.UUID(int=7), uuid.UUID(int=8)
P0 = TopicPartition("orders", 0)


def metadata(version: int, topic_id: uuid.UUID | None) -> Metadata:
    topics = {} if topic_id is None else {"orders": Topic("orders", topic_id, False, (1,), (1,), ((1,),))}
    return Metadata(version=version, topics=topics)


@attrs.define
class Brokers:
    """The brokers answer one after the other with these ids; ``metadata`` is what the query knows before it asks."""

    answers: Sequence[uuid.UUID | None]
    metadata: Metadata = attrs.field(factory=lambda: metadata(1, OLD))
    asked: int = 0
    losses: list[str] = attrs.field(factory=list)
    #: The topics that a request by name does not show, because they may not be described.
    hidden: bool = False
    #: The first answer in which no broker calls the topic unknown.
    unclear_until: int = 1

    async def refresh(self, deadline: Deadline) -> Metadata:
        self.asked += 1
        self.metadata = metadata(100 + self.asked, self.answers[min(self.asked, len(self.answers)) - 1])
        if self.asked < self.unclear_until:
            self.metadata = attrs.evolve(self.metadata, unknown_since={"orders": 0.0})
        return self.metadata

    async def by_name(self, cluster: object, topics: Iterable[str], timeout_ms: float) -> TopicIds:
        if self.hidden:
            raise AuthorizationError("DESCRIBE is denied", code=codes.TOPIC_AUTHORIZATION_FAILED)
        return {}

    def check(self) -> TopicCheck:
        return TopicCheck(cast(Any, self), self.losses.append)


def on_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine as a test in which pauses take no time."""

    @functools.wraps(test)
    def runs(**fixtures: Any) -> None:
        run(test(**fixtures))

    return runs


def held(topic_id: uuid.UUID = OLD) -> Ledger:
    return Ledger("billing").accept(P0, Holding(topic_id, 1, 40, 40))


async def settle(check: TopicCheck, ledger: Ledger, times: int = 1, reported: TopicIds | None = None) -> Ledger:
    for _ in range(times):
        ledger = await check.settle(ledger, reported or {}, 1_000)
        await asyncio.sleep(topic_check.AGAIN_S)
    return ledger


@pytest.fixture(autouse=True)
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(cluster: Any, topics: Iterable[str], timeout_ms: float) -> TopicIds:
        return await cast(Brokers, cluster).by_name(cluster, topics, timeout_ms)

    monkeypatch.setattr(topic_check, "topic_ids", ask)


@on_virtual_time
async def test_without_a_reason_nobody_is_asked() -> None:
    brokers = Brokers([OLD])
    assert await settle(brokers.check(), held(), 5, {"orders": OLD}) == held()
    assert brokers.asked == 0


@pytest.mark.parametrize("now", [NEW, None], ids=["another id", "deleted"])
@on_virtual_time
async def test_a_held_topic_is_gone_when_two_responses_agree(now: uuid.UUID | None) -> None:
    for known, reported in ((metadata(1, now), {}), (metadata(1, OLD), {"orders": now} if now else {"other": OLD})):
        brokers = Brokers([now], known)
        check = brokers.check()
        ledger = await settle(check, held(), reported=reported)
        assert (ledger.held, brokers.losses, set(check.doubted)) == (held().held, [], {"orders"})
        ledger = await settle(check, ledger)
        assert ledger.entries[Key(P0, OLD)].state is State.GONE
        assert "0 from 40" in brokers.losses[0]
        assert brokers.asked == 2


@on_virtual_time
async def test_a_hint_is_followed_once() -> None:
    brokers = Brokers([OLD])
    check = brokers.check()
    check.hint()
    await settle(check, held(), 5)
    assert brokers.asked == 1


@on_virtual_time
async def test_a_broker_that_lags_behind_loses_nothing() -> None:
    brokers = Brokers([NEW, OLD], metadata(1, NEW))
    assert await settle(brokers.check(), held(), 5) == held(), "the responses do not agree"
    assert brokers.losses == []


@on_virtual_time
async def test_brokers_that_know_no_ids_say_nothing() -> None:
    brokers = Brokers([NO_TOPIC_ID], metadata(1, NO_TOPIC_ID))
    await settle(brokers.check(), held(), 3)
    await settle(Brokers([NEW]).check(), held(NO_TOPIC_ID), 3)
    assert brokers.losses == []


@on_virtual_time
async def test_a_released_partition_has_moved_when_its_topic_still_exists_later() -> None:
    """A broker that lags behind may still report a topic whose deletion made the group revoke the partition."""
    brokers = Brokers([OLD])
    check = brokers.check()
    check.released()
    ledger = await settle(check, held().release([P0]))
    assert ledger.open
    await asyncio.sleep(topic_check.SETTLED_S)
    ledger = await settle(check, ledger)
    assert ledger.entries[Key(P0, OLD)].state is State.MOVED


@on_virtual_time
async def test_a_released_partition_of_a_deleted_topic_is_a_loss() -> None:
    brokers = Brokers([OLD, None])
    check = brokers.check()
    check.released()
    ledger = await settle(check, held().release([P0]), 20)
    assert ledger.entries[Key(P0, OLD)].state is State.GONE
    assert len(brokers.losses) == 1


@on_virtual_time
async def test_an_open_entry_is_undecided_until_its_topic_is_gone_or_seen() -> None:
    """Without its name in the next batch, nobody would report the loss if the process ended after one response."""
    brokers = Brokers([None])
    check = brokers.check()
    ledger = held().release([P0])
    assert check.undecided(ledger) == ledger.open, "nobody was asked"
    assert check.undecided(await settle(check, ledger)) == ledger.open, "one response is not enough"
    assert not check.undecided(await settle(check, ledger))
    assert len(brokers.losses) == 1
    check.released()
    assert check.undecided(ledger) == ledger.open, "the answer is older than the release"


@on_virtual_time
async def test_a_moved_entry_that_the_checkpoint_names_is_a_loss_when_its_topic_goes() -> None:
    """Its owner may have been killed, so that nobody else reports the loss."""
    restarted = Offsets("billing", "cluster", {"orders": TopicSpans(OLD, {0: Span(0, 40, 1)})})
    moved = Ledger("billing").finish(restarted, {"orders"}).seen([Key(P0, OLD)])
    for ledger, losses in ((moved, 1), (moved.finish(Offsets("billing", "cluster"), {"orders"}), 0)):
        brokers = Brokers([None], metadata(1, None))
        check = brokers.check()
        assert ledger.entries[Key(P0, OLD)].state is State.MOVED
        ledger = await settle(check, ledger)
        assert check.undecided(ledger) == (ledger.live if losses else ledger.open)
        await settle(check, ledger, 2)
        assert len(brokers.losses) == losses


@on_virtual_time
async def test_a_topic_that_a_broker_called_unknown_is_neither_gone_nor_seen() -> None:
    brokers = Brokers([OLD], unclear_until=3)
    check = brokers.check()
    ledger = held().release([P0])
    assert await settle(check, ledger) == ledger
    assert check.undecided(ledger) == ledger.open
    ledger = await settle(check, ledger, 3)
    assert ledger.entries[Key(P0, OLD)].state is State.MOVED
    assert brokers.losses == []


@on_virtual_time
async def test_a_topic_that_may_not_be_described_any_more_is_not_gone() -> None:
    """A response with all topics omits it."""
    brokers = Brokers([None], metadata(1, None), hidden=True)
    with pytest.raises(AuthorizationError):
        await settle(brokers.check(), held(), 5)
    assert brokers.losses == []
