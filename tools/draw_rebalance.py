"""Draw the pictures of docs/protocols.md: ``python -m tools.draw_rebalance``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import attrs

TARGET = Path(__file__).parents[1] / "docs" / "img"
LINES = ("D (new)", "B, C", "A (leader)", "coordinator")

_FIRST, _APART, _TOP, _STEP, _WIDTH = 80, 200, 50, 34, 760
_COLOURS = {"ask": "#1f4e79", "answer": "#7a5200", "own": "#2e6b34"}


@attrs.frozen
class Message:
    """An arrow from one line to another, or, if ``to`` is None, an action on one line."""

    of: str
    to: str | None
    text: str
    answers: bool = False


@attrs.frozen
class State:
    """The group's state from here on."""

    name: str


Step = Message | State

COOPERATIVE: Sequence[Step] = (
    State("Stable"),
    Message("D (new)", "coordinator", "JoinGroup"),
    Message("coordinator", "D (new)", "MEMBER_ID_REQUIRED", answers=True),
    Message("D (new)", "coordinator", "JoinGroup"),
    State("PreparingRebalance"),
    Message("B, C", "coordinator", "Heartbeat"),
    Message("coordinator", "B, C", "REBALANCE_IN_PROGRESS", answers=True),
    Message("B, C", "coordinator", "JoinGroup: owned (they read on)"),
    Message("A (leader)", "coordinator", "JoinGroup: owned"),
    State("CompletingRebalance"),
    Message("coordinator", "A (leader)", "members, generation 8", answers=True),
    Message("A (leader)", None, "assign, check"),
    Message("A (leader)", "coordinator", "SyncGroup: the plan"),
    State("Stable"),
    Message("coordinator", "B, C", "less than they own", answers=True),
    Message("coordinator", "D (new)", "nothing yet", answers=True),
    Message("B, C", None, "commit, revoke"),
    Message("B, C", "coordinator", "JoinGroup, at once"),
    State("PreparingRebalance … Stable, as before"),
    Message("coordinator", "D (new)", "its partitions, generation 9", answers=True),
)

EAGER: Sequence[Step] = (
    State("Stable"),
    Message("D (new)", "coordinator", "JoinGroup"),
    State("PreparingRebalance"),
    Message("coordinator", "B, C", "REBALANCE_IN_PROGRESS", answers=True),
    Message("B, C", None, "poll: revoke all"),
    Message("B, C", "coordinator", "JoinGroup: nothing owned"),
    Message("A (leader)", None, "poll: revoke all"),
    Message("A (leader)", "coordinator", "JoinGroup: nothing owned"),
    State("CompletingRebalance"),
    Message("coordinator", "A (leader)", "members, generation 8", answers=True),
    Message("A (leader)", None, "assign, check"),
    Message("A (leader)", "coordinator", "SyncGroup: the plan"),
    State("Stable"),
    Message("coordinator", "B, C", "their partitions", answers=True),
    Message("coordinator", "D (new)", "its partitions", answers=True),
)


def draw(steps: Sequence[Step]) -> str:
    """Return the picture as SVG."""
    height = _TOP + (len(steps) + 1) * _STEP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            *_life_lines(height),
            *(line for number, step in enumerate(steps) for line in _drawn(step, _TOP + (number + 1) * _STEP)),
            "</svg>\n",
        ]
    )


def _x(name: str) -> int:
    return _FIRST + LINES.index(name) * _APART


def _life_lines(height: int) -> Iterator[str]:
    for name in LINES:
        yield f'<text x="{_x(name)}" y="28" text-anchor="middle" font-weight="bold">{escape(name)}</text>'
        yield f'<line x1="{_x(name)}" x2="{_x(name)}" y1="38" y2="{height - 12}" stroke="#bbb"/>'


def _drawn(step: Step, y: int) -> Iterator[str]:
    if isinstance(step, State):
        yield f'<line x1="12" x2="{_WIDTH - 12}" y1="{y}" y2="{y}" stroke="#ddd" stroke-dasharray="3 3"/>'
        place = f'x="{_WIDTH - 14}" y="{y - 4}" text-anchor="end"'
        yield f'<text {place} fill="#666" font-style="italic">{escape(step.name)}</text>'
        return
    start = _x(step.of)
    if step.to is None:
        yield f'<rect x="{start - 62}" y="{y - 14}" width="124" height="20" rx="4" fill="#e5f2e6" stroke="{_COLOURS["own"]}"/>'
        yield f'<text x="{start}" y="{y}" text-anchor="middle" fill="{_COLOURS["own"]}">{escape(step.text)}</text>'
        return
    end = _x(step.to)
    colour = _COLOURS["answer" if step.answers else "ask"]
    dash = ' stroke-dasharray="5 3"' if step.answers else ""
    back = 7 if end < start else -7
    yield f'<line x1="{start}" x2="{end}" y1="{y}" y2="{y}" stroke="{colour}"{dash}/>'
    yield f'<path d="M{end} {y} l{back} -4 v8 z" fill="{colour}"/>'
    yield f'<text x="{min(start, end) + 8}" y="{y - 5}" fill="{colour}">{escape(step.text)}</text>'


def main() -> None:
    """Write both pictures."""
    for name, steps in (("cooperative", COOPERATIVE), ("eager", EAGER)):
        (TARGET / f"rebalance-{name}.svg").write_text(draw(steps))


if __name__ == "__main__":
    main()
