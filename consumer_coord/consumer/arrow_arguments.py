"""Arguments and errors of the calls that return columns; importable without the code that reads columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consumer_coord.confluent.types import Message
from consumer_coord.errors import ConfigurationError
from consumer_coord.group.commits import Entry
from consumer_coord.topic_partition import TopicPartition

#: Default limits of one batch: records, and bytes after decompression.
MAX_RECORDS: Final = 1_000_000
MAX_BYTES: Final = 64 << 20

NO_COLUMNS: Final = (
    "librdkafka fetches the records of this consumer (librdkafka.enable, or a setting that only librdkafka has), and has no"
    " columns: remove this setting, or use another consumer for consume_arrow"
)


def entries_of(batch: object) -> Mapping[TopicPartition, Entry] | None:
    """Return the offsets to commit for a batch of columns; None for any other object.

    Raise :class:`ConfigurationError` for columns that no consumer returned.
    """
    if batch is None or isinstance(batch, Message):
        return None
    from consumer_coord.columns import ArrowColumns

    if not isinstance(batch, ArrowColumns):
        return None
    if len(batch) and not batch.fetched_under:
        raise ConfigurationError("commit(batch) accepts only a batch from this consumer's consume_arrow")
    entries: Mapping[TopicPartition, Entry] = batch.fetched_under
    return entries
