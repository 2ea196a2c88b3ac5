"""confluent-kafka 4.4 as its documentation shows it: the root has almost no names, and the clients have Java's."""

__version__ = "4.4.0"
