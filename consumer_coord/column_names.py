"""The names of the columns of ``consumer_coord.columns``; importable without the code that decodes."""

from typing import Final

#: The columns, named as Spark's Kafka source names them.
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
