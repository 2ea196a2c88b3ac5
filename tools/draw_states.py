"""Draw the diagrams of states in the documentation from the tables of transitions: ``python -m tools.draw_states``.

A diagram follows a line ``<!-- states: NAME -->`` and replaces the previous diagram. With ``--check`` nothing is written, and
the exit code is 1 when a page does not match its table.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from consumer_coord.broker.classic_group import TRANSITIONS as CLASSIC_GROUP
from consumer_coord.broker.classic_group import GroupState
from consumer_coord.broker.consumer_group.group import TRANSITIONS as CONSUMER_GROUP
from consumer_coord.broker.consumer_group.group import ConsumerGroupState
from consumer_coord.consumer.partitions import TRANSITIONS as PARTITION
from consumer_coord.consumer.partitions import Phase
from consumer_coord.group.classic_protocol.membership import TRANSITIONS as MEMBER
from consumer_coord.group.classic_protocol.membership import Intent, MemberState

DOCS = Path(__file__).parents[1] / "docs"

S = TypeVar("S", bound=Enum)


def group_diagram(transitions: Mapping[tuple[S, S], str], first: S, last: S) -> str:
    """Draw a group's states in Mermaid's language, from ``(state, next state) -> reason``, without steps to the same state."""
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
    for (source, target), reason in transitions.items():
        if source is not target:
            lines.append(f"    {source.value} --> {target.value}: {reason.replace(';', ',').replace(':', ',')}")
    lines.append(f"    {last.value} --> [*]")
    return "\n".join(lines)


def member_diagram(kind: type[Enum], first: Enum, last: Enum | None = None) -> str:
    """Draw one kind of a member's states, from ``event -> state -> next state``; events between two states share an arrow."""
    arrows: dict[tuple[Enum, Enum], list[str]] = {}
    for event, rows in MEMBER.items():
        for source, target in rows.items():
            if isinstance(source, kind) and source is not target:
                arrows.setdefault((source, target), []).append(event.value)
    lines = ["stateDiagram-v2", f"    [*] --> {_name(first)}"]
    order = list(kind)
    for before, after in sorted(arrows, key=lambda arrow: (order.index(arrow[0]), order.index(arrow[1]))):
        lines.append(f"    {_name(before)} --> {_name(after)}: {', '.join(arrows[before, after])}")
    if last is not None:
        lines.append(f"    {_name(last)} --> [*]")
    return "\n".join(lines)


def partition_diagram() -> str:
    """Draw the phases of an assigned partition, from ``event -> phase -> next phase``; None means not assigned."""
    arrows: dict[tuple[Phase | None, Phase | None], list[str]] = {}
    for event, row in PARTITION.items():
        for source, target in row.items():
            if (target is None or isinstance(target, Phase)) and source is not target:
                arrows.setdefault((source, target), []).append(event.value)
    order = [None, *Phase]
    lines = ["stateDiagram-v2"]
    for before, after in sorted(arrows, key=lambda arrow: (order.index(arrow[0]), order.index(arrow[1]))):
        names = ["[*]" if phase is None else _name(phase) for phase in (before, after)]
        lines.append(f"    {names[0]} --> {names[1]}: {', '.join(arrows[before, after])}")
    return "\n".join(lines)


def _name(state: Enum) -> str:
    return "".join(word.capitalize() for word in str(state.value).split())


#: name -> (page, function that draws it).
DIAGRAMS: Mapping[str, tuple[Path, Callable[[], str]]] = {
    "member": (DOCS / "design.md", lambda: member_diagram(MemberState, MemberState.UNJOINED)),
    "intent": (DOCS / "design.md", lambda: member_diagram(Intent, Intent.UNSUBSCRIBED, Intent.CLOSED)),
    "partition": (DOCS / "design.md", partition_diagram),
    "classic group": (
        DOCS / "embedded-kafka.md",
        lambda: group_diagram(CLASSIC_GROUP, GroupState.EMPTY, GroupState.DEAD),
    ),
    "consumer group": (
        DOCS / "embedded-kafka.md",
        lambda: group_diagram(CONSUMER_GROUP, ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD),
    ),
}


def drawn(name: str, text: str) -> str:
    """Return the ``text`` of a page with the diagram ``name`` replaced; raise an error if the page has no place for it."""
    marker = f"<!-- states: {name} -->"
    picture = f"{marker}\n```mermaid\n{DIAGRAMS[name][1]()}\n```"
    result, places = re.subn(rf"{re.escape(marker)}\n```mermaid\n.*?\n```", lambda _: picture, text, flags=re.DOTALL)
    if places != 1:
        raise LookupError(f"{marker} and a mermaid block must occur once in {DIAGRAMS[name][0].name}, not {places} times")
    return result


def main() -> int:
    """Draw the diagrams, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a page does not match its table")
    check = parser.parse_args().check
    behind = []
    for name, (page, _) in DIAGRAMS.items():
        before = page.read_text()
        after = drawn(name, before)
        if after != before:
            behind.append(name)
            if not check:
                page.write_text(after)
    if behind:
        print(f"{'behind' if check else 'drawn'}: {', '.join(behind)}")
    return 1 if check and behind else 0


if __name__ == "__main__":
    sys.exit(main())
