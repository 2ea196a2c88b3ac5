"""Metadata that callers ask for at the same time: one request for all, each with its own deadline, and no old answer."""

from __future__ import annotations

import asyncio

import pytest

from consumer_coord.errors import RetriableError
from consumer_coord.retry import Deadline
from consumer_coord.wire.messages.cluster import MetadataRequest
from tests.support.group.fake import SILENCE, FakeBrokers
from tests.support.group.member import new_cluster
from tests.support.group.virtual import in_virtual_time, now_ms, pause


@in_virtual_time
async def test_a_caller_waits_no_longer_than_its_deadline_for_the_request_of_another() -> None:
    brokers = FakeBrokers({"t": 1})
    client = new_cluster(brokers)
    await client.refresh(Deadline.after(1_000))
    brokers.always(MetadataRequest, lambda _: SILENCE)
    patient = asyncio.ensure_future(client.refresh(Deadline.after(20_000)))
    await pause(1)
    began = now_ms()
    with pytest.raises(RetriableError, match="another request for metadata"):
        await client.refresh(Deadline.after(500))
    assert now_ms() - began <= 510
    with pytest.raises(RetriableError):
        await patient
    await client.close()


@in_virtual_time
async def test_what_is_left_of_a_failed_refresh_is_no_answer_for_those_who_waited() -> None:
    brokers = FakeBrokers({"t": 1})
    client = new_cluster(brokers)
    await client.refresh(Deadline.after(1_000))
    before = client.metadata
    brokers.always(MetadataRequest, lambda _: SILENCE)
    calls = [asyncio.ensure_future(client.refresh(Deadline.after(limit_ms))) for limit_ms in (1_000, 1_500, 20_000)]
    # The first two fail; the request that the third shared with the second brought nothing, so it makes its own.
    await asyncio.wait(calls[:2])
    brokers.always(MetadataRequest, brokers.usual)
    brokers.topics["u"] = 1
    assert all(isinstance(call.exception(), RetriableError) for call in calls[:2])
    assert (await calls[2]).version > before.version
    await client.close()


@in_virtual_time
async def test_callers_that_ask_during_a_request_share_the_next_one() -> None:
    brokers = FakeBrokers({"t": 1})
    client = new_cluster(brokers)
    await client.refresh(Deadline.after(1_000))
    asked = len(brokers.all(MetadataRequest))
    await asyncio.gather(*(client.refresh(Deadline.after(1_000)) for _ in range(5)))
    # One for the first caller, and one for all that called after it was sent.
    assert len(brokers.all(MetadataRequest)) == asked + 2
    await client.close()
