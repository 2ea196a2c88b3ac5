"""The broker's side of the group protocol, and an embedded Kafka that uses this protocol."""

from consumer_coord.broker.cluster import BrokerCluster, BrokerNode
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.errors import BrokerStoppedError, ConnectionDroppedError
from consumer_coord.broker.faults import Fault, Faults
from consumer_coord.broker.group_store import StoreHooks
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.broker.server import EmbeddedKafka

__all__ = [
    "BrokerCluster",
    "BrokerConfig",
    "BrokerNode",
    "BrokerStoppedError",
    "ClientConnection",
    "ConnectionDroppedError",
    "EmbeddedKafka",
    "Fault",
    "Faults",
    "KafkaApis",
    "StoreHooks",
]
