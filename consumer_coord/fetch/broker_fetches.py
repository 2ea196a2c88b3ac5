"""The Fetch requests to one broker, and the effects of their responses on each partition."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import (
    CoordinatorError,
    FatalError,
    MalformedMessageError,
    ResponseTooLargeError,
    RetriableError,
    UnsupportedVersionError,
)
from consumer_coord.fetch import read_ahead
from consumer_coord.fetch.batches import reach
from consumer_coord.fetch.error_steps import EPOCH_END, PARTITION, RESPONSE, Step, refusal, step_for
from consumer_coord.fetch.lanes import Ask, Lane
from consumer_coord.fetch.leaders import Leaders
from consumer_coord.fetch.partition_state import FetchState, Owner
from consumer_coord.fetch.sessions import FetchSession, SessionPart, Wanted
from consumer_coord.fetch.values import FetchConfig, FetchedRecords, StopReason
from consumer_coord.leaders.leader_epochs import epochs_request, match_epochs
from consumer_coord.log_text import get_logger
from consumer_coord.net.answers import Matched
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.net.metadata import Broker
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.codec import decode_response
from consumer_coord.wire.messages.log import (
    EpochEndOffset,
    FetchNodeEndpoint,
    FetchRequest,
    FetchResponse,
    OffsetForLeaderEpochResponse,
    PartitionData,
)

logger: Final = get_logger(__name__)

_READ_COMMITTED = 1
#: First version of Fetch whose response reports truncation, and first version whose request needs topic ids.
_TRUNCATION_FROM = 12
_TOPIC_IDS_FROM = 13
#: Time limit of the request that ends a fetch session, in milliseconds. The fetcher's close may exceed its own time limit by
#: this time.
_FAREWELL_MS = 100
#: Maximum wait of a brief Fetch, in milliseconds (see ``lanes.py``), and the maximum number of brief Fetches.
_BRIEF_WAIT_MS = 100
_MOST_BRIEF = 2


class BrokerFetches:
    """The Fetches of any number of fetchers from one broker.

    At most one Fetch that does not wait at the broker is in flight. It contains every partition that may have records and, at
    no cost, those that have none. Fetches that wait have their own lanes, so they delay no partition that has records.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: FetchConfig,
        leaders: Leaders,
        broker_id: int,
        start: Callable[[BrokerFetches, Lane], object],
    ) -> None:
        """Fetch nothing yet. ``start`` makes a task of :meth:`run`."""
        self.broker_id: int = broker_id
        #: The partitions to fetch, in the order of the next request.
        self.partitions: dict[FetchState, None] = {}
        self.lanes: list[Lane] = []
        #: The loop time until which the broker throttles this client, in seconds.
        self.throttled_until = 0.0
        self._cluster = cluster
        self._config = config
        self._leaders = leaders
        self._start = start
        #: The version of the last response; None before the first response.
        self._version: int | None = None
        self._failures = 0
        self._not_before = 0.0
        #: Whether some partitions were not due at the last look, because the records of their fetcher wait to be taken.
        self._full = False

    @property
    def by_id(self) -> bool:
        """True if the last request named topics by id; also True before the first request."""
        return self._version is None or self._version >= _TOPIC_IDS_FROM

    def check(self) -> None:
        """Send a Fetch if a partition is due that no Fetch in flight reads; called after every change."""
        if any(not (lane.free or lane.waits) for lane in self.lanes):
            # This lane checks again at the end of its Fetch, which does not wait.
            return
        free = next((lane for lane in self.lanes if lane.free), None)
        if free is not None:
            free.wake()
        elif self._next(None) != (None, None):
            # There is something to fetch now, or after a backoff.
            lane = Lane()
            self.lanes.append(lane)
            self._start(self, lane)

    def freed(self) -> None:
        """Send a Fetch if a partition had to wait until its fetcher's caller took records."""
        if self._full:
            self.check()

    async def run(self, lane: Lane) -> None:
        """Send the Fetches of one lane until cancelled."""
        lane.free = False
        while True:
            ask, look_at = self._next(lane)
            if ask is None:
                await lane.rest(look_at)
                continue
            broker = self._leaders.broker(self.broker_id)
            if broker is None:
                # The broker is no longer in the metadata.
                for state in ask.states.values():
                    self._find_leader(state)
                continue
            if self._version is not None and self._version < _TRUNCATION_FROM:
                unsure = {partition: state for partition, state in ask.states.items() if self._needs_validation(state)}
                if unsure:
                    await self._validate(unsure)
                    continue
            await self._fetch(lane, broker, ask)

    async def end_sessions(self) -> None:
        """End the sessions at the broker, if a connection is open, to free the broker's memory (best effort)."""
        for lane in self.lanes:
            await self._end(lane.session)

    async def _end(self, session: FetchSession) -> None:
        part, broker = session.final, self._leaders.broker(self.broker_id)
        connection = None if broker is None else self._cluster.open_connection(broker)
        if part is None or connection is None:
            return
        farewell = Versioned(FetchRequest, lambda version: _request(self._config, part, 0, 0), newest=self._newest(()))
        try:
            async with asyncio.timeout(_FAREWELL_MS / 1000):
                await connection.request(farewell, timeout_ms=self._cluster.config.request_timeout_ms)
        except (CoordinatorError, TimeoutError) as error:
            logger.debug("the fetch session with broker %d was not ended: %s", self.broker_id, error)

    # -- the next request ---------------------------------------------------------------------------------------------

    def _next(self, lane: Lane | None) -> tuple[Ask | None, float | None]:
        """Return the next Fetch of a lane (None: a new one); or None, and the time of the next check (None: after a change)."""
        moment = now()
        if self._not_before > moment:
            return None, self._not_before
        others = [one for one in self.lanes if one is not lane and not one.free]
        waiting = [one.asked for one in others if one.asked is not None and one.asked.waits]
        if len(waiting) < len(others):
            # The other lane checks again at the end of its Fetch.
            return None, None
        due, look_at = self._due(moment)
        alone = next((state for state in due if state.alone), None)
        if alone is not None:
            return self._ask([alone], 0), None
        left = [state for state in due if not any(ask.covers(state) for ask in waiting)] if waiting else due
        hot = [state for state in left if not state.at_end]
        if hot:
            return self._ask([*hot, *(state for state in left if state.at_end)], 0), None
        if not left:
            return None, look_at
        wait_ms = self._config.fetch_wait_max_ms
        if look_at is not None:
            wait_ms = min(wait_ms, math.ceil((look_at - moment) * 1000))
        return self._ask_idle(lane, due, wait_ms), look_at

    def _ask_idle(self, lane: Lane | None, due: Sequence[FetchState], wait_ms: int) -> Ask | None:
        """Return a Fetch of all idle partitions that no long Fetch has; None if there are enough brief Fetches."""
        asked = [None if one is lane else one.asked for one in self.lanes]
        lasting = [ask for ask in asked if ask is not None and not ask.brief]
        idle = [state for state in due if not any(ask.covers(state) for ask in lasting)] if lasting else due
        # A long Fetch on an earlier lane takes over a partition, unless it has the same partition for another fetcher.
        earlier = asked if lane is None else asked[: self.lanes.index(lane)]
        brief = any(state.partition not in ask.states for ask in earlier if ask in lasting for state in idle)
        if not brief:
            return self._ask(idle, wait_ms)
        if sum(ask is not None and ask.brief for ask in asked) >= _MOST_BRIEF:
            return None
        return self._ask(idle, min(wait_ms, _BRIEF_WAIT_MS), brief=True)

    def _due(self, moment: float) -> tuple[list[FetchState], float | None]:
        """Return the partitions to fetch now, and the time when the next partition is due after its backoff (None: no such)."""
        due: list[FetchState] = []
        look_at: float | None = None
        self._full = False
        held: dict[Owner, int] = {}
        for state in tuple(self.partitions):
            held[state.owner] = held.get(state.owner, 0) + state.held
            if state.paused or state.stopped:
                continue
            if state.preferred is not None and state.preferred[1] <= moment:
                state.preferred = None
                state.owner.place(state)
                if state.broker is not self:
                    continue
            if state.not_before > moment:
                look_at = state.not_before if look_at is None else min(look_at, state.not_before)
            elif read_ahead.has_enough(self._config, state):
                self._full = True
                state.owner.hold_back()
            else:
                due.append(state)
        out = dict.fromkeys(
            owner for owner, size in held.items() if read_ahead.is_full(size, owner.share_bytes()) or not owner.in_use(moment)
        )
        if out:
            self._full = True
            for owner in out:
                owner.hold_back()
            due = [state for state in due if state.owner not in out]
        return due, look_at

    def _ask(self, states: Sequence[FetchState], max_wait_ms: int, brief: bool = False) -> Ask:
        """Return a Fetch of these partitions; of a partition that several fetchers read, the first one."""
        chosen: dict[TopicPartition, FetchState] = {}
        for state in states:
            chosen.setdefault(state.partition, state)
        sizes = read_ahead.partition_bytes(self._config, chosen.values())
        wanted = {state.partition: self._wanted(state, size) for state, size in zip(chosen.values(), sizes, strict=True)}
        # What a fetcher holds does not count here, so that a caller that does not take shrinks no other caller's responses.
        share = min(owner.share_bytes() for owner in {state.owner for state in chosen.values()})
        max_bytes = read_ahead.response_bytes(self._config, share, self._cluster.config.receive_message_max_bytes)
        return Ask(chosen, wanted, max_bytes, max_wait_ms, brief, len(chosen) < len(states))

    def _wanted(self, state: FetchState, max_bytes: int) -> Wanted:
        """Return the position from which to fetch a partition: the last object if the position is the same."""
        last, epoch = state.wanted, self._leaders.of(state.partition).epoch
        if (
            last is None
            or last.offset != state.offset
            or last.last_fetched_epoch != state.leader_epoch
            or last.current_leader_epoch != epoch
            or last.topic_id is not state.topic_id
            or last.max_bytes != max_bytes
        ):
            last = state.wanted = Wanted(state.topic_id, state.offset, epoch, state.leader_epoch, max_bytes)
        return last

    @staticmethod
    def _newest(states: Iterable[FetchState]) -> int | None:
        """Return the newest Fetch version to use: None for no limit, or a version without topic ids if an id is unknown."""
        return None if all(state.topic_id.int for state in states) else _TOPIC_IDS_FROM - 1

    def _awaits(self, state: FetchState, offset: int) -> bool:
        """Return whether a response to a Fetch from ``offset`` still applies; the caller may have sought or paused since."""
        return state.owner.is_current(state) and state.offset == offset

    def _needs_validation(self, state: FetchState) -> bool:
        epoch = self._leaders.of(state.partition).epoch
        return state.leader_epoch >= 0 and epoch >= 0 and state.validated_in != epoch

    async def _fetch(self, lane: Lane, broker: Broker, ask: Ask) -> None:
        """Send a Fetch and those that follow it without a pause, and apply their responses."""
        sent = _Exchange(self, lane, broker, ask)
        try:
            timeout_ms = self._begin(lane, ask)
            _, wrong = await self._cluster.request(broker, sent.question(), timeout_ms=timeout_ms, waits=True)
            if wrong is not None:
                raise wrong
        except (RetriableError, MalformedMessageError) as error:
            lane.session.failed()
            if isinstance(error.__cause__, ResponseTooLargeError):
                self._too_large({one: sent.ask.states[one] for one in sent.named}, error.__cause__)
            else:
                self._failed(broker, sent.ask.states, error)
        except FatalError as error:
            # The application sees this error, and may remove its cause. Until then, a new lane asks again, with back-off.
            self._failed(broker, sent.ask.states, error)
            raise
        finally:
            lane.asked = None

    def _next_at_once(self, lane: Lane, broker: Broker) -> Ask | None:
        """Return the Fetch that may follow a response on its connection; None if there is none, or other work first."""
        if self._version is None or self._version < _TRUNCATION_FROM or self._leaders.broker(self.broker_id) is not broker:
            return None
        return self._next(lane)[0]

    def _apply(self, lane: Lane, broker: Broker, sent: _Exchange, response: FetchResponse) -> Exception | None:
        """Apply a response; return the error that it caused."""
        states, named, wrong = sent.ask.states, sent.named, None
        lane.asked = None
        try:
            if named:
                self._take(lane.session, response, named, states, broker.address)
        except Exception as error:  # noqa: BLE001 - raised in the lane's task
            wrong = error
        moment = now()
        for owner in {states[partition].owner: None for partition in named}:
            owner.answered(self, (moment - sent.at) * 1000)
        if wrong is None:
            self._pace(broker, lane, response, moment - sent.at < sent.ask.max_wait_ms / 2000)
        return wrong

    def _begin(self, lane: Lane, ask: Ask) -> float:
        """Note the Fetch that a lane is about to send; return its time limit in milliseconds."""
        lane.asked = ask
        if ask.waits and ask.partial:
            self.check()
        return self._cluster.config.request_timeout_ms + ask.max_wait_ms

    def _build(self, version: int, session: FetchSession, sent: _Exchange) -> FetchRequest:
        """Return the request in a version, without the partitions that this version must not fetch yet."""
        self._version, ask, named = version, sent.ask, sent.named
        if version < _TRUNCATION_FROM:
            # A broker of this version does not report truncation, so first look up the end offset of the position's leader
            # epoch.
            for partition in [one for one, state in ask.states.items() if self._needs_validation(state)]:
                del named[partition]
            if not named:
                return _request(self._config, SessionPart(0, -1, (), ()), 0, 0)
        if any(state.unanswered for state in ask.states.values()):
            session.failed()
        return _request(self._config, session.build(version, named), ask.max_bytes, ask.max_wait_ms)

    def _pace(self, broker: Broker, lane: Lane, response: FetchResponse, early: bool) -> None:
        """Set the earliest time of the next Fetch. ``early``: the broker did not wait for records, although it was to."""
        if (traffic := self._cluster.traffic(broker)) is not None:
            traffic.throttle(response.throttle_time_ms)
        if response.throttle_time_ms > 0:
            # The broker does not read from the connection during the throttle time (KIP-219).
            self._not_before = self.throttled_until = now() + response.throttle_time_ms / 1000
        elif not early or response.error_code != codes.NONE or any(topic.partitions for topic in response.responses):
            lane.hollow = 0
        else:
            # The broker had something to report, and the row was lost. A Fetch that names all partitions shows which one.
            lane.session.failed()
            self._not_before = now() + self._cluster.backoff.ms(lane.hollow) / 1000
            lane.hollow += 1

    def _failed(self, broker: Broker, states: Mapping[TopicPartition, FetchState], error: CoordinatorError) -> None:
        """Wait for the backoff, then fetch from the current leaders."""
        cluster = self._cluster
        logger.debug("Fetch from broker %s failed: %s", broker.address, error)
        moment, retry_at = now(), cluster.retry_at(broker)
        if retry_at > moment:
            # The broker is down. A pause of our own would only delay the first Fetch after its return.
            self._not_before = retry_at
        elif self._not_before <= moment:
            # If the pause had not passed yet, a Fetch on another lane had failed at the same time, and counted already.
            self._not_before = moment + cluster.backoff.ms(self._failures) / 1000
            self._failures += 1
        cluster.refresh_soon()
        for state in states.values():
            state.obstacle = str(error)
            if state.preferred is not None:
                state.preferred = None
                state.owner.place(state)

    def _too_large(self, states: Mapping[TopicPartition, FetchState], error: ResponseTooLargeError) -> None:
        """Fetch each partition alone, to find the one with a batch of this size; stop this one."""
        if len(states) > 1:
            for state in states.values():
                state.alone = True
            return
        for partition, state in states.items():
            if state.owner.is_current(state):
                unreadable = ResponseTooLargeError(
                    f"{partition}: the response to Fetch at offset {state.offset} has {error.size} bytes, but"
                    f" receive.message.max.bytes is {error.limit}; raise this setting",
                    size=error.size,
                    limit=error.limit,
                )
                state.owner.stop(state, StopReason.UNREADABLE, unreadable)

    # -- the response -------------------------------------------------------------------------------------------------

    def _take(
        self,
        session: FetchSession,
        response: FetchResponse,
        named: Mapping[TopicPartition, Wanted],
        states: Mapping[TopicPartition, FetchState],
        address: str,
    ) -> None:
        step = step_for(RESPONSE, response.error_code)
        if step is Step.NEW_SESSION:
            logger.debug("broker %d: %s", self.broker_id, codes.error_name(response.error_code))
            if response.error_code == codes.FETCH_SESSION_ID_NOT_FOUND:
                session.not_found()
            else:
                session.failed()
            # The first retry has no backoff.
            self._not_before = now() + (self._cluster.backoff.ms(self._failures - 1) / 1000 if self._failures else 0)
            self._failures += 1
            return
        if step is not Step.DELIVER:
            raise RetriableError(
                f"broker {self.broker_id} answered Fetch with {codes.error_name(response.error_code)}",
                code=response.error_code,
            )
        matched = session.answered(response, self._cluster.answers, address)
        self._failures = 0
        rows = matched.rows
        if rows or not response.throttle_time_ms:
            self._note_answers(session, matched, named, states)
        # In the order of the request, because each takes a random time.
        for unsaid in [one for partition, one in states.items() if partition in matched.unanswered]:
            # Only a Fetch that names all partitions shows whether the broker has a row for this one.
            unsaid.unanswered = True
            self._back_off(unsaid)
        endpoints = {one.node_id: one for one in response.node_endpoints}
        # Records are slices of the response. So that a slow caller keeps only its own records in memory, and not the responses
        # to all fetchers, copy the records of a response to several fetchers.
        copies = len({states[one].owner for one, row in rows.items() if row.records and one in states}) > 1
        for partition, row in rows.items():
            state, wanted = states.get(partition), named.get(partition)
            if state is not None and wanted is not None and self._awaits(state, wanted.offset):
                if copies and row.records:
                    row = attrs.evolve(row, records=bytes(row.records))
                self._take_row(state, row, endpoints, address)
        if not response.throttle_time_ms and not any(row.records for row in rows.values()):
            self._note_ends(rows, named, states)

    def _note_answers(
        self,
        session: FetchSession,
        matched: Matched[TopicPartition, PartitionData],
        named: Mapping[TopicPartition, Wanted],
        states: Mapping[TopicPartition, FetchState],
    ) -> None:
        """Record which partitions the response is about; a session's response omits those without news."""
        moment, rows, unanswered = now(), matched.rows, matched.unanswered
        for partition, state in states.items():
            state.alone = False
            row = rows.get(partition)
            if row is None:
                answered = partition in named and partition not in unanswered
                if answered and state.watermarks is None and partition in session.told:
                    begin, high_watermark, state.last_stable_offset = session.told[partition]
                    state.watermarks = begin, high_watermark
            elif answered := row.error_code == codes.NONE:
                # Also if the records are of no use, because the caller has paused or sought since.
                state.watermarks = row.log_start_offset, row.high_watermark
                state.last_stable_offset = row.last_stable_offset
            if answered:
                state.answered_at, state.obstacle = moment, ""

    def _note_ends(
        self,
        rows: Mapping[TopicPartition, PartitionData],
        named: Mapping[TopicPartition, Wanted],
        states: Mapping[TopicPartition, FetchState],
    ) -> None:
        """Record which partitions had no records in a response, so that the next Fetch may wait at the broker for new ones.

        An incremental response omits a partition that was assigned again if the broker's fetch session already has its offset,
        so the end of the log remains unknown. And a broker may have no records although the log's end is further away: records
        in remote storage arrive later. Without this method, requests would follow each other without a pause.
        """
        for partition, wanted in named.items():
            state, row = states[partition], rows.get(partition)
            if state.offset == wanted.offset and (row is None or row.error_code == codes.NONE):
                state.end_offset = state.offset
                if row is None:
                    state.owner.reach_end(state)

    def _take_row(
        self, state: FetchState, row: PartitionData, endpoints: Mapping[int, FetchNodeEndpoint], address: str
    ) -> None:
        owner = state.owner
        state.unanswered = False
        step = step_for(PARTITION, row.error_code)
        if step is not Step.DELIVER:
            leader = row.current_leader
            if self._leaders.learn(state.partition, leader.leader_id, leader.leader_epoch, endpoints):
                # The response names the new leader (KIP-951), so the metadata is not needed.
                state.preferred = None
                self._cluster.refresh_soon()
                owner.place(state)
                return
            state.obstacle = f"broker {self.broker_id} answers Fetch with {codes.error_name(row.error_code)}"
            self._refused(state, step, row.error_code)
            return
        state.end_offset = row.last_stable_offset if self._config.read_committed else row.high_watermark
        if row.diverging_epoch.epoch >= 0 or row.diverging_epoch.end_offset >= 0:
            state.failures = 0
            self._truncated(state, row.diverging_epoch.epoch, row.diverging_epoch.end_offset)
        elif row.preferred_read_replica >= 0 and not row.records:
            expires = now() + self._cluster.config.metadata_max_age_ms / 1000
            state.preferred = row.preferred_read_replica, expires
            owner.place(state)
            if state.broker is self:
                # The metadata does not contain the preferred replica, and the leader would name this replica again at once.
                self._back_off(state)
        elif row.records:
            self._take_records(state, row, row.records, address)
        else:
            state.failures = 0
        if state.at_end and owner.is_current(state) and state.preferred is None:
            owner.reach_end(state)

    def _take_records(self, state: FetchState, row: PartitionData, records: bytes | memoryview, address: str) -> None:
        try:
            found = reach(records, state.offset)
        except MalformedMessageError as error:
            unreadable = MalformedMessageError(f"{state.partition}: {error}")
            unreadable.__cause__ = error
            state.owner.stop(state, StopReason.UNREADABLE, unreadable)
            return
        senseless = ""
        if found.begin == found.end:
            senseless = f"only batches before offset {state.offset}"
        elif any(one.producer_id < 0 or one.first_offset < 0 for one in row.aborted_transactions or ()):
            # Without them, records of an aborted transaction would be delivered.
            senseless = "an aborted transaction without producer id or first offset"
        if senseless:
            self._cluster.answers.senseless("Fetch", address, state.partition, senseless)
            # The broker's session may have another offset than this one, and would send the same batches again and again.
            # So the next Fetch names every partition.
            state.unanswered = True
            self._back_off(state)
            return
        state.failures, whole = 0, (0, len(records))
        # Batches before the offset may have the marker that ends an aborted transaction.
        begin = 0 if row.aborted_transactions else found.begin
        state.full = read_ahead.fullness(state, len(records), found.end)
        aborted = sorted((one.first_offset, one.producer_id) for one in row.aborted_transactions or ())
        fetched = FetchedRecords(
            partition=state.partition,
            serial=state.serial,
            offset=state.offset,
            next_offset=found.next_offset,
            leader_epoch=found.leader_epoch,
            # Drop an incomplete last batch, which Kafka sends when a response is full.
            records=records if (begin, found.end) == whole else memoryview(records)[begin : found.end],
            aborted=tuple((producer_id, first_offset) for first_offset, producer_id in aborted),
            high_watermark=row.high_watermark,
            last_stable_offset=row.last_stable_offset,
            log_start_offset=row.log_start_offset,
        )
        # Count all bytes of the row, because the response stays in memory until these records are released.
        state.owner.deliver(state, fetched, len(records), found.records)

    def _refused(self, state: FetchState, step: Step, code: int) -> None:
        owner = state.owner
        if step is Step.OUT_OF_RANGE:
            if state.preferred is not None:
                # The follower may lag behind, so only the leader knows where the log begins and ends.
                state.preferred = None
                owner.place(state)
            elif state.leader_epoch >= 0:
                # The leader also answers so if it does not know the epoch, which proves no loss. Without the epoch, the
                # response is about the offset.
                logger.info("%s: offset %d is out of range; fetching without leader epoch %d", *_position(state))
                state.leader_epoch = -1
            else:
                owner.stop(state, StopReason.OUT_OF_RANGE, refusal(code, state.partition, state.offset))
        elif step is Step.STOP:
            owner.stop(state, StopReason.REFUSED, refusal(code, state.partition, state.offset))
        else:
            logger.debug("Fetch of %s from broker %d: %s", state.partition, self.broker_id, codes.error_name(code))
            if step is Step.BACK_OFF:
                self._back_off(state)
            else:
                self._find_leader(state)

    def _find_leader(self, state: FetchState) -> None:
        state.preferred = None
        self._back_off(state)
        self._cluster.refresh_soon()
        state.owner.place(state)

    def _back_off(self, state: FetchState) -> None:
        state.not_before = now() + self._cluster.backoff.ms(state.failures) / 1000
        state.failures += 1

    def _truncated(self, state: FetchState, end_epoch: int, end_offset: int) -> None:
        end = f"only before offset {end_offset} of leader epoch {end_epoch}" if end_epoch >= 0 else "nowhere"
        error = CoordinatorError(
            f"log truncation detected: {state.partition} was read up to offset {state.offset} of leader epoch"
            f" {state.leader_epoch}, but the leader's log agrees with these records {end}"
        )
        state.owner.stop(state, StopReason.TRUNCATED, error, (end_offset, end_epoch))

    # -- truncation below Fetch version 12 ----------------------------------------------------------------------------

    async def _validate(self, states: Mapping[TopicPartition, FetchState]) -> None:
        """Ask the leaders where the leader epochs of positions ended (OffsetForLeaderEpoch, KIP-320).

        A follower rejects this request.
        """
        by_leader: dict[Broker, dict[TopicPartition, FetchState]] = {}
        for partition, state in states.items():
            leader = self._leaders.of(partition).broker
            if leader is None:
                self._find_leader(state)
            else:
                by_leader.setdefault(leader, {})[partition] = state
        for leader, asked in by_leader.items():
            await self._validate_with(leader, asked)

    async def _validate_with(self, broker: Broker, states: Mapping[TopicPartition, FetchState]) -> None:
        asked = {
            partition: (state.offset, state.leader_epoch, self._leaders.of(partition).epoch)
            for partition, state in states.items()
        }
        request = epochs_request({partition: (current, epoch) for partition, (_, epoch, current) in asked.items()})
        try:
            answer: OffsetForLeaderEpochResponse = await self._cluster.request(
                broker, request, timeout_ms=self._cluster.config.request_timeout_ms
            )
        except UnsupportedVersionError as error:
            # The broker is older than Kafka 2.1. Like Java's client, continue without the check for truncation.
            logger.debug("broker %s cannot report whether its log was truncated: %s", broker.address, error)
            for partition, state in states.items():
                state.validated_in = asked[partition][2]
            return
        except (RetriableError, MalformedMessageError) as error:
            self._failed(broker, states, error)
            return
        self._failures = 0
        matched = match_epochs(self._cluster.answers, broker, states, answer)
        for partition, row in matched.rows.items():
            if self._awaits(states[partition], asked[partition][0]):
                self._take_epoch_end(states[partition], row, asked[partition][2])
        for partition in matched.unanswered:
            self._back_off(states[partition])

    def _take_epoch_end(self, state: FetchState, row: EpochEndOffset, current_epoch: int) -> None:
        """Apply one row of the response to OffsetForLeaderEpoch, which was sent with ``current_epoch``."""
        step = step_for(EPOCH_END, row.error_code)
        if step is not Step.DELIVER:
            self._refused(state, step, row.error_code)
        elif row.error_code == codes.NONE and row.leader_epoch < 0:
            # Nothing proves a loss: after one, the log has a newer epoch. Copied offsets have another cluster's epochs.
            logger.warning("%s: reading at offset %d, although the log does not know its leader epoch %d", *_position(state))
            state.leader_epoch = -1
        elif row.error_code == codes.NONE and row.end_offset < state.offset:
            self._truncated(state, row.leader_epoch, row.end_offset)
        else:
            state.validated_in = current_epoch


