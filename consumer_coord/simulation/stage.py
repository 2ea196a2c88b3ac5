"""The environment of one simulation run's members: the clock, the network, the brokers, and the checkers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Collection

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.group_store import GROUP_METADATA_TOPIC
from consumer_coord.broker.record_batch import HEADER_SIZE
from consumer_coord.consumer.partitions import IllegalTransitionError
from consumer_coord.simulation.brokers import SimulatedCluster
from consumer_coord.simulation.checkers import Checkers, Violation
from consumer_coord.simulation.duties import Duties
from consumer_coord.simulation.exactly_once import ExactlyOnceRules
from consumer_coord.simulation.handlers import HandlerRules
from consumer_coord.simulation.history import History
from consumer_coord.simulation.loop import VirtualTimeLoop
from consumer_coord.simulation.member_spec import CONSUMER_HEARTBEAT_MS, CONSUMER_SESSION_MS
from consumer_coord.simulation.network import SimulatedNetwork
from consumer_coord.simulation.reach import Reach
from consumer_coord.simulation.scenario import Scenario
from consumer_coord.simulation.virtual_kafka import VirtualKafka
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import offsets_topic
from consumer_coord.wire.codec import decode_request_header, decode_response
from consumer_coord.wire.messages.group import JoinGroupResponse
from consumer_coord.wire.messages.log import FetchResponse

_FETCH = 1
_JOIN_GROUP = 11
#: Produce, InitProducerId, EndTxn and TxnOffsetCommit.
_OF_PRODUCERS = frozenset({0, 22, 26, 28})
#: ListOffsets, OffsetFetch, FindCoordinator and OffsetForLeaderEpoch.
_LOOK_UPS = frozenset({2, 9, 10, 23})


def rule_of(error: BaseException) -> str:
    """Return the name of the rule that an unexpected exception breaks."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, IllegalTransitionError):
            return "transitions"
        cause = cause.__cause__
    return "crash"


