"""Assignors by name: built-in assignors, those of installed packages, and ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from assignors import BUILT_IN
from assignors.base import Assignor, RebalanceProtocol
from consumer_coord.config import Config
from consumer_coord.errors import ConfigurationError
from consumer_coord.setting_names import did_you_mean
from consumer_coord.settings import CONSUMER

ENTRY_POINT_GROUP = "consumer_coord.assignors"


def load_assignors(strategy: Iterable[str]) -> tuple[Assignor, ...]:
    """Return the assignors for names: built-in, of an installed package (entry point), or ``module:Class``."""
    return tuple(load(name) for name in strategy)


def load(name: str) -> Assignor:
    """Return the assignor for a name."""
    if name in BUILT_IN:
        return as_assignor(BUILT_IN[name])
    offered = _entry_points()
    load: Callable[[], Any]
    if name in offered:
        load = offered[name].load
    elif ":" in name:
        module, _, attribute = name.partition(":")
        load = lambda: getattr(importlib.import_module(module), attribute)  # noqa: E731
    else:
        known = sorted({*BUILT_IN, *offered})
        hint = did_you_mean(name, known) or "."
        raise ConfigurationError(
            f"partition.assignment.strategy: no assignor is called {name!r}{hint} Known are {', '.join(known)}; name your own"
            " assignor as module:Class, or register it in the entry-point group consumer_coord.assignors."
        )
    try:
        found = load()
    except Exception as error:
        reason = error if isinstance(error, (ImportError, AttributeError)) else repr(error)
        raise ConfigurationError(f"partition.assignment.strategy: {name!r} cannot be loaded: {reason}") from error
    try:
        return as_assignor(found)
    except ConfigurationError as error:
        raise ConfigurationError(f"partition.assignment.strategy: {name!r}: {error}") from error


def _entry_points() -> Mapping[str, Any]:
    # Imported here, because the call reads every installed package, which built-in assignors do not need.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def as_assignor(candidate: Any) -> Assignor:
    """Return the assignor for an object or a class; raise :class:`ConfigurationError` with the reason if it is not valid."""
    try:
        assignor = candidate() if isinstance(candidate, type) else candidate
    except Exception as error:
        raise ConfigurationError(
            f"{candidate!r} cannot be created without arguments ({error!r}): implement its abstract methods and give its"
            " arguments defaults, or pass an object as assignors=[...]"
        ) from error
    if not isinstance(assignor, Assignor):
        raise ConfigurationError(f"{candidate!r} is not an assignor: derive it from assignors.Assignor")
    if not isinstance(getattr(assignor, "name", None), str) or not assignor.name:
        raise ConfigurationError(f"{candidate!r} has no name: set the class attribute `name`, which is sent in JoinGroup")
    if not assignor.protocols or not set(assignor.protocols) <= set(RebalanceProtocol):
        raise ConfigurationError(f"assignor {assignor.name!r} must list its protocols: values of RebalanceProtocol")
    try:
        assignor.check_needs()
    except ValueError as error:
        raise ConfigurationError(f"assignor {assignor.name!r}: {error}") from error
    return assignor


def common_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """Return the highest rebalance protocol that all assignors support (``ConsumerCoordinator`` of Java's client)."""
    if not assignors:
        raise ConfigurationError("assignors: give at least one")
    names = [assignor.name for assignor in assignors]
    if len(names) != len(set(names)):
        raise ConfigurationError(f"assignors: two assignors have the same name: {', '.join(names)}")
    common = set(assignors[0].protocols).intersection(*(assignor.protocols for assignor in assignors[1:]))
    if not common:
        raise ConfigurationError(
            "assignors: " + ", ".join(names) + " have no rebalance protocol in common;"
            " in a list with eager assignors, every assignor must support EAGER"
        )
    return max(common)


def choose_assignors(
    settings: Mapping[str, Any], parsed: Config, assignors: Sequence[Assignor | type[Assignor]] | None
) -> tuple[Assignor, ...]:
    """Return the given assignors, or the assignors named in ``partition.assignment.strategy``; raise if both are given.

    The result is empty in the consumer protocol, in which the broker assigns.
    """
    if assignors is not None and parsed.coordinator.group_protocol == CONSUMER:
        raise ConfigurationError(
            "assignors= cannot be used with group.protocol=consumer, in which the broker assigns: set group.remote.assignor"
            " to one of the brokers' group.consumer.assignors, or use group.protocol=classic"
        )
    if assignors is None:
        return load_assignors(parsed.strategy)
    if settings.get("partition.assignment.strategy") is not None:
        raise ConfigurationError("partition.assignment.strategy and assignors= cannot be combined: use only one")
    if isinstance(assignors, (Assignor, type)):
        raise ConfigurationError("assignors= takes a list: assignors=[MyAssignor()]")
    return tuple(as_assignor(candidate) for candidate in assignors)
