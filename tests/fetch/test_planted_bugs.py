"""The random histories find each of these bugs, planted one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from consumer_coord.fetch import broker_fetches
from consumer_coord.fetch.batches import Reach, reach
from consumer_coord.fetch.broker_fetches import BrokerFetches
from consumer_coord.fetch.buffer import Buffer
from consumer_coord.fetch.fetcher import Fetcher
from consumer_coord.fetch.leaders import Leaders
from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.fetch.sessions import FetchSession, SessionPart
from consumer_coord.fetch.shared_fetches import SharedFetches
from tests.fetch.test_under_faults import play_history

Plant = Callable[[pytest.MonkeyPatch], None]
#: Limit for the number of histories until one finds a bug.
HISTORIES = 120


def late_answers_count(patch: pytest.MonkeyPatch) -> None:
    """Use a response to a former assignment of a partition for the current one."""
    patch.setattr(Fetcher, "is_current", lambda self, state: state.partition in self._states)
    take = BrokerFetches._take

    def for_the_present(
        self: BrokerFetches, session: FetchSession, response: Any, named: Any, states: Mapping[Any, FetchState], by: str
    ) -> None:
        owners: dict[Any, Any] = {partition: state.owner for partition, state in states.items()}
        present = {partition: owners[partition]._states.get(partition, state) for partition, state in states.items()}
        for partition, state in present.items():
            if partition in named:
                state.offset = named[partition].offset
        take(self, session, response, named, present, by)

    patch.setattr(BrokerFetches, "_take", for_the_present)


def truncation_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """Leave the epoch of the last record out of requests."""
    build = BrokerFetches._ask

    def forgetful(self: BrokerFetches, *arguments: Any) -> Any:
        ask = build(self, *arguments)
        wanted = {partition: attrs.evolve(one, last_fetched_epoch=-1) for partition, one in ask.wanted.items()}
        return attrs.evolve(ask, wanted=wanted)

    patch.setattr(BrokerFetches, "_ask", forgetful)


def old_brokers_are_not_asked_for_epochs(patch: pytest.MonkeyPatch) -> None:
    """Never send OffsetForLeaderEpoch."""
    patch.setattr(BrokerFetches, "_needs_validation", lambda self, state: False)


def a_position_is_validated_once(patch: pytest.MonkeyPatch) -> None:
    """Validate a position only once, although a later leader may have truncated its log, too."""
    patch.setattr(BrokerFetches, "_needs_validation", lambda self, state: state.leader_epoch >= 0 and state.validated_in < 0)


def a_pause_forgets_the_position(patch: pytest.MonkeyPatch) -> None:
    """Drop buffered records at a pause without fetching them again."""

    def rewind(self: Buffer, state: FetchState) -> None:
        offset, epoch = state.offset, state.leader_epoch
        honest(self, state)
        state.offset, state.leader_epoch = offset, epoch

    honest = Buffer.rewind
    patch.setattr(Buffer, "rewind", rewind)


def changed_offsets_are_not_sent(patch: pytest.MonkeyPatch) -> None:
    """Name only new partitions in incremental requests."""
    build = FetchSession.build

    def stale(self: FetchSession, version: int, wanted: Any) -> SessionPart:
        before = {partition.partition for partition in self._named}
        part = build(self, version, wanted)
        if part.session_epoch <= 0:
            return part
        topics = [
            attrs.evolve(topic, partitions=[row for row in topic.partitions if row.partition not in before])
            for topic in part.topics
        ]
        return attrs.evolve(part, topics=[topic for topic in topics if topic.partitions])

    patch.setattr(FetchSession, "build", stale)


def a_lost_response_keeps_the_session(patch: pytest.MonkeyPatch) -> None:
    """Keep the session after a lost response, although the broker is one session epoch further."""
    patch.setattr(FetchSession, "failed", lambda self: None)
    patch.setattr(FetchSession, "not_found", lambda self: None)


def the_next_offset_is_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """Compute a next offset after a long response that is too high by one."""

    def short(records: Any, offset: int) -> Reach:
        found = reach(records, offset)
        return attrs.evolve(found, next_offset=found.next_offset + (found.end > 400))

    patch.setattr(broker_fetches, "reach", short)


def aborted_transactions_are_not_listed(patch: pytest.MonkeyPatch) -> None:
    """Leave out the aborted transactions, so that the caller cannot recognise their records."""
    deliver = Fetcher.deliver

    def bare(self: Fetcher, state: FetchState, records: Any, size: int, count: int) -> None:
        deliver(self, state, attrs.evolve(records, aborted=()), size, count)

    patch.setattr(Fetcher, "deliver", bare)


def a_recreated_topic_is_read_on(patch: pytest.MonkeyPatch) -> None:
    """Continue with the new id of a recreated topic from the old offset."""

    def adopt(self: Fetcher, states: Any) -> None:
        for state in states:
            state.topic_id = self._leaders.topic_id(state.partition.topic) or state.topic_id

    patch.setattr(Fetcher, "_compare_topic_ids", adopt)


def the_leader_is_never_looked_up_again(patch: pytest.MonkeyPatch) -> None:
    """Learn new leaders only from responses."""
    patch.setattr(Leaders, "metadata_changed", lambda self: None)
    patch.setattr(BrokerFetches, "_find_leader", lambda self, state: self._back_off(state))


def a_partition_is_fetched_for_one_fetcher_only(patch: pytest.MonkeyPatch) -> None:
    """Replace the partition of one fetcher by the same partition of another fetcher."""
    place = Fetcher.place

    def replace(self: Fetcher, state: FetchState) -> None:
        place(self, state)
        partitions = {} if state.broker is None else state.broker.partitions
        for other in tuple(partitions):
            if other is not state and other.partition == state.partition:
                del partitions[other]

    patch.setattr(Fetcher, "place", replace)


def the_first_fetcher_that_closes_ends_the_tasks(patch: pytest.MonkeyPatch) -> None:
    """End the shared tasks although other fetchers remain."""
    leave = SharedFetches.leave

    async def for_all(self: SharedFetches, user: Any) -> None:
        self._users.clear()
        await leave(self, user)

    patch.setattr(SharedFetches, "leave", for_all)


BUGS: list[Plant] = [
    a_partition_is_fetched_for_one_fetcher_only,
    the_first_fetcher_that_closes_ends_the_tasks,
    late_answers_count,
    truncation_is_not_noticed,
    old_brokers_are_not_asked_for_epochs,
    a_position_is_validated_once,
    a_pause_forgets_the_position,
    changed_offsets_are_not_sent,
    a_lost_response_keeps_the_session,
    the_next_offset_is_one_too_far,
    aborted_transactions_are_not_listed,
    a_recreated_topic_is_read_on,
    the_leader_is_never_looked_up_again,
]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_history_finds(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(HISTORIES):
        try:
            play_history(seed, monkeypatch)
        except Exception:  # noqa: BLE001 - any exception shows the bug
            return
    pytest.fail(f"{HISTORIES} histories did not find it: {plant.__doc__}")
