"""A small scenario with chosen contents, instead of random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from consumer_coord.simulation.member_spec import MemberSpec
from consumer_coord.simulation.scenario import Fault, Scenario

_PLAIN = MemberSpec(name="", commit="sync", commit_every_ms=400, protocol="consumer", batch=50)


def history(
    *faults: Fault,
    members: int = 2,
    later: str | None = None,
    topics: Sequence[int] = (4,),
    brokers: int = 1,
    **spec: Any,
) -> Scenario:
    """Return a scenario with members of one kind, topics with these numbers of partitions, and these faults."""
    named = {f"topic-{number}": partitions for number, partitions in enumerate(topics)}
    model = attrs.evolve(_PLAIN, topics=tuple(named), **spec)
    static = model.instance_id is not None
    names = [f"member-{number + 1}" for number in range(members)]
    return Scenario(
        seed=1,
        members=tuple(attrs.evolve(model, name=name, instance_id=f"instance-of-{name}" if static else None) for name in names),
        later_assignors=model.assignors,
        topics=named,
        brokers=brokers,
        faults=faults,
        faults_end_ms=max([8_000, *(fault.at_ms + fault.for_ms + 1_000 for fault in faults)]),
        initial_rebalance_delay_ms=0,
        latency_ms=0.5,
        later_protocol=later,
    )
