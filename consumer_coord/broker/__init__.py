"""A Kafka for tests and demos: brokers with topics, groups, offsets and transactions, which run in this process."""

from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka

__all__ = ["EmbeddedKafka", "Fault"]
