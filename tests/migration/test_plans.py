"""What ``migrate`` finds, its order, and whether going back is safe, for groups as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from consumer_coord.errors import AuthorizationError, CoordinatorError
from consumer_coord.migration.clients import guess_client
from consumer_coord.migration.group import BrokerSettings, MigratingGroup, MigratingMember
from consumer_coord.migration.plans import Level, Plan, Target, plan_of
from consumer_coord.migration.progress import Progress, progress_of
from consumer_coord.migration.text import plan_text
from consumer_coord.net.metadata import Broker
from consumer_coord.topic_partition import TopicPartition
from tests.support.docs.blocks import DOCS

ONE, TWO = Broker(1, "kafka-1", 9092), Broker(2, "kafka-2", 9092)
DEFAULTS = {
    "group.coordinator.rebalance.protocols": "classic,consumer,streams",
    "group.consumer.migration.policy": "bidirectional",
    "group.consumer.assignors": "uniform,range",
    "group.consumer.session.timeout.ms": "45000",
    "group.consumer.heartbeat.interval.ms": "5000",
    "group.consumer.max.size": "2147483647",
    "group.max.size": "2147483647",
}


def member(name: str = "app-1", *numbers: int, **fields: Any) -> MigratingMember:
    """A classic member, or one of the consumer protocol that has its target."""
    assigned = frozenset(TopicPartition("t", number) for number in numbers)
    known: dict[str, Any] = {"instance_id": None, "client_id": "app", "host": "/10.0.0.1", "protocol": "classic"}
    return MigratingMember(name, **{**known, "assigned": assigned, **fields})


def modern(name: str = "app-1", *numbers: int, **fields: Any) -> MigratingMember:
    made = member(name, *numbers, protocol="consumer")
    return attrs.evolve(made, **{"target": made.assigned, **fields})


def classic_group(*members: MigratingMember, **fields: Any) -> MigratingGroup:
    known: dict[str, Any] = {"type": "Classic", "protocol_type": "consumer", "state": "Stable", "assignor": "range"}
    return MigratingGroup("g", coordinator=ONE, members=members, **{**known, **fields})


def consumer_group(*members: MigratingMember, **fields: Any) -> MigratingGroup:
    return classic_group(*members, **{"type": "Consumer", "assignor": "uniform", "epoch": 7, **fields})


def brokers(of_group: Mapping[str, str] | None = None, **changed: str) -> BrokerSettings:
    """Two brokers with Kafka's defaults; ``policy="disabled"`` changes the policy of the second."""
    names = {"policy": "group.consumer.migration.policy", "protocols": "group.coordinator.rebalance.protocols"}
    other = {names.get(name, name.replace("_", ".")): value for name, value in changed.items()}
    both = {**DEFAULTS, **{name: value for name, value in other.items() if name not in names.values()}}
    return BrokerSettings({ONE: both, TWO: {**both, **other}}, of_group or {})


def texts(plan: Plan, level: Level) -> str:
    return "\n".join(finding.text for finding in plan.findings if finding.level is level)


CLASSIC = classic_group(member())


@pytest.mark.parametrize(
    ("group", "settings", "blocks"),
    [
        (attrs.evolve(CLASSIC, knows_kip848=False), brokers(), "needs Kafka 4.0 or later"),
        (CLASSIC, brokers(protocols="classic"), "rebalance.protocols of broker 2 is classic: add consumer"),
        (CLASSIC, brokers(policy="disabled"), "migration.policy of broker 2 is disabled: set it to bidirectional or upgrade"),
        (CLASSIC, brokers(policy="downgrade"), "broker 2 is downgrade"),
        (CLASSIC, brokers(group_consumer_max_size="0"), "1 members, but group.consumer.max.size is 0"),
        (attrs.evolve(CLASSIC, protocol_type="connect"), brokers(), "of the type connect"),
        (attrs.evolve(CLASSIC, assignor="stream"), brokers(), "KIP-1071"),
        (classic_group(member(assignment_data=35)), brokers(), "user data of the assignor range"),
        (classic_group(member(client_id="aiokafka-0.14.0")), brokers(), "aiokafka 0.14.0 has no consumer protocol"),
        (classic_group(member(client_id="kafka-python-3.0.12")), brokers(), "kafka-python 3.0.12 has no consumer protocol"),
    ],
)
def test_what_prevents_the_move_to_the_consumer_protocol(group: MigratingGroup, settings: BrokerSettings, blocks: str) -> None:
    plan = plan_of(group, settings, Target.CONSUMER)
    assert blocks in texts(plan, Level.BLOCKS)
    assert not plan.possible
    assert len([one for one in plan.findings if one.level is Level.BLOCKS]) == 1


