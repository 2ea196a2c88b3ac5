"""A Kafka consumer group coordinator for Python.

:class:`GroupConsumer` is ``confluent_kafka.Consumer`` with assignors in Python, :class:`AsyncGroupConsumer` the same for
asyncio; :class:`BlockingCoordinator` and :class:`ConsumerCoordinator` are the group protocol alone, beside a data plane of
yours.
"""

__version__ = "0.1.0"

from consumer_coord.aio import AsyncGroupConsumer
from consumer_coord.blocking import BlockingCoordinator
from consumer_coord.consumer import GroupConsumer
from consumer_coord.coordinator import ConsumerCoordinator
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

__all__ = [
    "AsyncGroupConsumer",
    "BlockingCoordinator",
    "ConsumerCoordinator",
    "GroupConsumer",
    "OffsetAndMetadata",
    "TopicPartition",
]
