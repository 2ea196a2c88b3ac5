"""A simulation run as data: the group, the members and the faults. A scenario is printed, shrunk, kept, and replayed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from consumer_coord.simulation.member_spec import MemberSpec


@attrs.frozen
class Fault:
    """A fault of one of the kinds in :mod:`consumer_coord.simulation.faults`.

    ``target`` and ``value`` select a member, a broker or a topic: they are divided by the number of candidates, and the
    remainder is the index. So every fault has an effect, even if other faults were removed.
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
class Fetching:
    """The logs and brokers of a simulation run as far as they concern Fetch requests, and the members' settings.

    Sizes are in bytes.
    """

    #: The newest Fetch version of each broker; empty if all brokers serve all versions.
    versions: tuple[int, ...] = ()
    #: Whether some records belong to transactions, and members read with ``isolation.level=read_committed``.
    transactions: bool = False
    #: Fetch sessions per broker (``max.incremental.fetch.session.cache.slots``).
    session_slots: int = 1_000
    #: Whether brokers are in racks, and serve Fetch as followers, too (KIP-392).
    racks: bool = False
    fetch_min_bytes: int = 1
    fetch_wait_max_ms: int = 2_000
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 1 << 20
    queued_max_messages_kbytes: int = 64 << 10

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the members' consumers."""
        return {
            "isolation.level": "read_committed" if self.transactions else "read_uncommitted",
            "fetch.min.bytes": self.fetch_min_bytes,
            "fetch.wait.max.ms": self.fetch_wait_max_ms,
            "fetch.max.bytes": self.fetch_max_bytes,
            "max.partition.fetch.bytes": self.max_partition_fetch_bytes,
            "queued.max.messages.kbytes": self.queued_max_messages_kbytes,
        }


@attrs.frozen(kw_only=True)
class Scenario:
    """The contents of one simulation run; equal scenarios have equal runs."""

    seed: int
    members: tuple[MemberSpec, ...]
    #: The assignors of members that start later or start again.
    later_assignors: tuple[str, ...]
    topics: Mapping[str, int]
    brokers: int
    faults: tuple[Fault, ...]
    faults_end_ms: int
    initial_rebalance_delay_ms: int
    latency_ms: float
    #: The setting ``group.protocol`` of members that start later or start again; None means that the protocol does not change.
    later_protocol: str | None = None
    #: None: the newest brokers, and no transactions.
    fetching: Fetching | None = attrs.field(default=None, metadata={"later": True})
    #: Whether members also make calls after the last fault, when the group is stable.
    calm_calls: bool = attrs.field(default=False, metadata={"later": True})
    #: Changes that happen after the last fault, one at a time; ``at_ms`` has no meaning.
    alone: tuple[Fault, ...] = attrs.field(default=(), metadata={"later": True})
    #: Whether the requests of the idle group are counted at last.
    idle: bool = attrs.field(default=False, metadata={"later": True})
    #: Whether the brokers subscribe to the members' metrics (KIP-714).
    metrics: bool = attrs.field(default=False, metadata={"later": True})

    @property
    def has_dead_connections(self) -> bool:
        """Whether connections lose all frames without an error, which members notice only after a time limit."""
        return any(fault.kind == "swallow" for fault in self.faults)


def to_json(scenario: Scenario) -> str:
    """Return a scenario as text, which remains valid when a change of ``drawing.py`` changes the scenario of a seed."""
    return json.dumps(attrs.asdict(scenario, filter=_is_written), indent=1)


def _is_written(attribute: attrs.Attribute[Any], value: Any) -> bool:
    """Omit an attribute that was added later and has the default, so that the text of an older scenario remains unchanged."""
    return not attribute.metadata.get("later") or value != attribute.default


def from_json(text: str) -> Scenario:
    """Return the scenario that :func:`to_json` wrote."""
    data = json.loads(text)
    for spec in data["members"]:
        # The longest call of a data plane that is no longer simulated.
        spec.pop("call_ms", None)
    specs = [
        MemberSpec(**{**spec, "topics": tuple(spec["topics"]), "assignors": tuple(spec["assignors"])})
        for spec in data.pop("members")
    ]
    faults = tuple(Fault(**fault) for fault in data.pop("faults"))
    alone = tuple(Fault(**fault) for fault in data.pop("alone", ()))
    later = tuple(data.pop("later_assignors"))
    fetching = data.pop("fetching", None)
    if fetching is not None:
        fetching = Fetching(**{**fetching, "versions": tuple(fetching["versions"])})
    return Scenario(members=tuple(specs), faults=faults, alone=alone, later_assignors=later, fetching=fetching, **data)
