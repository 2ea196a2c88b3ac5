"""What a connection to a broker begins with."""

from __future__ import annotations

from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages.cluster import ApiVersionsRequest
from consumer_coord.wire.messages.group import JoinGroupRequest
from tests.client.support.fake import DROP, FakeBrokers
from tests.client.support.member import new_member
from tests.client.support.virtual import in_virtual_time, until


def _asked(brokers: FakeBrokers) -> set[int]:
    """The connections on which a broker was asked for its versions."""
    return {seen.connection for seen in brokers.seen if isinstance(seen.message, ApiVersionsRequest)}


def _joined(brokers: FakeBrokers) -> list[int]:
    """The connection of each JoinGroup."""
    return [seen.connection for seen in brokers.seen if isinstance(seen.message, JoinGroupRequest)]


@in_virtual_time
async def test_a_broker_is_asked_once_for_its_versions() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    assert _joined(brokers), "the member joined"
    assert len(_asked(brokers)) == 1
    assert not _asked(brokers) & set(_joined(brokers)), "a join has a connection of its own, which asked nothing"
    await one.close()


@in_virtual_time
async def test_a_broker_that_came_back_is_asked_again() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    # It comes back as an older one.
    brokers.newest[api_for(JoinGroupRequest).key] = 5
    brokers.disconnect()
    one.coordinator.enforce_rebalance()
    count = len(_joined(brokers))
    await until(lambda: len(_joined(brokers)) > count)
    assert len(_asked(brokers)) == 2
    last = [seen for seen in brokers.seen if isinstance(seen.message, JoinGroupRequest)][-1]
    assert last.version == 5
    await one.close()


@in_virtual_time
async def test_a_connection_that_ends_at_its_first_request_makes_the_next_one_ask() -> None:
    brokers = FakeBrokers()
    brokers.answer(JoinGroupRequest, DROP)
    one = new_member(brokers)
    await one.join()
    first, *_, last = _joined(brokers)
    assert first not in _asked(brokers)
    assert last in _asked(brokers), "a broker that speaks other versions than it said may close the connection so"
    await one.close()
