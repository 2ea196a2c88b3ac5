"""One history as data: the group, its members, the faults. A scenario is printed, shrunk, kept, and replayed."""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from consumer_coord.simulation.member_spec import MemberSpec


@attrs.frozen
class Fault:
    """A fault of one of the kinds in :mod:`consumer_coord.simulation.faults`.

    ``target`` and ``value`` pick a member, a broker, or a topic by remainder, so that every fault has an effect whatever the
    others did.
    """

    at_ms: int
    kind: str
    target: int = 0
    value: int = 0
    for_ms: int = 0

    def __str__(self) -> str:
        during = f" for {self.for_ms} ms" if self.for_ms else ""
        return f"{self.at_ms:>7} ms  {self.kind} target={self.target} value={self.value}{during}"


@attrs.frozen(kw_only=True)
class Scenario:
    """The contents of one history; equal scenarios have equal histories."""

    seed: int
    members: tuple[MemberSpec, ...]
    #: The assignors of members that start later, or again.
    later_assignors: tuple[str, ...]
    topics: Mapping[str, int]
    brokers: int
    faults: tuple[Fault, ...]
    faults_end_ms: int
    initial_rebalance_delay_ms: int
    latency_ms: float
    #: The setting ``group.protocol`` of members that start later, or again; None: unchanged.
    later_protocol: str | None = None


def to_json(scenario: Scenario) -> str:
    """Return a scenario as text, to keep one that failed: a seed means another history when the drawing changes."""
    return json.dumps(attrs.asdict(scenario), indent=1)


def from_json(text: str) -> Scenario:
    """Return the scenario that :func:`to_json` wrote."""
    data = json.loads(text)
    specs = [
        MemberSpec(**{**spec, "topics": tuple(spec["topics"]), "assignors": tuple(spec["assignors"])})
        for spec in data.pop("members")
    ]
    faults = tuple(Fault(**fault) for fault in data.pop("faults"))
    later = tuple(data.pop("later_assignors"))
    return Scenario(members=tuple(specs), faults=faults, later_assignors=later, **data)
