"""Look-ups of a query from a leader that answers wrongly: its partitions stay unknown, and nothing is planned from them."""

from __future__ import annotations

import pytest

from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST
from consumer_coord.retry import Deadline
from consumer_coord.spark.log_ends import REQUEST_TIMEOUT_MS, EndOffsets
from consumer_coord.spark.start_lookups import offsets_at
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.messages.offsets import ListOffsetsRequest
from tests.support.group.fake import FakeBrokers
from tests.support.group.ill_leaders import ILL, at_node
from tests.support.group.member import new_cluster
from tests.support.group.virtual import in_virtual_time

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ill = pytest.mark.parametrize("kind", ILL)
isolation = pytest.mark.parametrize("read_committed", [False, True])


def one_ill_leader(kind: str) -> FakeBrokers:
    """Return two brokers, each the leader of a partition of t; that of t-1 answers ListOffsets wrongly."""
    brokers = FakeBrokers({"t": 2}, brokers=2)
    brokers.always(ListOffsetsRequest, at_node(brokers, 1, ILL[kind](brokers)))
    return brokers


@ill
@isolation
@in_virtual_time
async def test_the_ends_of_the_other_partitions_are_known_and_the_reason_is_kept(kind: str, read_committed: bool) -> None:
    cluster = new_cluster(one_ill_leader(kind))
    ends = EndOffsets(cluster, read_committed=read_committed)
    try:
        assert await ends.look({T0: 0, T1: 0}, ["t"], now(), 2 * REQUEST_TIMEOUT_MS / 1000)
        assert ends.view.ends == {T0: 100}
        assert ends.view.problem is not None
    finally:
        ends.forget_look_up()
        await cluster.close()


@ill
@isolation
@pytest.mark.parametrize("timestamp", [EARLIEST, LATEST])
@in_virtual_time
async def test_a_start_is_not_decided_from_a_wrong_answer(kind: str, read_committed: bool, timestamp: int) -> None:
    cluster = new_cluster(one_ill_leader(kind))
    try:
        wanted = {T0: timestamp, T1: timestamp}
        with pytest.raises(CoordinatorError, match="t-1"):
            await offsets_at(cluster, wanted, Deadline.after(REQUEST_TIMEOUT_MS), read_committed=read_committed)
    finally:
        await cluster.close()
