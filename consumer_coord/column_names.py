"""The names of the columns of ``consumer_coord.columns``; importable without the code that decodes."""

from typing import Final

#: The columns, with the names of Spark's Kafka source.
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
