"""One run of a program as data: the seed, the number of processes, and the faults. It is drawn, shrunk, and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import attrs

from consumer_coord.errors import ConfigurationError
from consumer_coord.simulation.scenario import Fault

#: When the last fault begins at the latest, and when the last record is written, in milliseconds after ``world.run``.
_LAST_MS: Final = 30_000
WRITTEN_MS: Final = 40_000
#: The most faults of a run.
_MOST: Final = 6


@attrs.frozen
class Kind:
    """What a fault does, in words, and how long it may last, in milliseconds."""

    what: str
    lasts_ms: Sequence[int]


#: Longer than a session (45 s) and shorter than one, because both matter.
_PAUSES: Final = (500, 4_000, 12_000, 60_000)
#: When faults of a process begin: at their time, or at an event of any process soon after it, because most of what can go wrong
#: goes wrong there.
MOMENTS: Final = ("at its time", "handles", "has handled", "committed")
KINDS: Final = {
    "kill": Kind("a process is killed (SIGKILL), and starts again after the duration", (200, 1_000, 5_000)),
    "stop": Kind("a process gets SIGTERM, is killed 30 s later, and starts again after the duration", (200, 1_000, 5_000)),
    "suspend": Kind("a process stands still", _PAUSES),
    "scale": Kind("another process runs, until it gets SIGTERM", (3_000, 10_000, 20_000)),
    "lag": Kind("frames between a process and a broker take longer", (1_000, 5_000, 15_000)),
    "cut-off": Kind("no frame passes between a process and any broker", _PAUSES),
    "deaf": Kind("no frame of one broker reaches a process", (1_000, 5_000, 15_000)),
    "reset": Kind("all connections of a process end", (0,)),
    "broker-kill": Kind("a broker crashes, and starts again after the duration", (500, 5_000, 15_000)),
    "broker-suspend": Kind("a broker stands still", (500, 5_000, 15_000)),
    "move": Kind("another broker coordinates the group", (0,)),
    "full": Kind("the brokers accept no commits", (1_000, 5_000)),
}


@attrs.frozen(kw_only=True)
class ProgramSpec:
    """The contents of one run; equal ones have equal runs."""

    seed: int
    processes: int
    faults: tuple[Fault, ...]

    @property
    def faults_end_ms(self) -> int:
        """When all faults are over, and all records are written, in milliseconds after ``world.run``."""
        return max([WRITTEN_MS, *(fault.at_ms + fault.for_ms for fault in self.faults)])

    def __str__(self) -> str:
        """Return the form that :func:`parse` reads."""
        faults = [f"{one.kind}@{one.at_ms}/{one.target}/{one.value}/{one.for_ms}" for one in self.faults]
        return ",".join([str(self.seed), f"processes={self.processes}", *faults])


def parse(text: str) -> ProgramSpec:
    """Return the run that a replay line names; raise :class:`~consumer_coord.errors.ConfigurationError`."""
    try:
        seed, processes, *faults = text.split(",")
        found = []
        for fault in faults:
            kind, _, numbers = fault.partition("@")
            at_ms, target, value, for_ms = map(int, numbers.split("/"))
            found.append(Fault(at_ms, kind, target, value, for_ms))
            if kind not in KINDS:
                raise ValueError(kind)
        return ProgramSpec(seed=int(seed), processes=int(processes.removeprefix("processes=")), faults=tuple(found))
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is no simulated run: copy it from the report of the failed test") from error


def kinds_of(faults: str | Sequence[str]) -> tuple[str, ...]:
    """Return the kinds that ``faults`` names: "all", "none", or a list; raise ``ValueError`` for an unknown name."""
    if faults == "all":
        return tuple(KINDS)
    if faults == "none":
        return ()
    names = (faults,) if isinstance(faults, str) else tuple(faults)
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise ValueError(f'faults must be "all", "none", or some of {", ".join(KINDS)}, not {unknown[0]!r}')
    return names


def draw(seed: int, processes: int, kinds: Sequence[str]) -> ProgramSpec:
    """Draw the run of a seed."""
    random = Random(f"{seed}-faults")
    faults = []
    for _ in range(random.randint(1, _MOST) if kinds else 0):
        kind = random.choice(kinds)
        lasts_ms = random.choice(KINDS[kind].lasts_ms)
        faults.append(
            Fault(
                random.randint(200, _LAST_MS),
                kind,
                random.randrange(12),
                random.randrange(200),
                int(lasts_ms * random.uniform(0.7, 1.3)),
            )
        )
    return ProgramSpec(seed=seed, processes=processes, faults=tuple(sorted(faults, key=lambda one: one.at_ms)))
