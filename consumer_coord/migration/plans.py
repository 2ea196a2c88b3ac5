"""What prevents a move, what the group loses by it, and in which order to restart the members; no I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from assignors.built_in import BUILT_IN
from consumer_coord.migration.clients import guess_client
from consumer_coord.migration.group import (
    CLASSIC_PROTOCOL,
    CONSUMER_PROTOCOL,
    BrokerSettings,
    MigratingGroup,
    MigratingMember,
)
from consumer_coord.net.metadata import Broker
from consumer_coord.wire.embedded_protocol import PROTOCOL_TYPE


class Target(enum.Enum):
    """Where a group moves to; the values of ``--to``."""

    CONSUMER = "consumer"
    CLASSIC = "classic"
    COOPERATIVE = "cooperative-sticky"
    THIS_LIBRARY = "consumer-coord"


class Level(enum.Enum):
    """What a finding means: the move cannot begin or end, the group would lose something, or the operator should know it."""

    BLOCKS = "blocks"
    LOSES = "loses"
    NOTE = "note"


@attrs.frozen
class Finding:
    """One sentence about a move."""

    level: Level
    text: str


@attrs.frozen
class Plan:
    """A move: what was found, the steps, and the members that have not moved, in the order in which to restart them."""

    target: Target
    findings: tuple[Finding, ...]
    steps: tuple[str, ...]
    order: tuple[MigratingMember, ...]

    @property
    def possible(self) -> bool:
        """True if nothing that was found prevents the move."""
        return all(finding.level is not Level.BLOCKS for finding in self.findings)


#: The assignors of Java's client, of which the broker's assignors take the place without a loss of the application's code.
JAVA_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
#: The assignors of librdkafka.
LIBRDKAFKA_ASSIGNORS = frozenset({"range", "roundrobin", "cooperative-sticky"})
COOPERATIVE_ASSIGNORS = frozenset({"cooperative-sticky", "load"})
#: The assignor of Kafka Streams, whose groups move to a protocol of their own (KIP-1071).
_STREAMS_ASSIGNOR = "stream"

#: Seen with Kafka 4.4.0: heartbeats of classic members do not make the broker compute the assignment.
_ORPHANS = (
    "nobody gets the partitions of the last member of the consumer protocol when it leaves, until a member joins (Kafka 4.4.0)"
)

UPGRADES, DOWNGRADES = frozenset({"bidirectional", "upgrade"}), frozenset({"bidirectional", "downgrade"})
POLICY, PROTOCOLS = "group.consumer.migration.policy", "group.coordinator.rebalance.protocols"

_WATCH = (
    "Restart the members in the order above, one after the other. Before each restart, wait until migrate --watch says that the"
    " next one may be restarted"
)


def plan_of(group: MigratingGroup, settings: BrokerSettings, target: Target) -> Plan:
    """Return the plan of a move."""
    findings = tuple(_FINDINGS[target](group, settings))
    moved = has_moved(target)
    order = sorted(
        (member for member in group.members if not moved(group, member)),
        key=lambda one: (one.instance_id is not None, len(one.assigned), one.name),
    )
    return Plan(target, findings, tuple(_STEPS[target](group)), tuple(order))


def has_moved(target: Target) -> Callable[[MigratingGroup, MigratingMember], bool]:
    """Return the function that tells whether a member has moved, as far as the coordinator's answer shows it."""
    return _MOVED[target]


_MOVED: Mapping[Target, Callable[[MigratingGroup, MigratingMember], bool]] = {
    Target.CONSUMER: lambda _, member: member.protocol == CONSUMER_PROTOCOL,
    Target.CLASSIC: lambda _, member: member.protocol == CLASSIC_PROTOCOL,
    # A member that rebalances eagerly revokes everything before it joins.
    Target.COOPERATIVE: lambda group, member: group.modern or (is_cooperative(group) and bool(member.owned)),
    Target.THIS_LIBRARY: lambda group, member: _is_ours(group, member),
}


def is_cooperative(group: MigratingGroup) -> bool:
    """Return whether the group's assignor is a cooperative one."""
    return group.assignor in COOPERATIVE_ASSIGNORS


def _is_ours(group: MigratingGroup, member: MigratingMember) -> bool:
    client = guess_client(member.client_id, group.group_id)
    return client is not None and client.name == "consumer-coord"


# -- what is found ----------------------------------------------------------------------------------------------------


