"""The messages that consumers deliver: rows of decoded responses, as instances of ``confluent_kafka.Message``."""

from __future__ import annotations

from typing import Any, Final

from consumer_coord.columns.rows import Messages
from consumer_coord.confluent.types import Message


def rebuild(*fields: Any) -> Any:
    """Return a message for ``pickle`` and ``copy``; see :meth:`~consumer_coord.columns.rows.Messages.create`."""
    return MESSAGES.create(*fields)


#: Creates messages for every consumer of the process.
MESSAGES: Final = Messages(Message, rebuild)
