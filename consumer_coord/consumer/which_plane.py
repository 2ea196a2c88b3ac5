"""The choice between librdkafka and this package's own Fetch for messages."""

from __future__ import annotations

from consumer_coord.config import Config
from consumer_coord.confluent.types import own_because

#: Whether librdkafka fetches messages if ``librdkafka.enable`` is not set.
BY_DEFAULT: bool = True


def reads_with_librdkafka(config: Config) -> bool:
    """Return whether messages come from librdkafka; without an installed librdkafka they never do."""
    wanted = BY_DEFAULT if config.librdkafka_enable is None else config.librdkafka_enable
    return wanted and own_because is None
