"""The assignors of this package."""

from collections.abc import Iterator, Mapping

import assignors
from assignors.base import Assignor

#: The name in JoinGroup -> the class in the package. Register a new assignor here.
_CLASSES = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
    "load": "LoadAssignor",
}


class _BuiltIn(Mapping[str, type[Assignor]]):
    """A mapping that imports an assignor when it is first looked up, because a consumer needs only its configured assignors."""

    def __getitem__(self, name: str) -> type[Assignor]:
        found: type[Assignor] = getattr(assignors, _CLASSES[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


#: The built-in assignors by their names in JoinGroup.
BUILT_IN: Mapping[str, type[Assignor]] = _BuiltIn()
