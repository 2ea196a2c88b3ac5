"""Run assignors of the package ``assignors``, and your own assignors, in the broker."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Mapping, Sequence

from assignors import BUILT_IN
from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol
from assignors.verification import InvalidPlanError, verify, violations
from consumer_coord.broker.consumer_group.assignors.range import RangeAssignor
from consumer_coord.broker.consumer_group.assignors.spec import AssignorFailedError, GroupSpec, ServerAssignor
from consumer_coord.broker.consumer_group.assignors.uniform import UniformAssignor
from consumer_coord.broker.consumer_group.member import Partitions
from consumer_coord.errors import ConfigurationError

_SERVER_SIDE: Mapping[str, Callable[[], ServerAssignor]] = {"uniform": UniformAssignor, "range": RangeAssignor}
#: The built-in assignors without a server-side implementation. Assignors that need metrics are excluded, because a broker has
#: no metrics.
_PACKAGE: Mapping[str, Callable[[], Assignor]] = {
    name: assignor for name, assignor in BUILT_IN.items() if name not in _SERVER_SIDE and not assignor().needs
}


class PythonAssignor:
    """Lets an :class:`~assignors.base.Assignor` assign for the broker.

    The assignor receives the members as if they had sent JoinGroup: the owned partitions are the member's target, and the user
    data is the data that the member's assignor would send. A cooperative assignor omits partitions that change owners. But the
    broker itself does the hand-over, so the assignor runs a second time, as in the second round of a cooperative rebalance.
    """

    def __init__(self, make: Callable[[], Assignor]) -> None:
        self._make = make
        self._assignor = make()
        self.name: str = self._assignor.name

    def assign(self, spec: GroupSpec) -> Mapping[str, Partitions]:
        """Return a plan; raise :class:`AssignorFailedError` if the assignor raises an exception or returns an invalid plan."""
        names = {topic_id: name for member in spec.members.values() for topic_id, name in member.topics.items()}
        ids = {name: topic_id for topic_id, name in names.items()}
        cluster = Cluster(
            {name: spec.partitions[topic_id] for topic_id, name in names.items()},
            {name: spec.racks[topic_id] for topic_id, name in names.items() if spec.racks.get(topic_id)},
        )
        owned = {
            member_id: {names[topic_id]: sorted(numbers) for topic_id, numbers in member.target.items() if topic_id in names}
            for member_id, member in spec.members.items()
        }
        try:
            plan = self._assignor.assign(cluster, self._members(spec, owned))
            if any(violations(cluster, self._members(spec, owned), plan, RebalanceProtocol.EAGER)):
                plan = self._assignor.assign(cluster, self._members(spec, plan))
            verify(cluster, self._members(spec, plan), plan)
        except InvalidPlanError as error:
            raise AssignorFailedError(f"{self.name}: {error}") from error
        except Exception as error:  # User code may raise any error; the broker must continue.
            raise AssignorFailedError(f"{self.name} failed: {error!r}") from error
        return {member_id: _by_id(topics, ids) for member_id, topics in plan.items()}

    def _members(self, spec: GroupSpec, owned: Plan) -> Mapping[str, Member]:
        members = {}
        for member_id, member in spec.members.items():
            topics = list(member.topics.values())
            mine = owned.get(member_id, {})
            own = self._make()
            if mine:
                own.on_assignment(mine, spec.epoch)
            members[member_id] = Member(
                topics, mine, spec.epoch if mine else -1, member.instance_id, member.rack_id, own.user_data(topics)
            )
        return members


def _by_id(topics: Mapping[str, Sequence[int]], ids: Mapping[str, uuid.UUID]) -> Partitions:
    return {ids[name]: frozenset(numbers) for name, numbers in topics.items() if numbers}


def load_server_assignors(names: Sequence[str]) -> Mapping[str, ServerAssignor]:
    """Return name -> assignor for ``group.consumer.assignors``, with the default assignor first.

    ``uniform`` and ``range`` are Kafka's assignors; the other names are those of the package ``assignors``, and
    ``module:Class`` is any :class:`~assignors.base.Assignor`. Raise :class:`~consumer_coord.errors.ConfigurationError` for an
    invalid list.
    """
    loaded: dict[str, ServerAssignor] = {}
    for name in names:
        assignor = _load(name)
        if assignor.name in loaded:
            raise ConfigurationError(f"group.consumer.assignors: two assignors have the name {assignor.name}")
        loaded[assignor.name] = assignor
    if not loaded:
        raise ConfigurationError("group.consumer.assignors names no assignor")
    return loaded


def _load(name: str) -> ServerAssignor:
    if name in _SERVER_SIDE:
        return _SERVER_SIDE[name]()
    if name in _PACKAGE:
        return PythonAssignor(_PACKAGE[name])
    module, _, attribute = name.partition(":")
    if not attribute:
        known = ", ".join((*_SERVER_SIDE, *_PACKAGE))
        raise ConfigurationError(
            f"group.consumer.assignors: {name} is not one of {known}; name your own assignor as module:Class"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"group.consumer.assignors: {name} cannot be loaded: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Assignor)):
        raise ConfigurationError(f"group.consumer.assignors: {name} is not a subclass of assignors.Assignor")
    if found.needs:
        raise ConfigurationError(
            f"group.consumer.assignors: {name} needs {' and '.join(sorted(found.needs))}, but a broker has no lag or weights;"
            " use the assignor in clients (group.protocol=classic)"
        )
    return PythonAssignor(found)
