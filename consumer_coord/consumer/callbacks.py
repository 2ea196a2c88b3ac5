"""The application's rebalance callbacks, and the types of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any, TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.topic_partition import TopicPartition

Partitions: TypeAlias = frozenset[TopicPartition]
#: Names of topics. With a general sequence type, ``subscribe("orders")`` would pass the type checker, because a string is a
#: sequence.
Topics: TypeAlias = list[str] | tuple[str, ...] | Set[str]
#: Called with the consumer and a list of TopicPartition; the asyncio consumer also accepts coroutine functions.
Callback: TypeAlias = Callable[[Any, Any], object]


def are_names(topics: object) -> bool:
    """Return whether an object is a collection of strings, and not itself a string; for callers without a type checker."""
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        return False
    return all(isinstance(topic, str) for topic in topics)


@attrs.frozen
class Callbacks:
    """The application's rebalance callbacks. Without ``on_lost``, ``on_revoke`` is called for lost partitions, too."""

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None