def test_nothing_prevents_it_with_kafkas_defaults() -> None:
    plan = plan_of(
        classic_group(member(client_id="rdkafka"), member("b", client_id="consumer-g-1")), brokers(), Target.CONSUMER
    )
    assert plan.possible
    assert texts(plan, Level.BLOCKS) == ""
    assert "Java 4.0, librdkafka 2.12" in texts(plan, Level.NOTE)


@pytest.mark.parametrize(
    ("group", "settings", "loses"),
    [
        (
            attrs.evolve(CLASSIC, assignor="load"),
            brokers(),
            "the assignor load, whose code runs in the members: from the first restart on, the broker assigns with uniform",
        ),
        (
            classic_group(member(user_data=9), assignor="mine"),
            brokers(),
            "the assignor mine, whose code runs in the members, and the 9 bytes of user data",
        ),
        (CLASSIC, brokers(), "the assignor range, unless the members set group.remote.assignor=range"),
        (CLASSIC, brokers(group_consumer_assignors="uniform"), "the assignor range: the broker assigns with uniform"),
        (CLASSIC, brokers(), "session.timeout.ms (the broker's: 45000), heartbeat.interval.ms (the broker's: 5000)"),
        (CLASSIC, brokers({"consumer.session.timeout.ms": "9000"}), "session.timeout.ms (the broker's: 9000)"),
        (
            CLASSIC,
            brokers(policy="upgrade"),
            "the way back without a stop: group.consumer.migration.policy of broker 2 is upgrade",
        ),
    ],
)
def test_what_the_group_loses(group: MigratingGroup, settings: BrokerSettings, loses: str) -> None:
    assert loses in texts(plan_of(group, settings, Target.CONSUMER), Level.LOSES)


def test_the_brokers_own_range_is_no_loss() -> None:
    assert "assignor" not in texts(
        plan_of(CLASSIC, brokers(group_consumer_assignors="range,uniform"), Target.CONSUMER), Level.LOSES
    ).replace("partition.assignment.strategy", "")


def test_dynamic_members_with_few_partitions_come_first_and_static_ones_last() -> None:
    group = consumer_group(
        modern("moved", 0),
        member("static", 1, instance_id="static-1"),
        member("large", 2, 3, 4),
        member("small", 5, 6),
    )
    plan = plan_of(group, brokers(), Target.CONSUMER)
    assert [one.member_id for one in plan.order] == ["small", "large", "static"]
    assert "static-1 is a static member: a new member with the same group.instance.id waits" in texts(plan, Level.NOTE)
    assert [one.member_id for one in plan_of(group, brokers(), Target.CLASSIC).order] == ["moved"]


def test_going_back_depends_on_the_policy_and_on_a_settled_group() -> None:
    def back(group: MigratingGroup, settings: BrokerSettings, target: Target = Target.CONSUMER) -> Progress:
        return progress_of(group, settings, target)

    moving = consumer_group(modern("a", 0), member("b", 1))
    assert (back(moving, brokers()).moved, back(moving, brokers()).complete) == (1, False)
    assert back(moving, brokers()).back == "restart a with group.protocol=classic; this converts the group"
    refused = back(moving, brokers(policy="upgrade")).back_refused
    assert refused == "group.consumer.migration.policy of broker 2 is upgrade"
    small = brokers(group_max_size="1")
    assert back(moving, small).back_refused == "a classic group may have 1 members (group.max.size)"
    denied: Mapping[Broker, Mapping[str, str] | CoordinatorError] = {ONE: DEFAULTS, TWO: AuthorizationError("denied")}
    unknown = back(moving, BrokerSettings(denied))
    assert (unknown.back, "broker 2 is unknown: denied" in str(unknown.back_refused)) == (None, True)
    assert back(moving, BrokerSettings({ONE: {}})).back is None

    late = consumer_group(modern("a", 0, target=frozenset()), member("b", 1))
    waiting = back(late, brokers())
    assert (waiting.back, waiting.wait) == (None, "a has other partitions than the target")
    assert back(attrs.evolve(moving, state="Reconciling"), brokers()).wait == "the group is Reconciling"
    assert back(moving, brokers(), Target.CLASSIC).back is not None


def test_a_move_is_complete_when_all_have_moved_and_have_their_partitions() -> None:
    moved = consumer_group(modern("a", 0), modern("b", 1))
    assert progress_of(moved, brokers(), Target.CONSUMER).complete
    assert not progress_of(attrs.evolve(moved, state="Assigning"), brokers(), Target.CONSUMER).complete
    assert not progress_of(moved, brokers(), Target.CLASSIC).complete
    restarting = progress_of(moved, brokers(), Target.CONSUMER, expected=3)
    assert (restarting.complete, restarting.wait) == (False, "1 of 3 members has not come back")
    assert progress_of(CLASSIC, brokers(), Target.CLASSIC).complete
    assert not progress_of(consumer_group(member("a", 0)), brokers(), Target.CLASSIC).complete, "not converted yet"
    assert not progress_of(classic_group(), brokers(), Target.CONSUMER).complete
    untold = consumer_group(member("a", 0, protocol=None))
    assert not progress_of(untold, brokers(), Target.CONSUMER).complete
    assert "does not tell which members" in texts(plan_of(untold, brokers(), Target.CONSUMER), Level.NOTE)


