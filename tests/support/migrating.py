"""``consumer-coord migrate --watch`` as a process, with the lines that it has printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from consumer_coord.testing.processes import end, spawn
from tests.support.waiting import eventually


class Watching:
    """The command, from the start of the ``with`` block to its end."""

    def __init__(self, directory: Path, servers: str, group: str, *flags: str) -> None:
        self._out = directory / f"{group}-{'-'.join(flags)}.out".replace("/", "_")
        command = ["-m", "consumer_coord", "migrate", group, "--watch", "--json", "--bootstrap-server", servers, *flags]
        with self._out.open("wb") as output:
            self.process = spawn([sys.executable, *command], stdout=output, stderr=output)

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        end(self.process)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The complete lines so far."""
        text = self._out.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    @property
    def answered(self) -> list[dict[str, Any]]:
        """The lines without those that say that a coordinator did not answer, as may happen on a busy machine."""
        return [one for one in self.lines if "error" not in one]

    def await_settled(self, moved: int, members: int, *, step: Callable[[], object] | None = None) -> dict[str, Any]:
        """Wait until the last line says that so many members have moved and the next one may be restarted; return the line."""

        def settled() -> dict[str, Any] | None:
            last = self.lines[-1] if self.lines else {}
            is_so = (last.get("moved"), last.get("members"), last.get("wait")) == (moved, members, None)
            return last if is_so and "error" not in last else None

        what = f"{moved} of {members} members that have moved"
        found = eventually(settled, what, step=step, shows=lambda: "\n".join(map(str, self.lines[-10:])))
        assert found is not None
        return found
