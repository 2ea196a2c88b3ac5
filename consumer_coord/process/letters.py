"""Failed records on their way to another topic: a dead-letter topic, or a retry topic."""

from __future__ import annotations

from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.process.failures import LetterProducer
from consumer_coord.process.work import Record
from consumer_coord.topic_partition import TopicPartition

#: The beginning of the headers that a retry topic's records have.
_RETRY: Final = "retry."

Headers = list[tuple[str, "str | bytes | None"]]


@attrs.frozen
class Origin:
    """Where a record was before its first failure, and how many attempts it has had in earlier topics."""

    partition: TopicPartition
    offset: int
    attempts: int = 0
    #: When a record of a retry topic is due, in milliseconds since 1970.
    due_ms: int = 0

    @classmethod
    def of(cls, message: Any, *, retried: bool) -> Origin:
        """Return the origin that a retry topic's record names in its headers; for other records, where the message is."""
        here = cls(TopicPartition(message.topic(), message.partition()), message.offset())
        if not retried:
            return here
        told = {name.removeprefix(_RETRY): value for name, value in message.headers() or () if name.startswith(_RETRY)}
        try:
            partition = TopicPartition(bytes(told["topic"]).decode(), int(told["partition"]))
            return cls(partition, int(told["offset"]), int(told["attempts"]), int(told["due"]))
        except (KeyError, ValueError, TypeError):
            # Another program has written it. It is handled at once, like a record of any topic.
            return here


@attrs.define(eq=False)
class Letter:
    """One record for another topic, until a broker has acknowledged it."""

    #: The first record of the call that failed; it has the slot.
    record: Record
    message: Any
    origin: Origin
    error: BaseException
    producer: LetterProducer
    topic: str
    #: When it is due in a retry topic, in milliseconds since 1970; None for a dead letter.
    due_ms: int | None
    with_text: bool = True

    def headers(self, group_id: str) -> Headers:
        """Return the record's own headers, then those that tell where it comes from."""
        told = {
            "topic": self.origin.partition.topic,
            "partition": str(self.origin.partition.partition),
            "offset": str(self.origin.offset),
            "group": group_id,
            "attempts": str(self.record.earlier + self.record.attempt),
            "exception": type(self.error).__qualname__,
        }
        if self.due_ms is not None:
            told["due"] = str(self.due_ms)
        if self.with_text:
            told["text"] = str(self.error)
        beginning = "dead-letter." if self.due_ms is None else _RETRY
        own: Headers = list(self.message.headers() or ())
        if self.record.holding.again:
            # Replace the headers that the last retry added.
            own = [header for header in own if not header[0].startswith(_RETRY)]
        return own + [(beginning + name, value) for name, value in told.items()]