def _to_consumer(group: MigratingGroup, settings: BrokerSettings) -> Iterator[Finding]:
    yield from _blocked_consumers(group, settings)
    if not group.modern and group.members:
        yield from _lost_with_the_assignor(group, settings)
    classic = [member for member in group.members if member.protocol != CONSUMER_PROTOCOL]
    if classic:
        yield Finding(Level.LOSES, _replaced_settings(group, settings))
    yield from _without(classic, group, "consumer protocol", lambda client: client.modern)
    yield from _new_enough(classic, group)
    for broker, value in settings.values(POLICY).items():
        if value.lower() in UPGRADES - DOWNGRADES:
            yield Finding(
                Level.LOSES,
                f"the way back without a stop: {POLICY} of broker {broker.id} is {value}. While the group has classic members,"
                f" {_ORPHANS}",
            )
    yield from _static_notes(group, "waits until the old one has left, and does not fence it")
    yield from _begin_when_settled(group)
    if any(member.protocol is None for member in group.members):
        yield Finding(
            Level.NOTE, f"broker {broker_shown(group.coordinator)} does not tell which members use the consumer protocol"
        )
    if not group.members:
        yield Finding(Level.NOTE, "the group has no members: start them with the new protocol; its commits stay")


def _blocked_consumers(group: MigratingGroup, settings: BrokerSettings) -> Iterator[Finding]:
    coordinator = group.coordinator
    if not group.knows_kip848:
        yield Finding(
            Level.BLOCKS,
            f"broker {broker_shown(coordinator)} does not serve the consumer protocol: it needs Kafka 4.0 or"
            " later, and the feature group.version=1 (kafka-features.sh upgrade)",
        )
    for broker, value in settings.values(PROTOCOLS).items():
        if CONSUMER_PROTOCOL not in _split(value):
            yield Finding(Level.BLOCKS, f"{PROTOCOLS} of broker {broker.id} is {value}: add consumer, and restart the broker")
    if not group.modern:
        yield from _refused_by_policy(settings, UPGRADES, "upgrade")
    if group.protocol_type not in ("", PROTOCOL_TYPE):
        yield Finding(Level.BLOCKS, f"its members are no consumers, but of the type {group.protocol_type}")
    elif group.assignor == _STREAMS_ASSIGNOR:
        yield Finding(Level.BLOCKS, "its members are Kafka Streams, which has a protocol of its own (KIP-1071)")
    yield from _too_large(group, settings, "group.consumer.max.size")
    with_data = [member for member in group.members if member.assignment_data]
    if with_data:
        yield Finding(
            Level.BLOCKS,
            f"the assignments of {_named(with_data)} have user data of the assignor {group.assignor}, and the broker refuses a"
            " conversion that would lose it. (librdkafka's cooperative-sticky writes it when a librdkafka member leads the"
            " group.) Change the assignor to range first",
        )


def _lost_with_the_assignor(group: MigratingGroup, settings: BrokerSettings) -> Iterator[Finding]:
    offered = _split(settings.at(group.coordinator, "group.consumer.assignors") or "")
    default = offered[0] if offered else "its default assignor"
    if not group.assignor:
        return
    if group.assignor not in JAVA_ASSIGNORS:
        data = sum(member.user_data or 0 for member in group.members)
        also = f", and the {data} bytes of user data that its members send it" if data else ""
        yield Finding(
            Level.LOSES,
            f"the assignor {group.assignor}, whose code runs in the members{also}: from the first restart on, the broker"
            f" assigns with {default}",
        )
    elif group.assignor in offered and group.assignor != default:
        yield Finding(
            Level.LOSES,
            f"the assignor {group.assignor}, unless the members set group.remote.assignor={group.assignor}: the broker's"
            f" default is {default}",
        )
    elif group.assignor != default:
        yield Finding(Level.LOSES, f"the assignor {group.assignor}: the broker assigns with {default}")


def _replaced_settings(group: MigratingGroup, settings: BrokerSettings) -> str:
    session, heartbeat = (
        settings.at(group.coordinator, name)
        for name in ("group.consumer.session.timeout.ms", "group.consumer.heartbeat.interval.ms")
    )
    return (
        "settings of the members, which raise an error there: session.timeout.ms (the broker's:"
        f" {session or 'unknown'}), heartbeat.interval.ms (the broker's: {heartbeat or 'unknown'}),"
        " partition.assignment.strategy"
    )


