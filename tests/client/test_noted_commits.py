"""Asynchronous commits are noted and taken up together: in the order of the calls, also around a topic that was made again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from consumer_coord.consumer.commits import AsynchronousCommits
from consumer_coord.offsets import CommitResult, OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from tests.client.support.virtual import in_virtual_time

ONE = TopicPartition("orders", 0)
FORMER, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


class Sent:
    """What the lane of commits gets: offset and topic id, in its order."""

    def __init__(self) -> None:
        self.topic_id = FORMER
        self.commits: list[tuple[int, uuid.UUID]] = []
        self.config = SimpleNamespace(default_api_timeout_ms=1_000)
        self.application = SimpleNamespace(rouse=lambda: None)
        self.cluster = SimpleNamespace(refresh_later=lambda delay_s: None)

    def start_commit(
        self, wanted: Mapping[TopicPartition, OffsetAndMetadata], *, topic_ids: Mapping[TopicPartition, uuid.UUID], **_: Any
    ) -> asyncio.Future[CommitResult]:
        self.commits.append((wanted[ONE].offset, topic_ids[ONE]))
        return asyncio.get_running_loop().create_future()

    def owned_as(
        self, wanted: Iterable[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, int | None], Mapping[TopicPartition, uuid.UUID]]:
        return dict.fromkeys(wanted, 1), dict.fromkeys(wanted, self.topic_id)


@in_virtual_time
async def test_what_was_noted_of_both_topics_goes_before_a_later_commit() -> None:
    sent = Sent()
    home = SimpleNamespace(later=lambda _s, _call: None, now=lambda: 0.0)
    commits = AsynchronousCommits(cast(Any, sent), cast(Any, home), lambda wanted, result: None, sent.owned_as)
    commits.start({ONE: OffsetAndMetadata(40)})
    commits.start({ONE: OffsetAndMetadata(41)})
    sent.topic_id = NEW
    commits.start({ONE: OffsetAndMetadata(3)})
    # What a synchronous commit does first: its own offset must not be set back by a note that waits.
    commits.take_up()
    assert sent.commits == [(41, FORMER), (3, NEW)]
