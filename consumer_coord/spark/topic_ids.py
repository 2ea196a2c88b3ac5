"""The ids of the topics that the brokers have (KIP-516), for the executors.

librdkafka continues at the same offset, without a report, when a topic is recreated with more records than before.

An id never comes back.  So when a topic has the planned id *after* records were read, all of them are that topic's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription

from consumer_coord.printable import get_logger

logger: Final = get_logger(__name__)

#: A broker may be behind the others: another id is believed when it is reported again after this time, in seconds.
_AGAIN_S = 0.5
_REQUEST_TIMEOUT_S = 10.0

#: Settings of consumers that would make librdkafka log a warning here.
_OF_CONSUMERS = (
    "auto.",
    "check.crcs",
    "coordinator.",
    "enable.auto.",
    "enable.partition.eof",
    "fetch.",
    "group.",
    "heartbeat.",
    "isolation.level",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "offset.store.",
    "partition.assignment.strategy",
    "queued.m",
    "session.timeout.ms",
)

_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
#: Errors that no retry cures.
_FINAL = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION}

Answers: TypeAlias = Mapping[str, "Future[TopicDescription]"]


class TopicIds:
    """A client that asks the brokers, with one or two connections opened at the first question."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        kept = {key: value for key, value in settings.items() if not key.startswith(_OF_CONSUMERS)}
        if "security.protocol" in kept:
            # Not imported by every process: the import is slow.
            from consumer_coord.consumer.librdkafka.refusals import with_tls_floor

            kept = with_tls_floor(kept)
        self._admin = AdminClient(kept, logger=logger)
        self.asked: bool = False

    def ask(self, topics: Iterable[str]) -> Answers:
        """Send the request now, without waiting for the response."""
        self.asked = True
        names = sorted(topics)
        # Callbacks for tokens are served by this call.
        self._admin.poll(0)
        found: Answers = (
            self._admin.describe_topics(TopicCollection(names), request_timeout=_REQUEST_TIMEOUT_S) if names else {}
        )
        return found

    def others(self, expected: Mapping[str, uuid.UUID], answers: Answers, timeout_s: float) -> Mapping[str, uuid.UUID]:
        """Return the topics of ``expected`` that have another id now, with that id; waits for ``answers``.

        A deleted topic has no other id: records read of it were its own.  Raises KafkaException when no broker
        responds within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        suspected: Mapping[str, uuid.UUID] | None = None
        while True:
            found, failure = _compared(expected, answers)
            if failure is not None:
                if failure.args[0].code() in _FINAL or time.monotonic() > deadline:
                    raise failure
                logger.info("asking for topic ids: %s", failure)
            elif not found or found == suspected:
                return found
            else:
                suspected = found
            time.sleep(_AGAIN_S)
            answers = self.ask(expected)


def _compared(expected: Mapping[str, uuid.UUID], answers: Answers) -> tuple[Mapping[str, uuid.UUID], KafkaException | None]:
    """Wait for the brokers' answers; return the topics that have another id, with that id, and the last failure."""
    wait(answers.values(), timeout=_REQUEST_TIMEOUT_S + 1)
    found: dict[str, uuid.UUID] = {}
    failure: KafkaException | None = None
    for topic, answer in answers.items():
        try:
            described = answer.result(0)
        except KafkaException as error:
            if error.args[0].code() not in _NO_TOPIC:
                failure = error
        except TimeoutError:
            failure = KafkaException(KafkaError(KafkaError._TIMED_OUT, f"the brokers were asked for topic {topic!r}"))
        else:
            now = _to_uuid(described.topic_id)
            # Brokers before 2.8 know no ids.
            if now.int and expected[topic].int and now != expected[topic]:
                found[topic] = now
    return found, failure


def _to_uuid(told: Any) -> uuid.UUID:
    words = (told.get_most_significant_bits(), told.get_least_significant_bits())
    high, low = (word & 0xFFFF_FFFF_FFFF_FFFF for word in words)
    return uuid.UUID(int=high << 64 | low)
