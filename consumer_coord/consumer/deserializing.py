"""``confluent_kafka.DeserializingConsumer`` over :class:`~consumer_coord.GroupConsumer`."""

from __future__ import annotations

from typing import Any

from consumer_coord.confluent import deserializing
from consumer_coord.consumer.group_consumer import GroupConsumer

_ConfluentDeserializing: Any = deserializing.DeserializingConsumer


class DeserializingConsumer(_ConfluentDeserializing, GroupConsumer):  # type: ignore[misc]  # the other base is of type Any
    """A group consumer that deserializes: set ``key.deserializer`` and ``value.deserializer``, or their ``.builder``.

    ``poll`` raises confluent-kafka's ``ConsumeError`` and ``KeyDeserializationError``, ``ValueDeserializationError``;
    ``consume`` is not available, as in confluent-kafka. Set assignors by name in ``partition.assignment.strategy``.
    """

    # confluent-kafka's class calls super().__init__ and super().poll: the next class in the resolution order is GroupConsumer.
