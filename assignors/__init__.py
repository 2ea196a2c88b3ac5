"""Partition assignors for Kafka consumer groups: pure functions from subscriptions to a plan."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol
    from assignors.built_in import BUILT_IN
    from assignors.cooperative_sticky import CooperativeStickyAssignor
    from assignors.load_aware import LoadAssignor
    from assignors.range import RangeAssignor
    from assignors.round_robin import RoundRobinAssignor
    from assignors.sticky import StickyAssignor
    from assignors.subscriptions import InvalidInputError
    from assignors.verification import InvalidPlanError, verify

#: Imported on first use, because a consumer needs only its configured assignors.
_HOMES = {
    "BUILT_IN": "built_in",
    "Assignor": "base",
    "Cluster": "base",
    "CooperativeStickyAssignor": "cooperative_sticky",
    "InvalidInputError": "subscriptions",
    "InvalidPlanError": "verification",
    "LoadAssignor": "load_aware",
    "Member": "base",
    "Plan": "base",
    "RangeAssignor": "range",
    "RebalanceProtocol": "base",
    "RoundRobinAssignor": "round_robin",
    "StickyAssignor": "sticky",
    "verify": "verification",
}

__all__ = [
    "BUILT_IN",
    "Assignor",
    "Cluster",
    "CooperativeStickyAssignor",
    "InvalidInputError",
    "InvalidPlanError",
    "LoadAssignor",
    "Member",
    "Plan",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
