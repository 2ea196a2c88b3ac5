"""What members say about the records that they handle, in a file each.

A line ``+ key partition offset`` says that a handler begins, ``-`` that it has ended well, ``x`` that it has failed. Lines with
``!`` say something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

#: A record: its partition and its offset.
Place = tuple[int, int]


@attrs.frozen
class Handled:
    """The file of one member."""

    file: Path

    def lines(self) -> Iterator[tuple[str, str, Place]]:
        """Yield whether a handler began or ended, the key, and the record; not a line that a kill has cut off."""
        for line in self._complete():
            if not line.startswith("!"):
                sign, key, partition, offset = line.split()
                yield sign, key, (int(partition), int(offset))

    def notes(self) -> Iterator[str]:
        """Yield the lines of the other kind, without their sign."""
        yield from (line[2:].strip() for line in self._complete() if line.startswith("!"))

    def ended(self) -> Counter[Place]:
        """Return how often each record's handler ended."""
        return Counter(place for sign, _, place in self.lines() if sign == "-")

    def _complete(self) -> Iterator[str]:
        for line in self.file.read_text().splitlines(keepends=True) if self.file.exists() else ():
            if line.endswith("\n"):
                yield line


def handled_by(files: Sequence[Handled]) -> int:
    """Return how many records have been handled."""
    return len({place for file in files for place in file.ended()})


def out_of_order(files: Sequence[Handled]) -> Iterator[str]:
    """Yield each record that began beside, or after, a later record of its key in one member; ``~`` stands for no key."""
    for file in files:
        running: set[str] = set()
        last: dict[str, Place] = {}
        for sign, key, place in file.lines():
            if key == "~":
                continue
            if sign != "+":
                running.discard(key)
                continue
            if key in running:
                yield f"{file.file.name}: {key} has two handlers at {place}"
            if place < last.get(key, (0, -1)):
                yield f"{file.file.name}: {key} goes back from {last[key]} to {place}"
            running.add(key)
            last[key] = place
