"""The application's rebalance callbacks, and the types of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.topic_partition import TopicPartition

Partitions: TypeAlias = frozenset[TopicPartition]
#: Called with the consumer and a list of TopicPartition; the asyncio consumer also accepts coroutine functions.
Callback: TypeAlias = Callable[[Any, Any], object]


@attrs.frozen
class Callbacks:
    """The application's rebalance callbacks. Without ``on_lost``, ``on_revoke`` is called for lost partitions, too."""

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None
