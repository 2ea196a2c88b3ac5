"""The picture of a group's states, drawn from the table of transitions: ``python -m consumer_coord.broker.state_diagram``."""

from __future__ import annotations

from consumer_coord.broker.group import TRANSITIONS, GroupState


def mermaid() -> str:
    """The diagram in Mermaid's language; that a dead group may die again is left out."""
    lines = ["stateDiagram-v2", f"    [*] --> {GroupState.EMPTY.value}"]
    for (source, target), reason in TRANSITIONS.items():
        if source is not target:
            lines.append(f"    {source.value} --> {target.value}: {reason.replace(';', ',')}")
    lines.append(f"    {GroupState.DEAD.value} --> [*]")
    return "\n".join(lines)


if __name__ == "__main__":
    print(mermaid())
