"""Draw the pictures of docs/assignors.md from the assignors themselves: ``python -m tools.draw_assignors``.

Each picture shows one small group before and after a member joined; partitions that changed owners have a dark frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import attrs

from assignors import (
    Assignor,
    Cluster,
    CooperativeStickyAssignor,
    LoadAssignor,
    Member,
    Plan,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from examples.cooperative_assignor import CooperativeCapacity
from examples.custom_assignor import CapacityAssignor

TARGET = Path(__file__).parents[1] / "docs" / "img"
TOPICS = ("orders", "payments", "clicks")
COLOURS = {"orders": "#bcd4ee", "payments": "#f6cfa0", "clicks": "#c5e3bd"}
CLUSTER = Cluster({"orders": 5, "payments": 5, "clicks": 2})
LAG = {"orders": [900, 300, 100, 100, 100], "payments": [300, 200, 0, 0, 0], "clicks": [100, 100]}

_CELL, _GAP, _ROW, _LABEL, _TOP = 26, 4, 40, 36, 56


@attrs.frozen
class Panel:
    """A group at one moment: title, partitions of each member, and partitions whose owner changed since the previous panel."""

    title: str
    held: Plan
    moved: frozenset[tuple[str, int]]
    note: str
    waiting: Sequence[tuple[str, int]] = ()


def owners(plan: Plan) -> dict[tuple[str, int], str]:
    """Return the owners: (topic, partition) -> member."""
    return {(topic, p): member for member, topics in plan.items() for topic, ps in topics.items() for p in ps}


def step(title: str, before: Plan, after: Plan) -> Panel:
    """Return the panel of a plan, with its changes."""
    was, now = owners(before), owners(after)
    moved = frozenset(partition for partition in now if partition in was and was[partition] != now[partition])
    waiting = sorted(set(was) - set(now))
    note = f"{len(moved)} of {len(was)} changed hands" + (f", {len(waiting)} waits" if len(waiting) == 1 else "")
    if len(waiting) > 1:
        note += f", {len(waiting)} wait"
    return Panel(title, after, moved, note, waiting)


def owning(members: Mapping[str, Member], plan: Plan) -> dict[str, Member]:
    """Return the members as they are after they have applied the plan."""
    return {name: attrs.evolve(member, owned=plan.get(name, {}), generation=1) for name, member in members.items()}


def panels(assignor: Assignor, cluster: Cluster, rounds: int, told: Mapping[str, bytes] | None = None) -> list[Panel]:
    """Return the panels: the group of A, B and C, and then D's join. ``told`` is the user data of A, B and C."""
    members = {name: Member(TOPICS, user_data=(told or {}).get(name)) for name in "ABCD"}
    newcomer = members.pop("D")
    first = assignor.assign(cluster, members)
    result = [Panel("A, B and C", first, frozenset(), "")]
    group = owning({**members, "D": newcomer}, first)
    before = first
    for number in range(rounds):
        plan = assignor.assign(cluster, group)
        titles = ["D comes"] if rounds == 1 else ["D comes: first round", "second round"]
        result.append(step(titles[number], before if number == 0 else first, plan))
        group, before = owning(group, plan), plan
    return result


def draw(name: str, shown: Sequence[Panel], cluster: Cluster, description: str) -> None:
    """Write one picture."""
    longest = max(
        sum(_width(cluster, topic, p) + _GAP for topic, ps in topics.items() for p in ps)
        for panel in shown
        for topics in panel.held.values()
    )
    width = _LABEL + max(longest + 40, 220) + 24
    rows = max(len(panel.held) + bool(panel.waiting) for panel in shown)
    height = _TOP + rows * _ROW + 32
    body: list[str] = []
    for number, panel in enumerate(shown):
        body += _panel(panel, cluster, 16 + number * width)
    legend = _legend(16, height - 14)
    total = 16 + width * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" width="{total}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" role="img">',
        f"<title>{escape(description)}</title>",
        f'<rect width="{total}" height="{height}" rx="8" fill="#ffffff"/>',
        *body,
        *legend,
        "</svg>",
    ]
    (TARGET / f"assignors-{name}.svg").write_text("\n".join(parts) + "\n")