def _to_classic(group: MigratingGroup, settings: BrokerSettings) -> Iterator[Finding]:
    for broker, value in settings.values(PROTOCOLS).items():
        if CLASSIC_PROTOCOL not in _split(value):
            yield Finding(Level.BLOCKS, f"{PROTOCOLS} of broker {broker.id} is {value}: add classic, and restart the broker")
    modern = group.of(CONSUMER_PROTOCOL)
    if modern:
        yield from _refused_by_policy(settings, DOWNGRADES, "downgrade")
    yield from _too_large(group, settings, "group.max.size")
    patterns = [member for member in modern if member.pattern is not None]
    if patterns:
        yield Finding(
            Level.NOTE, f"the broker resolves the pattern of {_named(patterns)}; a classic member resolves its pattern itself"
        )
    if modern:
        yield Finding(
            Level.NOTE,
            "until the last member of the consumer protocol has left, the broker assigns; stop this last one only when all"
            " others have their partitions, because otherwise brokers up to Kafka 4.4.0 refuse commits of some members, and"
            " records are processed twice",
        )
    yield from _static_notes(group, "fences the old one")
    yield from _begin_when_settled(group)


def _to_cooperative(group: MigratingGroup, _: BrokerSettings) -> Iterator[Finding]:
    if group.modern:
        yield Finding(Level.NOTE, "nothing to do: in the consumer protocol, every rebalance is incremental")
        return
    if group.assignor == _STREAMS_ASSIGNOR or group.protocol_type not in ("", PROTOCOL_TYPE):
        yield Finding(Level.BLOCKS, "its members choose no assignor: they are Kafka Streams or no consumers")
    yield from _without(group.members, group, "cooperative rebalances", lambda client: client.cooperative)
    if not is_cooperative(group):
        yield from _without(
            group.members,
            group,
            "lists of eager and cooperative assignors, which two rolls need: stop all its members at once, move the group to"
            " the consumer protocol instead, or",
            lambda client: client.mixes or not client.cooperative,
        )
    if group.assignor and group.assignor not in JAVA_ASSIGNORS:
        if is_cooperative(group):
            yield Finding(Level.NOTE, f"the assignor {group.assignor} is cooperative already")
        else:
            yield Finding(Level.LOSES, f"the assignor {group.assignor}, unless you make it cooperative (Assignor.protocols)")
    yield Finding(
        Level.NOTE,
        "callbacks get only the partitions that move: code that takes the argument of on_assign for the whole assignment must"
        " change first",
    )
    yield Finding(
        Level.NOTE,
        "the coordinator tells the group's assignor, not the other assignors in a member's list: roll 1 has ended when the"
        " group's assignor has changed",
    )
    yield from _static_notes(group, "fences the old one")
    yield from _begin_when_settled(group)


def _to_this_library(group: MigratingGroup, _: BrokerSettings) -> Iterator[Finding]:
    if group.protocol_type not in ("", PROTOCOL_TYPE) or group.assignor == _STREAMS_ASSIGNOR:
        yield Finding(Level.BLOCKS, "its members are Kafka Streams or no consumers")
    elif not group.modern and group.assignor and group.assignor not in BUILT_IN:
        yield Finding(
            Level.BLOCKS,
            f"consumer-coord has no assignor {group.assignor}: write it in Python with this name and the same user data, or"
            f" change the group's assignor to one of {_listed(BUILT_IN)}",
        )
    yield Finding(
        Level.NOTE,
        "keep group.id, group.instance.id, group.protocol and partition.assignment.strategy; docs/confluent-kafka.md lists"
        " every difference",
    )
    if not group.modern and is_cooperative(group):
        yield Finding(Level.NOTE, "cooperative-sticky of consumer-coord and of librdkafka share a group, whoever leads")
    unknown = [member for member in group.members if guess_client(member.client_id, group.group_id) is None]
    if unknown:
        yield Finding(
            Level.NOTE,
            f"the client.id of {_named(unknown)} is its own, so no answer of the broker tells the client: to follow the roll,"
            " give the new program a client.id that begins with consumer-coord",
        )
    yield from _static_notes(group, "fences the old one" if not group.modern else "waits until the old one has left")
    yield from _begin_when_settled(group)


def _refused_by_policy(settings: BrokerSettings, allowing: frozenset[str], direction: str) -> Iterator[Finding]:
    for broker, value in settings.values(POLICY).items():
        if value.lower() not in allowing:
            otherwise = f". Otherwise {_ORPHANS}" if direction == "downgrade" else ""
            yield Finding(
                Level.BLOCKS,
                f"{POLICY} of broker {broker.id} is {value}: set it to bidirectional or {direction}, and restart the"
                f" broker{otherwise}",
            )


def _too_large(group: MigratingGroup, settings: BrokerSettings, name: str) -> Iterator[Finding]:
    most = settings.at(group.coordinator, name)
    if most is not None and most.isdecimal() and len(group.members) > int(most):
        yield Finding(Level.BLOCKS, f"the group has {len(group.members)} members, but {name} is {most}")


