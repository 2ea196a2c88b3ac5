"""Messages of Fetch responses: decoded in steps, and handed out as rows of a chunk of bytes.

:class:`Messages` decodes the next records of a :class:`~consumer_coord.columns.CompletedFetch` into :class:`Rows`. ``take`` and
``take_one`` return messages, which are instances of a class that the caller chooses, such as ``confluent_kafka.Message``. A
message is a small object that refers to a row; its key, value and headers become Python objects when a method asks for them.
Neither pyarrow nor numpy is imported.

Messages that the application keeps do not keep the other bytes of their chunk for long: see ``_messages.h`` for the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from consumer_coord.columns import kernel
from consumer_coord.columns.batch import CompletedFetch

if TYPE_CHECKING:
    from consumer_coord.columns.python_messages import Kept as Kept
    from consumer_coord.columns.python_messages import Rows as Rows
else:
    Kept: TypeAlias = Any
    Rows: TypeAlias = Any

#: Size of the records that one step decodes, in bytes after decompression. The last record may exceed it.
STEP_BYTES: Final = 256 * 1024
#: Size of the newest finished chunks of a consumer that stay, even if the application keeps few of their messages.
KEPT_BYTES: Final = 4 * 1024 * 1024
_INT64_MAX: Final = 2**63 - 1


def kept_chunks(limit: int = KEPT_BYTES) -> Kept:
    """Return the object that counts the chunks of one consumer, and lets them go.

    ``chunk_bytes`` is the memory of all its chunks, ``copied_bytes`` the memory of messages whose chunk was let go, and
    ``copied_total`` the number of bytes that were ever copied. Call ``sweep`` when the application polls without a result, and
    ``close`` with the consumer.
    """
    return kernel.kernel.Kept(limit)


def first_messages(messages: list[Any]) -> dict[tuple[str, int], Any]:
    """Return the first message of each (topic, partition) in the list, without messages that report an error."""
    found: dict[tuple[str, int], Any] = kernel.kernel.first_messages(messages)
    return found


class Messages:
    """Creates messages of one class. Only one thread may decode a response or take from the same rows at a time."""

    def __init__(self, base: type, rebuild: Callable[..., Any]) -> None:
        """Create a class of messages that are instances of ``base``, with the methods that ``base`` has.

        ``base`` is ``confluent_kafka.Message``, or a class in Python with the same constructor, ``__slots__`` and without
        ``__dict__`` and ``__weakref__``. ``pickle`` and ``copy`` call ``rebuild``, a function of a module, with the arguments
        of :meth:`create`.
        """
        self.type: Any = kernel.kernel.message_type(base, rebuild)

    def decode(
        self,
        fetch: CompletedFetch,
        kept: Kept,
        *,
        max_records: int = _INT64_MAX,
        max_bytes: int = STEP_BYTES,
        end_offset: int = _INT64_MAX,
    ) -> Rows:
        """Decode the next records of a response; see :meth:`consumer_coord.columns.Columns.append` for the limits and errors.

        The result may be empty, if only skipped records were left before the end of the response or before ``end_offset``. Its
        ``next_offset`` is then the next position all the same.
        """
        rows = kernel.kernel.Rows(self.type, kept, fetch.topic, fetch.partition)
        fetch.append_to(rows, max_records, max_bytes, end_offset)
        return rows

    def create(self, *fields: Any) -> Any:
        """Return a message that is not a row, such as an error.

        ``fields``, None if absent: topic, partition, offset, key, value, headers, error, (type, milliseconds) of the timestamp,
        latency in seconds, leader epoch, delivery count.
        """
        return kernel.kernel.message(self.type, fields)
