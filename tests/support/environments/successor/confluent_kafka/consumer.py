"""The consumers: ``poll`` returns ``ConsumerRecords``."""


class ConsumerRecords:
    """The records of a poll."""


class KafkaConsumer:
    """The consumer for threads."""


class AsyncKafkaConsumer:
    """The consumer for asyncio."""
