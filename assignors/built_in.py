"""The assignors of this package."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from assignors.base import Assignor

#: The name in JoinGroup -> the module and the class. Register a new assignor here.
_HOMES = {
    "range": ("range", "RangeAssignor"),
    "roundrobin": ("round_robin", "RoundRobinAssignor"),
    "sticky": ("sticky", "StickyAssignor"),
    "cooperative-sticky": ("cooperative_sticky", "CooperativeStickyAssignor"),
    "load": ("load_aware", "LoadAssignor"),
}


class _BuiltIn(Mapping[str, type[Assignor]]):
    """A mapping that imports an assignor when it is first looked up, because a consumer needs only its configured assignors."""

    def __getitem__(self, name: str) -> type[Assignor]:
        module, class_name = _HOMES[name]
        found: type[Assignor] = getattr(import_module(f"assignors.{module}"), class_name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


#: The built-in assignors by their names in JoinGroup.
BUILT_IN: Mapping[str, type[Assignor]] = _BuiltIn()