class _Exchange:
    """The Fetches of a lane that follow each other on one connection, each in the turn of the loop in which a response arrives.

    A task that first had to be resumed for each of them would cost more than the rest of a Fetch of a single record, and while
    other threads compute, each further turn of the loop waits for the GIL.
    """

    def __init__(self, fetches: BrokerFetches, lane: Lane, broker: Broker, ask: Ask) -> None:
        self._fetches = fetches
        self._lane = lane
        self._broker = broker
        self._begin(ask)

    def _begin(self, ask: Ask) -> None:
        #: The last Fetch, the partitions that the request names, and the loop time at which it was sent.
        self.ask = ask
        self.named: dict[TopicPartition, Wanted] = dict(ask.wanted)
        self.at: float = now()

    def question(self) -> Versioned:
        """Return the request of the last Fetch."""
        fetches, session = self._fetches, self._lane.session
        newest = fetches._newest(self.ask.states.values())
        return Versioned(
            FetchRequest, lambda version: fetches._build(version, session, self), newest, self._take, True, self._follow
        )

    def _take(self, version: int, frame: bytes) -> tuple[FetchResponse, Exception | None]:
        # The connection calls this in the turn of the loop in which the response arrives, so no other turn passes until the
        # records are announced. Errors are raised in the lane's task, and not here.
        response: FetchResponse = decode_response(FetchResponse, version, frame)[1]
        return response, self._fetches._apply(self._lane, self._broker, self, response)

    def _follow(self, answer: tuple[FetchResponse, Exception | None]) -> tuple[Versioned, float] | None:
        ask = None if answer[1] is not None else self._fetches._next_at_once(self._lane, self._broker)
        if ask is None:
            return None
        self._begin(ask)
        return self.question(), self._fetches._begin(self._lane, ask)


def _position(state: FetchState) -> tuple[TopicPartition, int, int]:
    return state.partition, state.offset, state.leader_epoch


def _request(config: FetchConfig, part: SessionPart, max_bytes: int, max_wait_ms: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=max_bytes,
        isolation_level=_READ_COMMITTED if config.read_committed else 0,
        session_id=part.session_id,
        session_epoch=part.session_epoch,
        topics=part.topics,
        forgotten_topics_data=part.forgotten,
        rack_id=config.client_rack,
    )
