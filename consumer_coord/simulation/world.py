"""The members of a simulation run with all their lives (the processes of a member), and its topics, on a stage."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

from assignors import BUILT_IN
from consumer_coord.simulation.application import MemberProcess
from consumer_coord.simulation.brokers import SimulatedCluster
from consumer_coord.simulation.checkers import Checkers, Violation
from consumer_coord.simulation.duties import Duties
from consumer_coord.simulation.health import HealthRule
from consumer_coord.simulation.history import History
from consumer_coord.simulation.idle import IdleRequests
from consumer_coord.simulation.loop import VirtualTimeLoop
from consumer_coord.simulation.member_spec import MemberSpec
from consumer_coord.simulation.processing_member import ProcessingMember
from consumer_coord.simulation.reader_by_hand import ReaderByHand
from consumer_coord.simulation.scenario import Scenario
from consumer_coord.simulation.stage import Stage
from consumer_coord.simulation.transacting_member import TransactingMember
from consumer_coord.wire.embedded_protocol import decode_subscription

#: Time within which the members of a stable group notice a rebalance and join, in seconds.
JOINED_S = 10.0

_JOIN_GROUP = 11
#: A member that closes during a rebalance closes at one of these responses: JoinGroup, SyncGroup, Heartbeat, OffsetCommit (API
#: keys).
_STEPS = (_JOIN_GROUP, 14, 12, 8)


class World:
    """The members of a simulation run, which start and end, and the topics, which are created and deleted."""

    def __init__(self, loop: VirtualTimeLoop, scenario: Scenario) -> None:
        self.stage: Stage = Stage(loop, scenario)
        self.loop = loop
        self.scenario = scenario
        self.cluster: SimulatedCluster = self.stage.cluster
        self.checkers: Checkers = self.stage.checkers
        self.history: History = self.stage.history
        self.stage.network.on_request = self._on_request
        self.stage.network.on_answer = self._on_answer
        #: Name -> the current process of the member.
        self.members: dict[str, MemberProcess] = {}
        #: Every process of every member, including ended processes.
        self.lives: list[MemberProcess] = []
        #: Programs that assign partitions by hand, in groups of their own.
        self.readers: list[ReaderByHand] = []
        self._lives_by_name: dict[str, MemberProcess] = {}
        self._life_numbers: dict[str, int] = {}
        self._random = Random(f"{scenario.seed}-world")
        self._topics = list(scenario.topics)
        self.health = HealthRule(self.checkers, self.cluster)
        self.duties: Duties = self.stage.duties
        #: The requests since the group is idle; None before.
        self.idle_requests: IdleRequests | None = None

    def _on_request(self, client: str, frame: bytes) -> None:
        self.stage.on_request(client)
        if self.idle_requests is not None:
            self.idle_requests.sent(client, frame)
        try:
            self.health.look(self.lives, self.loop.time())
            # Before the request counts, because it may be the one that is late.
            self.duties.look(self.lives, self.loop.moment, self.stage.calm_since())
            self.duties.sent(client, frame, self.loop.moment)
        except Violation as breach:
            self.stage.fail(breach)

    # -- members ----------------------------------------------------------------------------------------------------

    @property
    def alive_count(self) -> int:
        """The number of members that run and are not closing."""
        return sum(member.alive and not member.closing for member in self.members.values())

    def start_member(self, spec: MemberSpec) -> None:
        """Start a member for the first time or again."""
        life = self._life_numbers[spec.name] = self._life_numbers.get(spec.name, 0) + 1
        random = Random(f"{self.scenario.seed}-{spec.name}-{life}")
        kind = TransactingMember if spec.transactions else ProcessingMember if spec.process else MemberProcess
        if spec.name in self.members:
            self.members[spec.name].replaced = True
        member = kind(self.stage, spec, [BUILT_IN[name]() for name in spec.assignors], life, random)
        self.members[spec.name] = member
        self.lives.append(member)
        self._lives_by_name[member.name] = member
        member.start()

    def start_another(self) -> None:
        """Start another member, similar to one of the first members."""
        model = self._random.choice(self.scenario.members)
        name = f"member-{len(self._life_numbers) + 1}"
        self.start_member(
            attrs.evolve(
                model,
                name=name,
                instance_id=model.instance_id and f"instance-of-{name}",
                assignors=self.scenario.later_assignors,
                protocol=self.scenario.later_protocol or model.protocol,
            )
        )

    def start_reader(self) -> ReaderByHand:
        """Start a program that assigns partitions by hand."""
        reader = ReaderByHand(self.stage, len(self.readers) + 1)
        self.readers.append(reader)
        reader.start()
        return reader

    def start_again(self, name: str) -> None:
        """Start a new process of a member, perhaps with a newer list of assignors."""
        former = self.members[name].spec
        topics = self._subscription_in_group(former.instance_id) or former.topics
        protocol = self.scenario.later_protocol or former.protocol
        self.start_member(attrs.evolve(former, assignors=self.scenario.later_assignors, topics=topics, protocol=protocol))

    def _subscription_in_group(self, instance_id: str | None) -> tuple[str, ...]:
        """Return a static member's topics in the group, with which the member must return; see :func:`draw_scenario`."""
        group = self.cluster.group(self.stage.group_id)
        member_id = None if group is None or instance_id is None else group.static_members.get(instance_id)
        if group is None or member_id is None:
            return ()
        return tuple(decode_subscription(group.members[member_id].protocols[0].metadata).topics)

    def close_in_rebalance(self, name: str, value: int) -> None:
        """Close a member at a step of a rebalance that the member requests. If ``value`` is odd, also close the leader."""
        names = [name]
        if value % 2:
            names += [other for other, member in self.members.items() if member.leads and other != name][:1]
        classic = (*_STEPS, _JOIN_GROUP, _JOIN_GROUP)
        for number, one in enumerate(names):
            member = self.members[one]
            api_key = 68 if member.spec.protocol == "consumer" else classic[value // 2 % len(classic)]
            delay_s = (0.0, 0.0003, 0.001, 0.004, 0.02, 0.3)[(value // 14 + number * (1 + value // 84)) % 6]
            member.closes_after = (api_key, delay_s)
            self.history.note(one, f"is to close {delay_s} s after a response of API {api_key}")
        self.members[name].enforce_rebalance()

    def close_before_sync(self, random: Random) -> Sequence[MemberProcess]:
        """Close a member and its leader (classic protocol) after they sent JoinGroup and before the leader sends SyncGroup.

        Return these members. The response to the leader's JoinGroup is delayed, so that the leader leaves before the response
        arrives.
        """
        classic = [one for one in self.members.values() if one.alive and not one.closing and one.spec.protocol == "classic"]
        leader = next((one for one in classic if one.leads), None)
        others = [one for one in classic if one is not leader]
        coordinator = self.cluster.coordinator_of(self.stage.group_id)
        if leader is None or not others or coordinator is None:
            return ()
        closing = (random.choice(others), leader)
        for one, most_s in zip(closing, (3 * self.scenario.latency_ms / 1000, 0.05), strict=True):
            delay_s = random.uniform(0.0, most_s)
            one.closes_after = (_JOIN_GROUP, delay_s)
            one.closes_quickly = True
            self.history.note(one.name, f"is to close {delay_s:.4f} s after the response to JoinGroup")
        self.stage.network.slow(coordinator.host, leader.name, 200)
        self.loop.call_later(JOINED_S, self.stage.network.slow, coordinator.host, leader.name, 0)
        others[-1].enforce_rebalance()
        return closing

    def _on_answer(self, client: str, server: str, request: bytes, answer: bytes) -> None:
        member = self._lives_by_name.get(client)
        if member is not None:
            self.stage.reach.answered(member, request, answer)
            self.duties.answered(client, request, answer, self.loop.moment)
            member.answered(int.from_bytes(request[:2], "big"))
        self.stage.on_answer(client, server, request, answer)

    # -- topics -----------------------------------------------------------------------------------------------------

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The names of all topics that have ever existed."""
        return tuple(self._topics)

    def create_topic(self, partitions: int) -> None:
        """Create a topic with a new name."""
        name = f"topic-{len(self._topics)}"
        self._topics.append(name)
        self.cluster.kafka.create_topic(name, partitions)
        self.history.note("world", f"created {name} with {partitions} partitions")

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and all of the checkers' records about this topic."""
        gone = [partition for partition in self.cluster.partitions() if partition.topic == name]
        self.cluster.kafka.delete_topic(name)
        for partition in gone:
            self.checkers.forget(partition)

    def recreate_topic(self, name: str, tenths: int) -> None:
        """Recreate a topic. Each partition gets ``tenths`` tenths of its former number of records."""
        ends = {
            partition: self.cluster.end_offset(partition) or 0
            for partition in self.cluster.partitions()
            if partition.topic == name
        }
        self.cluster.kafka.delete_topic(name)
        for partition in ends:
            self.checkers.recreated(partition)
        self.cluster.kafka.create_topic(name, len(ends))
        for partition, end in ends.items():
            self.cluster.produce(partition, end * tenths // 10)

    def topics_of(self, member: MemberProcess) -> Sequence[str]:
        """Return the topics that a member subscribes to, by their names or by a pattern."""
        if member.spec.pattern is not None:
            return [topic for topic in self._topics if topic in self.cluster.kafka.topics.by_name]
        return member.subscription
