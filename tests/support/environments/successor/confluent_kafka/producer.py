"""The producer."""


class KafkaProducer:
    """The producer for threads."""
