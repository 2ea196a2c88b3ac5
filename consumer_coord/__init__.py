"""A Kafka consumer group coordinator for Python.

:class:`GroupConsumer` is ``confluent_kafka.Consumer`` with assignors in Python, and :class:`AsyncGroupConsumer` is the
counterpart for asyncio. :class:`BlockingCoordinator` and :class:`ConsumerCoordinator` implement only the group protocol, for
use with your own fetcher.
"""

import importlib
from typing import TYPE_CHECKING, Any

from consumer_coord.version import __version__ as __version__

if TYPE_CHECKING:
    from consumer_coord.consumer.async_consumer import AsyncGroupConsumer
    from consumer_coord.consumer.deserializing import DeserializingConsumer
    from consumer_coord.consumer.group_consumer import GroupConsumer
    from consumer_coord.group.coordinator import ConsumerCoordinator
    from consumer_coord.offsets import OffsetAndMetadata
    from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
    from consumer_coord.topic_partition import TopicPartition

#: Imported on first use, because Spark's executors and the command line need only a part of the package, and the import takes
#: a tenth of a second.
_HOMES = {
    "AsyncGroupConsumer": "consumer_coord.consumer.async_consumer",
    "BlockingCoordinator": "consumer_coord.threads.blocking_coordinator",
    "ConsumerCoordinator": "consumer_coord.group.coordinator",
    "DeserializingConsumer": "consumer_coord.consumer.deserializing",
    "GroupConsumer": "consumer_coord.consumer.group_consumer",
    "OffsetAndMetadata": "consumer_coord.offsets",
    "TopicPartition": "consumer_coord.topic_partition",
}

__all__ = [
    "AsyncGroupConsumer",
    "BlockingCoordinator",
    "ConsumerCoordinator",
    "DeserializingConsumer",
    "GroupConsumer",
    "OffsetAndMetadata",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
