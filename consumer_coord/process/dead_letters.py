"""Failed records on their way to another topic: a dead-letter topic, or a retry topic.

``failure_policy.py`` has the policies that send them there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.log_text import get_logger
from consumer_coord.process.failure_policy import DeadLetterError, LetterProducer
from consumer_coord.process.work import Record
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

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


class LetterSender:
    """Produces the letters of one ``process``, and ends their calls when a broker has answered."""

    def __init__(
        self,
        producers: Sequence[LetterProducer],
        group_id: str,
        *,
        on_answer: Callable[[Letter, Any], None],
        skip: Callable[[Record], object],
        stop: Callable[[Record, BaseException], None],
    ) -> None:
        """Send nothing yet.

        * ``producers`` call ``on_answer``, in any thread that polls them; it calls :meth:`take_answer` where the state may be
          used.
        * ``skip`` ends the call of a record whose letters the broker has acknowledged.
        * ``stop`` ends the process before a record of which there is no letter.
        """
        #: The number of letters that the broker has not answered yet.
        self.unanswered: int = 0
        #: The number of letters that the broker has acknowledged.
        self.sent: int = 0
        self._producers = producers
        self._group_id = group_id
        self._on_answer = on_answer
        self._skip = skip
        self._stop = stop
        #: Record -> the number of its letters that are not acknowledged; its call ends with the last of them.
        self._awaited: dict[Record, int] = {}
        #: Letters that did not fit into their producer's queue.
        self._unsent: deque[Letter] = deque()

    def send(self, record: Record, error: BaseException, producer: LetterProducer, topic: str, due_ms: int | None) -> None:
        """Produce the records of a call to another topic; the call keeps its slot until the broker has answered."""
        together = (record, *record.rest)
        self._awaited[record] = len(together)
        retried = record.holding.again
        for one in together:
            self.unanswered += 1
            origin = Origin.of(one.message, retried=retried)
            self._produce(Letter(record, one.message, origin, error, producer, topic, due_ms))

    def _produce(self, letter: Letter) -> None:
        message = letter.message
        _, timestamp = message.timestamp()
        try:
            letter.producer.produce(
                letter.topic,
                message.value(),
                message.key(),
                headers=letter.headers(self._group_id),
                timestamp=max(0, timestamp),
                on_delivery=lambda refused, _: self._on_answer(letter, refused),
            )
        except BufferError:
            self._unsent.append(letter)
        except Exception as refused:  # noqa: BLE001 - whatever it is, there is no letter
            self.take_answer(letter, refused)

    def take_answer(self, letter: Letter, refused: Any) -> None:
        """Take the broker's answer to a letter: ``refused`` is None, or why there is no letter."""
        record = letter.record
        if refused is not None and letter.with_text and record.reason is None:
            letter.with_text = False
            self._produce(letter)
            return
        self.unanswered -= 1
        self.sent += refused is None
        if record not in self._awaited:
            # Another letter of the same call was refused.
            return
        self._awaited[record] -= 1
        if record.reason is None and refused is not None:
            del self._awaited[record]
            self._stop_without(letter, refused)
        elif not self._awaited[record]:
            del self._awaited[record]
            self._skip(record)

    def _stop_without(self, letter: Letter, refused: Any) -> None:
        what = "dead letter" if letter.due_ms is None else "retry"
        failure = DeadLetterError(
            f"the {what} of the record of {letter.origin.partition} at offset {letter.origin.offset} cannot be produced to"
            f" {letter.topic}, so processing stops before it: {refused}."
            " Check that the topic exists and takes records of this size, and that the producer may write to it"
        )
        failure.__cause__ = letter.error
        logger.error("%s", failure)
        self._stop(letter.record, failure)

    def poll(self) -> Exception | None:
        """Let the producers report what became of letters (``on_answer``); return what their callbacks raised."""
        raised: Exception | None = None
        for producer in self._producers:
            try:
                producer.poll(0)
            except Exception as error:  # noqa: BLE001 - for instance of the producer's error_cb; it ends the process
                raised = raised or error
        return raised

    def send_again(self) -> None:
        """Produce the letters that did not fit into the producer's queue."""
        for _ in range(len(self._unsent)):
            letter = self._unsent.popleft()
            if letter.record.reason is None:
                self._produce(letter)
            else:
                self.take_answer(letter, "its call no longer counts")
