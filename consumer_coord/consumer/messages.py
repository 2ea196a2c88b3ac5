"""The messages that consumers deliver: rows of decoded responses, as instances of ``confluent_kafka.Message``."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import Message

from consumer_coord.columns.rows import Messages


def rebuild(*fields: Any) -> Any:
    """Return a message for ``pickle`` and ``copy``; see :meth:`~consumer_coord.columns.rows.Messages.create`."""
    return MESSAGES.create(*fields)


#: Creates messages for every consumer of the process.
MESSAGES: Final = Messages(Message, rebuild)
