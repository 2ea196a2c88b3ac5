"""A pytest plugin for the tests of frameworks: confluent-kafka's consumers are this package's before a test imports them."""

from __future__ import annotations

import confluent_kafka
import confluent_kafka.aio

from consumer_coord import AsyncGroupConsumer, GroupConsumer

confluent_kafka.Consumer = GroupConsumer
confluent_kafka.aio.AIOConsumer = AsyncGroupConsumer
