"""The assignors of this package."""

from collections.abc import Mapping

from assignors.base import Assignor
from assignors.cooperative_sticky import CooperativeStickyAssignor
from assignors.load_aware import LoadAssignor
from assignors.range import RangeAssignor
from assignors.round_robin import RoundRobinAssignor
from assignors.sticky import StickyAssignor

#: The built-in assignors by their names in JoinGroup. Register a new assignor here.
BUILT_IN: Mapping[str, type[Assignor]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor, LoadAssignor)
}