def test_from_eager_to_cooperative_in_two_rolls() -> None:
    plan = plan_of(CLASSIC, brokers(), Target.COOPERATIVE)
    assert plan.possible
    assert [step.split(":")[0] for step in plan.steps] == ["Roll 1", "Roll 2"]
    assert "cooperative-sticky,range" in plan.steps[0]
    begun = progress_of(CLASSIC, brokers(), Target.COOPERATIVE)
    assert (begun.moved, begun.back) == (0, "restart the members that have both assignors with range alone")

    kept = frozenset({TopicPartition("t", 0)})
    second = classic_group(member("a", 0, owned=kept), member("b", 1, owned=frozenset()), assignor="cooperative-sticky")
    assert [step.split(":")[0] for step in plan_of(second, brokers(), Target.COOPERATIVE).steps] == ["Roll 2"]
    progress = progress_of(second, brokers(), Target.COOPERATIVE)
    assert (progress.moved, progress.complete) == (1, False)
    assert str(progress.back).startswith("in two rolls")
    blocked = plan_of(classic_group(member(client_id="aiokafka-0.14.0")), brokers(), Target.COOPERATIVE)
    assert "aiokafka 0.14.0 has no cooperative rebalances" in texts(blocked, Level.BLOCKS)
    load = plan_of(attrs.evolve(CLASSIC, assignor="load"), brokers(), Target.COOPERATIVE)
    assert "the assignor load is cooperative already" in texts(load, Level.NOTE)
    mine = plan_of(attrs.evolve(CLASSIC, assignor="mine"), brokers(), Target.COOPERATIVE)
    assert "unless you make it cooperative" in texts(mine, Level.LOSES)
    unmixed = plan_of(classic_group(member(client_id="rdkafka")), brokers(), Target.COOPERATIVE)
    assert "librdkafka has no lists of eager and cooperative assignors" in texts(unmixed, Level.BLOCKS)
    assert plan_of(consumer_group(modern()), brokers(), Target.COOPERATIVE).steps == ()


def test_from_confluent_kafka_to_this_library() -> None:
    group = classic_group(
        member("a", client_id="rdkafka"), member("b", client_id="consumer-coord"), member("c", client_id="own")
    )
    plan = plan_of(group, brokers(), Target.THIS_LIBRARY)
    assert plan.possible
    assert [one.member_id for one in plan.order] == ["a", "c"]
    assert "the client.id of c is its own" in texts(plan, Level.NOTE)
    assert progress_of(group, brokers(), Target.THIS_LIBRARY).back is not None
    foreign = attrs.evolve(group, assignor="theirs")
    assert "consumer-coord has no assignor theirs" in texts(plan_of(foreign, brokers(), Target.THIS_LIBRARY), Level.BLOCKS)
    ours = progress_of(attrs.evolve(group, assignor="load"), brokers(), Target.THIS_LIBRARY)
    assert ours.back_refused == "librdkafka has no assignor load: change the group's assignor first"


@pytest.mark.parametrize(
    ("client_id", "client"),
    [
        ("rdkafka", "librdkafka"),
        ("consumer-orders.eu-3", "Java"),
        ("consumer-ordersxeu-3", None),
        ("aiokafka-0.14.0", "aiokafka 0.14.0"),
        ("consumer-coord", "consumer-coord"),
        ("consumer-coord-billing", "consumer-coord"),
        ("consumer-orders.eu-coord", None),
        ("billing", None),
    ],
)
def test_clients_by_their_default_ids(client_id: str, client: str | None) -> None:
    found = guess_client(client_id, "orders.eu")
    assert (None if found is None else str(found)) == client


def test_the_page_shows_the_whole_report() -> None:
    ours = "93783e48-4b1f-4c0e-9a57-0d2f6a1b8c3e"
    other = "13907175-2f6d-4f0a-8c1b-5e7a90d1c264"
    group = MigratingGroup(
        "billing",
        "Classic",
        "consumer",
        "Stable",
        "range",
        Broker(1, "localhost", 9092),
        (
            member(f"rdkafka-{ours}", 0, 1, client_id="rdkafka", host="/10.0.0.7", version=3, user_data=0),
            member(f"eu-1-{other}", 2, 3, client_id="billing", host="/10.0.0.8", version=3, user_data=0, instance_id="eu-1"),
        ),
    )
    settings = BrokerSettings({group.coordinator: DEFAULTS})
    plan = plan_of(group, settings, Target.CONSUMER)
    report = plan_text(group, settings, plan, progress_of(group, settings, Target.CONSUMER))
    assert f"```\n{report}\n```" in (DOCS / "migrating.md").read_text()
