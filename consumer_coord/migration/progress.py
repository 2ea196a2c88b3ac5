"""How far a move is, and whether the next member may be restarted, forward or back; no I/O."""

from __future__ import annotations

import attrs

from consumer_coord.migration.group import CONSUMER_PROTOCOL, BrokerSettings, MigratingGroup
from consumer_coord.migration.plans import (
    DOWNGRADES,
    LIBRDKAFKA_ASSIGNORS,
    POLICY,
    UPGRADES,
    Target,
    has_moved,
    is_cooperative,
)


@attrs.frozen
class Progress:
    """The state of a move at one moment.

    ``moved`` of ``members`` members have moved. ``wait`` is why no member may be restarted now; None if the next one may be.
    ``back`` is how going back is safe now, and ``back_refused`` why it is not; one of both is None.
    """

    type: str
    state: str
    assignor: str
    epoch: int | None
    moved: int
    members: int
    complete: bool
    wait: str | None
    back: str | None
    back_refused: str | None


def progress_of(group: MigratingGroup, settings: BrokerSettings, target: Target) -> Progress:
    """Return the progress of a move. What is unknown counts as unsafe."""
    moved = sum(has_moved(target)(group, member) for member in group.members)
    wait = group.unsettled
    ended = bool(group.members) and moved == len(group.members) and wait is None
    if target is Target.CLASSIC:
        ended = ended and not group.modern
    back, refused = _BACK[target](group, settings)
    if wait is not None:
        back, refused = None, f"wait until every member has its partitions: {wait}"
    return Progress(group.type, group.state, group.assignor, group.epoch, moved, len(group.members), ended, wait, back, refused)


def _back_to_classic(group: MigratingGroup, settings: BrokerSettings) -> tuple[str | None, str | None]:
    modern = group.of(CONSUMER_PROTOCOL)
    if not group.modern:
        return "no member has moved", None
    why = _policy_forbids(settings, DOWNGRADES)
    most = settings.at(group.coordinator, "group.max.size")
    if why is None and most is not None and most.isdecimal() and len(group.members) > int(most):
        why = f"a classic group may have {most} members (group.max.size)"
    if why is not None:
        return None, why
    if len(modern) == 1:
        return f"restart {modern[0].name} with group.protocol=classic; this converts the group", None
    return "restart the members that have moved with group.protocol=classic, one after the other", None


def _back_to_consumer(group: MigratingGroup, settings: BrokerSettings) -> tuple[str | None, str | None]:
    if not group.modern and (why := _policy_forbids(settings, UPGRADES)) is not None:
        return None, why
    return "restart the members that have moved with group.protocol=consumer, one after the other", None


def _back_to_eager(group: MigratingGroup, _: BrokerSettings) -> tuple[str | None, str | None]:
    if group.modern:
        return "there is no eager assignor in the consumer protocol", None
    if not is_cooperative(group):
        return f"restart the members that have both assignors with {group.assignor} alone", None
    return "in two rolls: first give every member cooperative-sticky and the old assignor, then the old assignor alone", None


def _back_to_confluent_kafka(group: MigratingGroup, _: BrokerSettings) -> tuple[str | None, str | None]:
    if not group.modern and group.assignor and group.assignor not in LIBRDKAFKA_ASSIGNORS:
        return None, f"librdkafka has no assignor {group.assignor}: change the group's assignor first"
    return "restart the members that have moved with confluent-kafka, one after the other", None


_BACK = {
    Target.CONSUMER: _back_to_classic,
    Target.CLASSIC: _back_to_consumer,
    Target.COOPERATIVE: _back_to_eager,
    Target.THIS_LIBRARY: _back_to_confluent_kafka,
}


def _policy_forbids(settings: BrokerSettings, allowing: frozenset[str]) -> str | None:
    """Return why the brokers' policy forbids a direction, or why the policy is unknown; None if all brokers allow it."""
    for broker, value in settings.values(POLICY).items():
        if value.lower() not in allowing:
            return f"{POLICY} of broker {broker.id} is {value}"
    for broker, error in settings.unknown.items():
        return f"{POLICY} of broker {broker.id} is unknown: {error}"
    if len(settings.values(POLICY)) < len(settings.brokers):
        return f"not every broker told its {POLICY}"
    return None
