"""What happens to a record whose handler fails: further attempts, and a last step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

import tenacity

from consumer_coord import lazy_attrs as attrs
from consumer_coord.process.work import Record

#: Given to tenacity's objects, which expect the object that retries.
_RETRYING: Final = tenacity.Retrying()


class DeadLetterError(RuntimeError):
    """Raised by ``process`` if a failed record cannot be produced to another topic; the handler's exception is the cause."""


class LetterProducer(Protocol):
    """The part of ``confluent_kafka.Producer`` that dead letters and retry topics need."""

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


@attrs.frozen
class RetryTopics:
    """The last step of a :class:`FailurePolicy`: handle the record again after each of ``delays`` (seconds), then do ``then``.

    A record of ``orders`` whose handler has failed is produced to ``orders.<group>.retry.10`` if the first delay is 10, with
    ``producer``, and counts as finished when the broker has acknowledged it. ``process`` reads these topics in the same group,
    and passes each record to the handler when it is due; until then its partition is not read further. If the handler fails
    again, the record goes to the topic of the next delay, and after the last one ``then`` happens: ``"stop"``, ``"skip"``, or
    :class:`DeadLetters`, which name the topic, partition and offset where the record was first.

    This gives up the order of a failed record against later records of its key. If you need the order, retry in place: with
    ``stop`` and ``wait`` of the policy.

    Subscribe to topics by their names, not by a pattern. Create the retry topics first, with as many partitions as you like:
    ``process`` raises :class:`~consumer_coord.errors.IllegalStateError` at its start if one does not exist. The clock of the
    machine that produces a record decides when it is due, but no record waits longer than its delay after it was read.
    """

    producer: LetterProducer
    delays: Sequence[float]
    then: Literal["stop", "skip"] | DeadLetters = "stop"

    def __attrs_post_init__(self) -> None:
        if not self.delays or any(not 0 < delay < math.inf for delay in self.delays):
            raise ValueError(f"delays must be numbers of seconds above 0, not {list(self.delays)!r}")
        if len(set(self.delays)) < len(self.delays):
            raise ValueError(f"delays must differ, because each has a topic of its own, not {list(self.delays)!r}")
        _check_last_step(self.then)

    def topics(self, topic: str, group_id: str) -> Sequence[RetryTopic]:
        """Return the retry topics of a topic, in the order of the delays."""
        return [RetryTopic(f"{topic}.{group_id}.retry.{delay:g}", topic, place) for place, delay in enumerate(self.delays)]


@attrs.frozen
class RetryTopic:
    """A topic whose records are handled again: its name, the topic that the records come from, and its place in ``delays``."""

    name: str
    of: str
    place: int


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
    counts the record as finished; :class:`DeadLetters` and :class:`RetryTopics` produce it to other topics. With ``batches``,
    the records of one call are retried together, and the last step takes each of them.

    While other records wait, retries take at most the part ``retry_share`` of the slots.
    """

    stop: Callable[[tenacity.RetryCallState], bool] = attrs.field(factory=lambda: tenacity.stop_after_attempt(1))
    wait: Callable[[tenacity.RetryCallState], float] = attrs.field(factory=tenacity.wait_none)
    retry: Callable[[tenacity.RetryCallState], bool] = attrs.field(factory=tenacity.retry_if_exception_type)
    timeout: float | None = None
    then: Literal["stop", "skip"] | DeadLetters | RetryTopics = "stop"
    retry_share: float = 0.3

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.then, RetryTopics):
            _check_last_step(self.then)
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


def letter_producers(policy: FailurePolicy | None) -> Sequence[LetterProducer]:
    """Return the producers of a policy's retries and dead letters."""
    then = None if policy is None else policy.then
    steps = (then, then.then if isinstance(then, RetryTopics) else None)
    return tuple(step.producer for step in steps if isinstance(step, RetryTopics | DeadLetters))


def _check_last_step(then: object) -> None:
    if then not in ("stop", "skip") and not isinstance(then, DeadLetters):
        raise ValueError(f'then must be "stop", "skip", DeadLetters(...) or (in a policy) RetryTopics(...), not {then!r}')
