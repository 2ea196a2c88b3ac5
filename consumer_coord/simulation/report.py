"""A self-contained page about a simulated deployment: the owner of each partition over time, and the costs.

The page has the form of the page of ``consumer-coord watch``. Times are exact, and count from the start of the run.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from consumer_coord.simulation.deployment import DeploymentResult, Ownership
from consumer_coord.watch.changes import UNOWNED, Message, runs
from consumer_coord.watch.page import write_page
from consumer_coord.watch.recording import Meta, Recording, Table

_GROUP = "group"
#: Kinds of churn after which some members never return.
_LOSES_MEMBERS = ("rack-loss", "loss")
_COLUMNS = (
    *("Phase", "Stable after", "Rebalances", "Partitions moved", "Take-ups", "Unowned partition-seconds"),
    *("Longest without owner", "Partitions per member"),
)


def write_report(result: DeploymentResult, path: Path) -> None:
    """Write the report of a deployment to ``path``."""
    recording = as_recording(result)
    write_page(path, recording.meta, recording.messages)


def as_recording(result: DeploymentResult) -> Recording:
    """Return the run in the form of a ``consumer-coord watch`` recording, with the figures of its phases."""
    deployment = result.deployment
    settings = {
        "assignor": "+".join(deployment.assignors),
        "session.timeout.ms": deployment.session_timeout_ms,
        "heartbeat.interval.ms": deployment.heartbeat_interval_ms,
        "static members": "yes" if deployment.static else "no",
        "polls every": f"{deployment.poll_every_ms} ms",
        "racks": deployment.racks,
        "seed": deployment.seed,
    }
    rows = tuple(
        (
            phase.name,
            f"{phase.stable_s - phase.began_s:.1f} s",
            str(phase.rebalances),
            str(phase.moved),
            str(phase.interruptions),
            f"{phase.unowned_partition_s:.1f}",
            f"{phase.longest_unowned_s:.1f} s",
            f"{phase.least} to {phase.most}",
        )
        for phase in result.phases
    )
    meta = Meta(
        f"{len(result.members)} members, {len(result.partitions)} partitions, {deployment.churn}",
        ", ".join(f"{name} {value}" for name, value in settings.items()),
        "run",
        table=Table(_COLUMNS, rows),
        marks=tuple((round(phase.began_s, 3), phase.name) for phase in result.phases),
    )
    return Recording(meta, tuple(_messages(result)))


def _messages(result: DeploymentResult) -> list[Message]:
    """Return a message for each moment at which something changes."""
    topics = result.deployment.topics
    places = [(topic, number) for topic, count in topics.items() for number in range(count)]
    owners = {topic: [UNOWNED] * count for topic, count in topics.items()}
    changes: dict[float, list[tuple[int, int]]] = defaultdict(list)
    # If a partition is revoked and assigned at the same moment, show only the new owner.
    for each in result.ownerships:
        if each.to is not None:
            changes[round(each.to, 3)].append((each.partition, UNOWNED))
    for each in result.ownerships:
        changes[round(each.since, 3)].append((each.partition, each.member))
    rebalances = _rebalances(result)
    members = _members(result)
    unowned, unowned_s, last = len(places), 0.0, 0.0
    info = {"state": "Stable", "type": "Classic", "assignor": "+".join(result.deployment.assignors)}
    first = {"info": info, "topics": topics, "owners": {topic: runs((), now) for topic, now in owners.items()}}
    messages: list[Message] = [{"at": 0.0, "groups": {_GROUP: {**first, "unowned": [unowned, 0.0]}}}]
    for at in sorted({*changes, *rebalances, *members, round(result.ended_s, 3)}):
        unowned_s, last = unowned_s + unowned * (at - last), at
        before = {topic: list(now) for topic, now in owners.items()} if at in changes else owners
        for partition, owner in changes.get(at, ()):
            topic, number = places[partition]
            owners[topic][number] = owner
        unowned = sum(now.count(UNOWNED) for now in owners.values())
        change: dict[str, Any] = {"unowned": [unowned, round(unowned_s, 1)]}
        if changed := {topic: found for topic, now in owners.items() if (found := runs(before[topic], now))}:
            change["owners"] = changed
        if at in rebalances:
            change["rebalances"] = rebalances[at]
        if at in members:
            change["members"] = members[at]
        messages.append({"at": at, "groups": {_GROUP: change}})
    return messages


def _rebalances(result: DeploymentResult) -> dict[float, list[list[Any]]]:
    """Return moment -> rows of a message. A moved partition belongs to the last rebalance before its new ownership."""
    moments = [at for at, _, _ in result.rebalances]
    moved: Counter[int] = Counter()
    owner: dict[int, int] = {}
    for each in sorted(result.ownerships, key=lambda one: one.since):
        if owner.get(each.partition, each.member) != each.member:
            moved[bisect.bisect_right(moments, each.since) - 1] += 1
        owner[each.partition] = each.member
    found: dict[float, list[list[Any]]] = defaultdict(list)
    for index, (at, generation, count) in enumerate(result.rebalances):
        moment = round(at, 3)
        found[moment].append([generation, moment, moment, [f"generation {generation}, {count} members"], moved[index]])
    return found


def _members(result: DeploymentResult) -> dict[float, dict[str, Any]]:
    """Return moment -> the members whose first ownership begins then, and the members whose last ownership ends then."""
    held: dict[int, list[Ownership]] = defaultdict(list)
    for each in result.ownerships:
        held[each.member].append(each)
    found: dict[float, dict[str, Any]] = defaultdict(dict)
    for number, ownerships in held.items():
        name = result.members[number]
        shown = {"id": name, "label": name, "client": name, "host": "", "instance": None, "generation": None}
        found[round(min(each.since for each in ownerships), 3)][str(number)] = shown
        ends = [each.to for each in ownerships if each.to is not None]
        if len(ends) == len(ownerships) and result.deployment.churn in _LOSES_MEMBERS:
            found[round(max(ends), 3)][str(number)] = None
    return found
