"""A plan and the progress of a move, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from consumer_coord.admin.text import table
from consumer_coord.errors import CoordinatorError
from consumer_coord.log_text import printable
from consumer_coord.migration.clients import guess_client
from consumer_coord.migration.group import BrokerSettings, MigratingGroup, MigratingMember
from consumer_coord.migration.plans import Level, Plan, Target, broker_shown
from consumer_coord.migration.progress import Progress

_TITLES = {
    Target.CONSUMER: "to the consumer protocol (KIP-848)",
    Target.CLASSIC: "to the classic protocol",
    Target.COOPERATIVE: "to cooperative-sticky",
    Target.THIS_LIBRARY: "from confluent-kafka to consumer-coord",
}
_MOVED = {
    Target.CONSUMER: "on the consumer protocol",
    Target.CLASSIC: "on the classic protocol",
    Target.COOPERATIVE: "kept partitions when they joined",
    Target.THIS_LIBRARY: "with consumer-coord",
}


def plan_text(group: MigratingGroup, settings: BrokerSettings, plan: Plan, progress: Progress) -> str:
    """Return the whole report of ``--check``."""
    outcome = "not possible yet" if not plan.possible else "done" if progress.complete else "possible"
    lines = [
        f"Group {group.group_id}: {group.type}, {group.state}, assignor {group.assignor or 'none'},"
        f" {len(group.members)} members, coordinator {broker_shown(group.coordinator)}",
        "",
        _members_table(group, plan),
        "",
        *_settings_lines(settings),
        "",
        f"Move {_TITLES[plan.target]}: {outcome}",
        *(f"  {finding.level.value + ':':<7} {finding.text}" for finding in plan.findings),
        "",
        *(f"  {number}. {step}." for number, step in enumerate(plan.steps, 1)),
        "",
        f"Going back: {_back(progress)}",
    ]
    return "\n".join(line if "\n" in line else printable(line) for line in lines)


def _members_table(group: MigratingGroup, plan: Plan) -> str:
    """Return one line for each member: first those to restart, in their order, then those that have moved."""
    order = {member.member_id: number for number, member in enumerate(plan.order, 1)}
    members = sorted(group.members, key=lambda one: (order.get(one.member_id, len(order) + 1), one.name))
    return table(
        [
            ("ORDER", 5, [order.get(member.member_id) for member in members]),
            ("CLIENT-ID", 15, [member.client_id for member in members]),
            ("CLIENT (GUESS)", 15, [_client(group, member) for member in members]),
            ("PROTOCOL", 8, [member.protocol for member in members]),
            ("VERSION", 7, [member.version for member in members]),
            ("USER-DATA", 9, [member.user_data for member in members]),
            ("STATIC-ID", 9, [member.instance_id for member in members]),
            ("#PARTITIONS", 11, [len(member.assigned) for member in members]),
            ("HOST", 15, [member.host for member in members]),
            ("MEMBER-ID", 0, [member.member_id for member in members]),
        ]
    )


def _client(group: MigratingGroup, member: MigratingMember) -> str | None:
    client = guess_client(member.client_id, group.group_id)
    return None if client is None else str(client)


def _settings_lines(settings: BrokerSettings) -> Iterator[str]:
    """Yield each setting once if all brokers agree, otherwise with its value on each broker."""
    names = sorted({name for found in settings.brokers.values() if isinstance(found, Mapping) for name in found})
    for name in names:
        values = settings.values(name)
        if len(set(values.values())) == 1:
            yield f"{name}={next(iter(values.values()))}"
        else:
            yield f"{name}: " + ", ".join(f"{value} on broker {broker.id}" for broker, value in values.items())
    for name, value in sorted(settings.of_group.items()):
        yield f"{name}={value} (of this group)"
    for broker, error in settings.unknown.items():
        yield f"the settings of broker {broker_shown(broker)} are unknown: {error}"


def _back(progress: Progress) -> str:
    return f"safe: {progress.back}" if progress.back is not None else f"not now: {progress.back_refused}"


def progress_text(progress: Progress, target: Target, news: Mapping[str, tuple[str, ...]]) -> str:
    """Return one line of ``--watch``, without its time. ``news`` has the names of members that joined and left."""
    epoch = "" if progress.epoch is None else f", epoch {progress.epoch}"
    parts = [
        f"{progress.type} {progress.state}{epoch}, {progress.assignor or 'no assignor'}:"
        f" {progress.moved} of {progress.members} members {_MOVED[target]}",
        *(f"{what} {', '.join(names)}" for what, names in news.items() if names),
        "complete" if progress.complete else "restart the next member" if progress.wait is None else f"wait: {progress.wait}",
        f"going back {_back(progress)}",
    ]
    return "; ".join(parts)


def as_json(group: MigratingGroup, settings: BrokerSettings, plan: Plan, progress: Progress) -> dict[str, Any]:
    """Return the report as values that JSON can represent; ``docs/migrating.md`` describes the fields."""
    order = [member.member_id for member in plan.order]
    return {
        "group": group.group_id,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "state": group.state,
        "assignor": group.assignor,
        "epoch": group.epoch,
        "coordinator": group.coordinator.id,
        "members": [_member_as_json(group, member) for member in group.members],
        "brokers": [
            {
                "broker": broker.id,
                "address": broker.address,
                "settings": None if isinstance(found, CoordinatorError) else dict(found),
                "error": str(found) if isinstance(found, CoordinatorError) else None,
            }
            for broker, found in settings.brokers.items()
        ],
        "group_settings": dict(settings.of_group),
        "to": plan.target.value,
        "possible": plan.possible,
        **{level.value: [one.text for one in plan.findings if one.level is level] for level in Level},
        "steps": list(plan.steps),
        "order": order,
        "progress": attrs.asdict(progress),
    }


def _member_as_json(group: MigratingGroup, member: MigratingMember) -> dict[str, Any]:
    client = guess_client(member.client_id, group.group_id)
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "client": None if client is None else {"name": client.name, "version": client.version or None},
        "protocol": member.protocol,
        "subscription_version": member.version,
        "user_data_bytes": member.user_data,
        "assignment_user_data_bytes": member.assignment_data,
        "topics": member.topics,
        "pattern": member.pattern,
        "assigned": sorted(map(str, member.assigned)),
        "owned_when_joined": None if member.owned is None else sorted(map(str, member.owned)),
        "epoch": member.epoch,
    }
