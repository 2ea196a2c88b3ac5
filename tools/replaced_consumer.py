"""A pytest plugin for the tests of frameworks: confluent-kafka's consumers are this package's before a test imports them."""

from __future__ import annotations

import importlib
import importlib.util

import confluent_kafka

from consumer_coord import AsyncGroupConsumer, GroupConsumer

confluent_kafka.Consumer = GroupConsumer
# Older versions have no consumer for asyncio.
if importlib.util.find_spec("confluent_kafka.aio") is not None:
    importlib.import_module("confluent_kafka.aio").AIOConsumer = AsyncGroupConsumer  # type: ignore[attr-defined]