class Stage:
    """What the members of one simulation run see of it, and the rules for them. Create the object on the run's loop."""

    group_id = "group"

    def __init__(self, loop: VirtualTimeLoop, scenario: Scenario) -> None:
        self.loop = loop
        self.scenario = scenario
        self.history: History = History(loop.time)
        self.checkers: Checkers = Checkers(
            self.group_id,
            loop.time,
            self.history,
            lambda: self.network.serving,
            lambda topic: self.cluster.topic_name(topic),
            first_record=lambda partition, offset: self.cluster.first_record(partition, offset),
            agreed=lambda partition, offset, epoch: self.cluster.agreed(partition, offset, epoch),
        )
        orders = [spec.process for spec in scenario.members if spec.process]
        #: The rules for what handlers do, if members call ``process``.
        self.handlers: HandlerRules | None = HandlerRules(orders[0], lambda one: self.cluster.log(one)) if orders else None
        #: The rules for transactions, if members read, process and write.
        self.exactly_once: ExactlyOnceRules | None = (
            ExactlyOnceRules(lambda one: self.cluster.log(one), self.fail)
            if any(spec.transactions for spec in scenario.members)
            else None
        )
        self.kafka: VirtualKafka = VirtualKafka(
            loop,
            scenario.seed,
            latency_ms=scenario.latency_ms,
            config=BrokerConfig(
                group_min_session_timeout_ms=1_000,
                group_initial_rebalance_delay_ms=scenario.initial_rebalance_delay_ms,
                group_consumer_session_timeout_ms=CONSUMER_SESSION_MS,
                group_consumer_heartbeat_interval_ms=CONSUMER_HEARTBEAT_MS,
                group_consumer_regex_refresh_interval_ms=10_000,
                offsets_topic_num_partitions=3,
                transaction_state_log_num_partitions=3,
                auto_create_topics_enable=False,
                client_metrics_enable=scenario.metrics,
            ),
            brokers=scenario.brokers,
            topics=scenario.topics,
            on_record=self._on_record,
            fetching=scenario.fetching,
            handlers=self.handlers,
            exactly_once=self.exactly_once,
            offsets_observer=self,
        )
        self.network: SimulatedNetwork = self.kafka.network
        self.cluster: SimulatedCluster = self.kafka.cluster
        if scenario.metrics:
            self.cluster.kafka.client_metrics.subscribe("all", {"metrics": "*", "interval.ms": "2000"})
        self.reach: Reach = Reach(loop)
        #: What members owe to their coordinators.
        self.duties: Duties = Duties()
        self.failure: asyncio.Future[None] = loop.create_future()
        self.producing = True
        #: The time until which an earlier fault may delay requests and rebalances.
        self.troubled_until: float = 0.0
        self._disturbed_at = 0.0

    def _on_record(self, key: bytes, value: bytes | None, offset: int) -> None:
        self.checkers.on_record(key, value, offset)
        if self.handlers is not None and value is not None:
            decoded = offsets_topic.decode_key(key)
            if isinstance(decoded, offsets_topic.OffsetCommitKey) and decoded.group == self.group_id:
                stored, partition = offsets_topic.decode_offset_value(value), TopicPartition(decoded.topic, decoded.partition)
                try:
                    self.handlers.committed(partition, stored.offset, stored.metadata, self.network.serving)
                except Violation as breach:
                    self.fail(breach)

        if self.exactly_once is not None and value is not None:
            decoded = offsets_topic.decode_key(key)
            if isinstance(decoded, offsets_topic.OffsetCommitKey):
                stored, partition = offsets_topic.decode_offset_value(value), TopicPartition(decoded.topic, decoded.partition)
                self.exactly_once.outside_of_transactions(partition, stored.offset, self.network.serving)

    def on_transactional_record(self, partition: int, producer_id: int, key: bytes, value: bytes) -> None:
        """Check an offset that a coordinator has accepted as part of a transaction."""
        decoded, stored = offsets_topic.decode_key(key), offsets_topic.decode_offset_value(value)
        if self.exactly_once is not None and isinstance(decoded, offsets_topic.OffsetCommitKey):
            log, at = TopicPartition(GROUP_METADATA_TOPIC, partition), TopicPartition(decoded.topic, decoded.partition)
            tag = stored.metadata.rstrip("\0")
            self.history.note("log", f"{tag} of producer {producer_id} is to commit {stored.offset} of {at}")
            self.exactly_once.offset_sent(log, producer_id, at, stored.offset, tag)
            self.checkers.on_transactional_commit(producer_id, at, stored)

    def on_offsets_marker(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """Check the end of a transaction in a partition of ``__consumer_offsets``."""
        if self.exactly_once is not None:
            self.history.note("log", f"producer {producer_id} {'commits' if committed else 'aborts'} its offsets")
            self.checkers.on_transaction_end(producer_id, committed=committed)
            self.exactly_once.ended(TopicPartition(GROUP_METADATA_TOPIC, partition), producer_id, committed=committed)

    def fail(self, breach: Violation) -> None:
        """End the simulation run, because a rule was violated."""
        self.history.note("checkers", f"VIOLATION {breach}")
        if not self.failure.done():
            self.failure.set_exception(breach)

    def crashed(self, who: str, error: BaseException) -> None:
        """End the simulation run, because ``who`` raised an exception that no rule permits."""
        breach = Violation(rule_of(error), f"{who}: {type(error).__name__}: {error}")
        breach.__cause__ = error
        self.fail(breach)

    async def guarded(self, who: str, work: Awaitable[None]) -> None:
        """Await a simulated program; what it raises ends the simulation run."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Violation as breach:
            self.fail(breach)
        except Exception as error:  # noqa: BLE001 - reported as a finding
            self.crashed(who, error)

    def on_request(self, client: str) -> None:
        """Check a request that a client sends."""
        try:
            self.checkers.on_request(client)
        except Violation as breach:
            self.fail(breach)

    @property
    def calm(self) -> bool:
        """True after the last fault, when applications are no longer unruly."""
        return not self.producing

    def calm_since(self) -> float:
        """Return since when no fault delays a request, and no application is unruly; infinite if this is not known."""
        if self.scenario.has_dead_connections:
            return math.inf
        if self.cluster.wrong_answers or (not self.calm and any(spec.unruly for spec in self.scenario.members)):
            self._disturbed_at = self.loop.moment
        return max(self._disturbed_at, self.troubled_until)

    def refuses(self, assignors: Collection[str]) -> bool:
        """Return whether the coordinator rejects a member with these ``assignors``, because another member has none of them.

        As in Kafka, a coordinator that loaded the group knows only the assignor that the member's generation had chosen.
        """
        group = self.cluster.group(self.group_id)
        return group is not None and any(not set(member.protocol_names) & set(assignors) for member in group.members.values())

    def on_answer(self, client: str, server: str, request: bytes, answer: bytes) -> None:
        """Check a response that a client receives."""
        api_key = int.from_bytes(request[:2], "big")
        received, answer = answer, self.cluster.honest(answer)
        if api_key in _OF_PRODUCERS:
            # An application may make as many transactions as brokers answer.
            self.checkers.on_progress(client)
        if api_key == _FETCH and len(answer) > HEADER_SIZE:
            # A shorter response has no batch.
            version = decode_request_header(request).version
            topics = decode_response(FetchResponse, version, answer)[1].responses
            if any(row.records for topic in topics for row in topic.partitions):
                self.checkers.on_progress(client)
        if api_key in _LOOK_UPS:
            try:
                # The correlation id differs in each request.
                self.checkers.on_look_up(client, request[:4] + request[8:])
            except Violation as breach:
                self.fail(breach)
        if api_key == _JOIN_GROUP:
            header = decode_request_header(request)
            response = decode_response(JoinGroupResponse, header.version, answer)[1]
            if response.error_code == 0:
                self.history.note(server, f"{client} joined generation {response.generation_id} as {response.member_id}")
                try:
                    members = response.members
                    if received is not answer:
                        members = decode_response(JoinGroupResponse, header.version, received)[1].members
                    told = frozenset(() if members == response.members else (one.member_id for one in members))
                    self.checkers.on_joined(response.member_id, response.generation_id, server, told)
                except Violation as breach:
                    self.fail(breach)
