"""A class for each error, as in Java."""


class KafkaError(Exception):
    """The base of all errors."""


class UnsupportedOperationError(KafkaError):
    """For instance ``group.protocol=classic``."""
