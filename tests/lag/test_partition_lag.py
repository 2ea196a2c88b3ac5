"""The lag of a partition from offsets and from its first unread record."""

from __future__ import annotations

import pytest

from consumer_coord.errors import CoordinatorError, NoOffsetError, RetriableError, UnknownTopicError
from consumer_coord.finished_offsets_text import encode
from consumer_coord.lag.first_unread import FirstUnread
from consumer_coord.lag.partition_lag import CLOCKS_APART_MS, PartitionLag, offset_lag, with_first_unread
from consumer_coord.leaders.list_offsets import ListedOffset
from consumer_coord.net.answers import Results
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

T0 = TopicPartition("t", 0)
NOW_MS = 1_000_000
SILENT = RetriableError("the leader does not answer")
NONE = Results[ListedOffset]()


def at(offset: int) -> Results[ListedOffset]:
    return Results({T0: ListedOffset(offset)})


def commit(offset: int | None) -> Results[OffsetAndMetadata | None]:
    return Results({T0: None if offset is None else OffsetAndMetadata(offset)})


@pytest.mark.parametrize(
    ("committed", "starts", "position", "records"),
    [
        (commit(60), NONE, 60, 40),
        (commit(100), NONE, 100, 0),
        (commit(120), NONE, 120, 0),  # the log was truncated
        (commit(None), at(7), 7, 93),
        (commit(None), at(-1), 100, 0),  # no record is as recent
    ],
)
def test_the_lag_counts_offsets_to_the_end(
    committed: Results[OffsetAndMetadata | None], starts: Results[ListedOffset], position: int, records: int
) -> None:
    lag = offset_lag(T0, committed, at(100), starts)
    assert (lag.position, lag.records, lag.unknown) == (position, records, None)


@pytest.mark.parametrize(
    ("committed", "ends", "starts", "why"),
    [
        (Results({}, {T0: SILENT}), at(100), at(0), SILENT),
        (commit(60), Results({}, {T0: SILENT}), NONE, SILENT),
        (commit(None), at(100), Results({}, {T0: SILENT}), SILENT),
        (commit(None), at(100), NONE, NoOffsetError("")),
    ],
)
def test_what_no_broker_told_is_not_zero(
    committed: Results[OffsetAndMetadata | None],
    ends: Results[ListedOffset],
    starts: Results[ListedOffset],
    why: CoordinatorError,
) -> None:
    lag = offset_lag(T0, committed, ends, starts)
    assert lag.records is None
    assert type(lag.unknown) is type(why)
    aged = with_first_unread(T0, lag, Results(), NOW_MS)
    assert (aged.seconds, aged.seconds_unknown) == (None, lag.unknown)


def test_what_process_has_finished_behind_the_commit_is_no_lag() -> None:
    metadata = encode(10, [(11, 14), (20, 25)], 4096)
    assert PartitionLag(OffsetAndMetadata(10, metadata=metadata), end=100).records == 90 - 8
    assert PartitionLag(OffsetAndMetadata(10, metadata="of another program"), end=100).records == 90
    assert PartitionLag(OffsetAndMetadata(11, metadata=metadata), end=100).records == 89, "it belongs to another commit"


def test_a_deleted_topic_is_deleted() -> None:
    assert offset_lag(T0, commit(60), Results({}, {T0: UnknownTopicError("gone")}), NONE).deleted
    assert not offset_lag(T0, commit(60), Results({}, {T0: SILENT}), NONE).deleted


BEHIND = PartitionLag(OffsetAndMetadata(60), None, 100)


@pytest.mark.parametrize(
    ("first", "records", "seconds", "why"),
    [
        (FirstUnread(61, NOW_MS - 2_500), 40, 2.5, None),
        (FirstUnread(), 0, 0.0, None),
        (FirstUnread(61, NOW_MS + CLOCKS_APART_MS), 40, 0.0, None),
        (FirstUnread(61, NOW_MS + CLOCKS_APART_MS + 60_000), 40, None, "offset 61 of t-0, .* 65 s in the future"),
        (FirstUnread(61, None), 40, None, "offset 61 of t-0, .* has no timestamp"),
    ],
)
def test_the_age_of_the_first_unread_record(first: FirstUnread, records: int, seconds: float | None, why: str | None) -> None:
    lag = with_first_unread(T0, BEHIND, Results({T0: first}), NOW_MS)
    assert (lag.records, lag.seconds) == (records, seconds)
    if why is None:
        assert lag.seconds_unknown is None
    else:
        assert lag.seconds_unknown is not None
        with pytest.raises(CoordinatorError, match=why):
            raise lag.seconds_unknown


def test_an_unknown_first_record_leaves_the_offsets() -> None:
    failed: Results[FirstUnread] = Results({}, {T0: SILENT})
    lag = with_first_unread(T0, BEHIND, failed, NOW_MS)
    assert (lag.records, lag.seconds, lag.seconds_unknown) == (40, None, SILENT)
    lag = with_first_unread(T0, BEHIND, failed, None)
    assert (lag.records, lag.seconds, lag.seconds_unknown) == (40, None, None)


def test_a_group_at_the_end_is_not_late() -> None:
    lag = with_first_unread(T0, PartitionLag(OffsetAndMetadata(100), None, 100), Results(), NOW_MS)
    assert (lag.records, lag.seconds) == (0, 0.0)
