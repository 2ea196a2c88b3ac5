"""Results that are kept in a file, one line for each measurement, and rounds in which clients run in turns."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.table import number


class Results:
    """The file of results. A run that was interrupted continues where the file ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: (row, case, client) -> figures of the rounds.
        self._found: dict[tuple[str, str, str], list[Mapping[str, float]]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                one = json.loads(line)
                self._found.setdefault((one["row"], one["case"], one["client"]), []).append(one["figures"])

    def add(self, row: str, case: str, client: str, figures: Mapping[str, float]) -> None:
        """Keep a measurement."""
        self._found.setdefault((row, case, client), []).append(figures)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            print(json.dumps({"row": row, "case": case, "client": client, "figures": figures, "at": time.time()}), file=file)

    def rounds(self, row: str, case: str, client: str) -> Sequence[Mapping[str, float]]:
        """Return the figures of each round."""
        return self._found.get((row, case, client), ())

    def complete(
        self,
        row: str,
        case: str,
        clients: Sequence[str],
        rounds: int,
        measure: Callable[[str], Mapping[str, float]],
    ) -> None:
        """Measure the rounds that are missing. The clients run in turns, and their order changes in each round."""
        while (turn := min((len(self.rounds(row, case, one)) for one in clients), default=rounds)) < rounds:
            for client in clients if turn % 2 else clients[::-1]:
                if len(self.rounds(row, case, client)) == turn:
                    figures = measure(client)
                    self.add(row, case, client, figures)
                    shown = ", ".join(f"{name} {number(value)}" for name, value in figures.items())
                    print(f"{row}, {case}, {client}: {shown}", file=sys.stderr, flush=True)