def _width(cluster: Cluster, topic: str, partition: int) -> float:
    return _CELL if not cluster.lag else 16 + cluster.lag[topic][partition] * 0.12  # type: ignore[operator]  # all known


def _panel(panel: Panel, cluster: Cluster, left: float) -> list[str]:
    lines = [f'<text x="{left}" y="24" font-weight="bold">{escape(panel.title)}</text>']
    if panel.note:
        lines.append(f'<text x="{left}" y="42" fill="#666">{escape(panel.note)}</text>')
    for place, (member, topics) in enumerate(panel.held.items()):
        top = _TOP + place * _ROW
        lines.append(f'<text x="{left}" y="{top + 18}" font-weight="bold">{escape(member)}</text>')
        at = left + _LABEL - 14
        for topic in TOPICS:
            for partition in sorted(topics.get(topic, ())):
                lines += _cell(cluster, topic, partition, at, top, (topic, partition) in panel.moved, False)
                at += _width(cluster, topic, partition) + _GAP
        if cluster.lag:
            load = sum(cluster.lag[topic][p] or 0 for topic, ps in topics.items() for p in ps)
            lines.append(f'<text x="{at + 4}" y="{top + 18}" fill="#666">{load}</text>')
    if panel.waiting:
        top = _TOP + len(panel.held) * _ROW
        at = left + _LABEL - 14
        for topic, partition in panel.waiting:
            lines += _cell(cluster, topic, partition, at, top, False, True)
            at += _width(cluster, topic, partition) + _GAP
        lines.append(f'<text x="{at + 4}" y="{top + 18}" fill="#666">revoked first</text>')
    return lines


def _cell(cluster: Cluster, topic: str, partition: int, at: float, top: float, moved: bool, waiting: bool) -> list[str]:
    width = _width(cluster, topic, partition)
    stroke = "#222" if moved else "#888"
    style = f'stroke="{stroke}" stroke-width="{2.5 if moved else 1}"'
    if waiting:
        style = 'stroke="#888" stroke-width="1.5" stroke-dasharray="4 3"'
    return [
        f'<rect x="{at:.1f}" y="{top}" width="{width:.1f}" height="{_CELL}" rx="3" fill="{COLOURS[topic]}" {style}/>',
        f'<text x="{at + width / 2:.1f}" y="{top + 18}" text-anchor="middle">{partition}</text>',
    ]


def _legend(left: float, bottom: float) -> list[str]:
    lines = []
    for topic in TOPICS:
        lines.append(
            f'<rect x="{left}" y="{bottom - 11}" width="12" height="12" rx="2" fill="{COLOURS[topic]}" stroke="#888"/>'
        )
        lines.append(f'<text x="{left + 18}" y="{bottom}" fill="#444">{topic}</text>')
        left += 30 + 8 * len(topic)
    return lines


def main() -> None:
    """Draw all pictures."""
    TARGET.mkdir(parents=True, exist_ok=True)
    loaded = attrs.evolve(CLUSTER, lag=LAG)
    pictures: Sequence[tuple[Assignor, Cluster, int, str]] = (
        (RangeAssignor(), CLUSTER, 1, "Range: of each topic a contiguous range, equal numbers of equal topics together"),
        (RoundRobinAssignor(), CLUSTER, 1, "Round-robin: one by one in a circle, and much moves when a member comes"),
        (StickyAssignor(), CLUSTER, 1, "Sticky: the newcomer gets its share and nothing else moves"),
        (CooperativeStickyAssignor(), CLUSTER, 2, "Cooperative sticky: as sticky, in two rounds"),
        (LoadAssignor(), loaded, 2, "Load: members have about the same lag, not the same number of partitions"),
    )
    for assignor, cluster, rounds, description in pictures:
        draw(assignor.name, panels(assignor, cluster, rounds), cluster, description)
    capacities = {"A": b"1", "B": b"2", "C": b"1", "D": b"2"}
    for assignor, rounds, description in (
        (CapacityAssignor(), 1, "By capacity, assigned from scratch each time: much moves when a member joins"),
        (CooperativeCapacity(), 2, "By capacity, from what members own: the newcomer gets its share and nothing else moves"),
    ):
        draw(assignor.name, panels(assignor, CLUSTER, rounds, capacities), CLUSTER, description)


if __name__ == "__main__":
    main()
