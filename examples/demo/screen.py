"""Show the demo: as a live table in a terminal, otherwise as lines."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.console import Group as Rows
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.demo.group import MemberProcess
from examples.demo.ledger import Ledger

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red", "white")


class Screen(Protocol):
    """The output of the demo."""

    def event(self, text: str) -> None:
        """Show an event."""

    def update(self, members: list[MemberProcess], ledger: Ledger, produced: int) -> None:
        """Show the current state. Called a few times a second."""

    def close(self) -> None:
        """End the output, because the summary is printed next."""


def screen() -> Screen:
    """Return the live table if the output is a terminal, otherwise lines."""
    return LiveScreen() if sys.stdout.isatty() else PlainScreen()


def compact(partitions: list[int]) -> str:
    """Return partition numbers as ranges, such as ``0-3 7 9-11``."""
    parts: list[str] = []
    start = previous = -2
    for partition in [*partitions, -9]:
        if partition == previous + 1:
            previous = partition
            continue
        if start >= 0:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = partition
    return " ".join(parts)


class PlainScreen:
    """Output of one line for each event, and of the state every few seconds."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._next = 0.0

    def event(self, text: str) -> None:
        """Print an event with the seconds since the start."""
        print(f"{time.monotonic() - self._started:5.1f} s  {text}", flush=True)

    def update(self, members: list[MemberProcess], ledger: Ledger, produced: int) -> None:
        """Print the state every five seconds."""
        moment = time.monotonic()
        if moment >= self._next:
            self._next = moment + 5
            shares = ", ".join(
                f"{member.name}: {compact(ledger.owned_by(member.name)) or 'none'}" for member in members if member.alive
            )
            rate = sum(member.per_second(moment) for member in members)
            self.event(f"lag {produced - ledger.distinct:,}, {rate:,.0f} orders/s, owned: {shares}")

    def close(self) -> None:
        """Do nothing: lines need no end."""


class LiveScreen:
    """A table that changes in place, with the latest events below it."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()
        self._events: list[str] = []
        self._started = time.monotonic()

    def event(self, text: str) -> None:
        """Show an event among the last eight."""
        self._events = [*self._events, f"{time.monotonic() - self._started:5.1f} s  {text}"][-8:]

    def update(self, members: list[MemberProcess], ledger: Ledger, produced: int) -> None:
        """Draw the table again."""
        moment = time.monotonic()
        table = Table(title=f"group of orders: {produced:,} produced, lag {produced - ledger.distinct:,}", expand=True)
        for heading in ("member", "capacity", "state", "generation", "owns", "orders/s", "processed"):
            table.add_column(heading, justify="right" if heading in ("orders/s", "processed") else "left")
        for index, member in enumerate(members):
            owned = ledger.owned_by(member.name)
            table.add_row(
                member.name,
                str(member.capacity),
                member.state,
                str(member.generation) if member.generation >= 0 else "",
                f"{len(owned):2} of {ledger.partitions}: {compact(owned)}" if owned else "",
                f"{member.per_second(moment):,.0f}",
                f"{member.processed:,}",
                style=_COLOURS[index % len(_COLOURS)] if member.alive else "dim",
            )
        strip = Text("partitions ")
        names = [member.name for member in members]
        for partition in range(ledger.partitions):
            owner = ledger.owner.get(partition)
            if owner is None:
                strip.append("·")
            else:
                strip.append("█", _COLOURS[names.index(owner) % len(_COLOURS)])
        self._live.update(Rows(table, strip, Text("\n".join(self._events))), refresh=True)

    def close(self) -> None:
        """Stop drawing, and leave the last table on the screen."""
        self._live.stop()
