"""Pictures of groups' states, drawn from the tables of transitions: ``python -m consumer_coord.broker.state_diagram``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from consumer_coord.broker.consumer_group.group import TRANSITIONS as CONSUMER_TRANSITIONS
from consumer_coord.broker.consumer_group.group import ConsumerGroupState
from consumer_coord.broker.group import TRANSITIONS, GroupState

S = TypeVar("S", bound=Enum)


def mermaid() -> str:
    """The states of a classic group in Mermaid's language; that a dead group may die again is left out."""
    return _diagram(TRANSITIONS, GroupState.EMPTY, GroupState.DEAD)


def consumer_mermaid() -> str:
    """The states of a group of the consumer protocol in Mermaid's language."""
    return _diagram(CONSUMER_TRANSITIONS, ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)


def _diagram(transitions: Mapping[tuple[S, S], str], first: S, last: S) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
    for (source, target), reason in transitions.items():
        if source is not target:
            lines.append(f"    {source.value} --> {target.value}: {reason.replace(';', ',').replace(':', ',')}")
    lines.append(f"    {last.value} --> [*]")
    return "\n".join(lines)


if __name__ == "__main__":
    print(mermaid())
    print()
    print(consumer_mermaid())
