"""What happens to a record whose handler fails: further attempts, and a last step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

import tenacity

from consumer_coord import lazy_attrs as attrs
from consumer_coord.process.work import Record

#: Given to tenacity's objects, which expect the object that retries.
_RETRYING: Final = tenacity.Retrying()


class DeadLetterError(RuntimeError):
    """Raised by ``process`` if neither form of a dead letter can be produced; the handler's exception is the cause."""


class LetterProducer(Protocol):
    """The part of ``confluent_kafka.Producer`` that dead letters need."""

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        on_delivery: Callable[[Any, Any], object],
        timestamp: int,
        headers: list[tuple[str, str | bytes | None]],
    ) -> None: ...
    def poll(self, timeout: float) -> int: ...


@attrs.frozen
class DeadLetters:
    """The last step of a :class:`FailurePolicy`: produce the record to ``topic``, with ``producer``.

    The letter has the key, the value, the headers and the timestamp of the record, and these headers: ``dead-letter.topic``,
    ``.partition``, ``.offset``, ``.group``, ``.attempts``, ``.exception`` (the type) and ``.text``. The record counts as
    finished when the broker has acknowledged the letter. A letter that is rejected is sent again without the text, which may be
    what made it too large; if that fails, too, processing stops before the record. ``producer`` is the application's
    ``confluent_kafka.Producer``, with ``acks=all``, its default. Create the topic first.
    """

    producer: LetterProducer
    topic: str


@attrs.frozen(kw_only=True)
class FailurePolicy:
    """What to do about a handler that raises, as ``on_failure`` of ``process``.

    ``stop``, ``wait`` and ``retry`` are tenacity's, for instance ``stop_after_attempt(5)``, ``wait_random_exponential()`` and
    ``retry_if_exception_type(ConnectionError)``: how many attempts, how long before the next, in seconds, and after which
    exceptions. Other exceptions lead to the last step at once. A record that waits for its next attempt has no slot. It delays
    later records of its own key, and no others.

    ``timeout`` is the time of one attempt, in seconds; after it, a coroutine is cancelled and has failed with TimeoutError. A
    function cannot be cancelled: it has failed if it returns too late.

    ``then`` is the last step: ``"stop"`` raises the exception of the handler, before the record; ``"skip"`` logs a warning and
    counts the record as finished; :class:`DeadLetters` produces it to another topic.

    While other records wait, retries take at most the part ``retry_share`` of the slots.
    """

    stop: Callable[[tenacity.RetryCallState], bool] = attrs.field(factory=lambda: tenacity.stop_after_attempt(1))
    wait: Callable[[tenacity.RetryCallState], float] = attrs.field(factory=tenacity.wait_none)
    retry: Callable[[tenacity.RetryCallState], bool] = attrs.field(factory=tenacity.retry_if_exception_type)
    timeout: float | None = None
    then: Literal["stop", "skip"] | DeadLetters = "stop"
    retry_share: float = 0.3

    def __attrs_post_init__(self) -> None:
        if self.then not in ("stop", "skip") and not isinstance(self.then, DeadLetters):
            raise ValueError(f'then must be "stop", "skip" or DeadLetters(producer, topic), not {self.then!r}')
        if not 0 < self.retry_share <= 1:
            raise ValueError(f"retry_share must be above 0 and at most 1, not {self.retry_share!r}")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"timeout must be above 0 s, not {self.timeout!r}")

    def delay_s(self, record: Record, error: Exception, now: float) -> float | None:
        """Return how long to wait before the next attempt, in seconds; None if there is none."""
        state = tenacity.RetryCallState(_RETRYING, None, (), {})
        state.start_time, state.idle_for, state.attempt_number = record.since, record.idle_s, record.attempt
        state.set_exception((type(error), error, error.__traceback__))
        state.outcome_timestamp = now
        if not self.retry(state):
            return None
        state.upcoming_sleep = delay_s = float(self.wait(state))
        return None if self.stop(state) else delay_s


def letter_headers(
    record: Record, group_id: str, error: BaseException, *, with_text: bool
) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of a dead letter: the record's own, then those that tell where it comes from."""
    told = {
        "topic": record.holding.partition.topic,
        "partition": str(record.holding.partition.partition),
        "offset": str(record.offset),
        "group": group_id,
        "attempts": str(record.attempt),
        "exception": type(error).__qualname__,
    }
    if with_text:
        told["text"] = str(error)
    own: list[tuple[str, str | bytes | None]] = list(record.message.headers() or ())
    return own + [(f"dead-letter.{name}", value) for name, value in told.items()]
