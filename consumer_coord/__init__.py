"""A Kafka consumer group coordinator for Python."""

__version__ = "0.1.0"