def _without(
    members: Sequence[MigratingMember], group: MigratingGroup, what: str, has: Callable[..., bool]
) -> Iterator[Finding]:
    by_client: dict[str, list[MigratingMember]] = {}
    for member in members:
        client = guess_client(member.client_id, group.group_id)
        if client is not None and not has(client):
            by_client.setdefault(str(client), []).append(member)
    for name, found in by_client.items():
        remedy = f"{what}:" if ":" not in what else what
        yield Finding(Level.BLOCKS, f"{name} has no {remedy} replace the client of {_named(found)}")


def _new_enough(members: Sequence[MigratingMember], group: MigratingGroup) -> Iterator[Finding]:
    clients = {guess_client(member.client_id, group.group_id) for member in members}
    needed = sorted(f"{one.name} {one.modern_since}" for one in clients if one is not None and one.modern_since)
    if needed:
        yield Finding(Level.NOTE, f"the consumer protocol needs at least {_listed(needed)}; no broker tells a member's version")


def _static_notes(group: MigratingGroup, then: str) -> Iterator[Finding]:
    static = [member for member in group.members if member.instance_id is not None]
    if static:
        yield Finding(
            Level.NOTE,
            f"{_named(static)} {'is a static member' if len(static) == 1 else 'are static members'}: a new member with the same"
            f" group.instance.id {then}; stop the old one first (in Kubernetes: a StatefulSet, or maxSurge 0)",
        )


def _begin_when_settled(group: MigratingGroup) -> Iterator[Finding]:
    if group.unsettled is not None:
        yield Finding(Level.NOTE, f"wait before the first restart: {group.unsettled}")


_FINDINGS: Mapping[Target, Callable[[MigratingGroup, BrokerSettings], Iterator[Finding]]] = {
    Target.CONSUMER: _to_consumer,
    Target.CLASSIC: _to_classic,
    Target.COOPERATIVE: _to_cooperative,
    Target.THIS_LIBRARY: _to_this_library,
}


# -- the steps --------------------------------------------------------------------------------------------------------


def _steps_to_consumer(group: MigratingGroup) -> Iterator[str]:
    keep = f", and group.remote.assignor={group.assignor} to keep the assignor" if group.assignor == "range" else ""
    yield (
        "Prepare the new configuration: group.protocol=consumer, without session.timeout.ms, heartbeat.interval.ms and"
        f" partition.assignment.strategy{keep}"
    )
    yield f"{_WATCH}. The first restart converts the group, and the broker assigns from then on"
    yield "The roll has ended when all members have the consumer protocol"


def _steps_to_classic(_: MigratingGroup) -> Iterator[str]:
    yield "Prepare the new configuration: group.protocol=classic, with session.timeout.ms and partition.assignment.strategy"
    yield f"{_WATCH}: above all before the last member of the consumer protocol, whose restart converts the group"
    yield "The roll has ended when the group is Classic and Stable"


def _steps_to_cooperative(group: MigratingGroup) -> Iterator[str]:
    if group.modern:
        return
    old = group.assignor if group.assignor and not is_cooperative(group) else "OLD"
    if not is_cooperative(group):
        yield (
            f"Roll 1: restart all members, one after the other, with partition.assignment.strategy=cooperative-sticky,{old}."
            " The group rebalances eagerly as before. When the last member has both names, the group's assignor changes"
        )
    yield (
        "Roll 2: restart all members, one after the other, with partition.assignment.strategy=cooperative-sticky. Members that"
        " were restarted keep their partitions in rebalances"
    )


def _steps_to_this_library(group: MigratingGroup) -> Iterator[str]:
    strategy = "" if group.modern or not group.assignor else f" The list of assignors must contain {group.assignor}"
    yield f"Change the import: from consumer_coord import GroupConsumer as Consumer.{strategy}"
    yield _WATCH


_STEPS: Mapping[Target, Callable[[MigratingGroup], Iterator[str]]] = {
    Target.CONSUMER: _steps_to_consumer,
    Target.CLASSIC: _steps_to_classic,
    Target.COOPERATIVE: _steps_to_cooperative,
    Target.THIS_LIBRARY: _steps_to_this_library,
}


def _split(value: str) -> list[str]:
    return [name.strip().lower() for name in value.split(",") if name.strip()]


def _named(members: Sequence[MigratingMember]) -> str:
    """Return the names of at most five members."""
    names = sorted(member.name for member in members)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _listed(names: object) -> str:
    assert isinstance(names, (frozenset, Mapping, Sequence))
    return ", ".join(sorted(names))


def broker_shown(broker: Broker) -> str:
    """Return a broker as text."""
    return f"{broker.id} ({broker.address})"
