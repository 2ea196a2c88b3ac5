"""Look up the ids of topics (KIP-516), for the executors.

If a topic is recreated with more records than before, librdkafka continues at the same offset, without an error. A topic id is
never used again. So if a topic has the planned id *after* records were read, all of these records belong to that topic.
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

#: A broker may be out of date. A different topic id is accepted after a second report; this is the time between them, in
#: seconds.
_AGAIN_S = 0.5
_REQUEST_TIMEOUT_S = 10.0

#: Settings of consumers for which librdkafka would log a warning here.
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
#: Errors that no retry resolves.
_FINAL = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION}

Answers: TypeAlias = Mapping[str, "Future[TopicDescription]"]


class TopicIds:
    """A client for topic ids, with one or two connections that are opened at the first request."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        kept = {key: value for key, value in settings.items() if not key.startswith(_OF_CONSUMERS)}
        if "security.protocol" in kept:
            # Imported only by processes that need this module, because the import is slow.
            from consumer_coord.consumer.librdkafka.refusals import with_tls_floor

            kept = with_tls_floor(kept)
        self._admin = AdminClient(kept, logger=logger)
        self.asked: bool = False

    def ask(self, topics: Iterable[str]) -> Answers:
        """Send the request now, without waiting for the response."""
        self.asked = True
        names = sorted(topics)
        # This call also runs the callbacks for tokens.
        self._admin.poll(0)
        found: Answers = (
            self._admin.describe_topics(TopicCollection(names), request_timeout=_REQUEST_TIMEOUT_S) if names else {}
        )
        return found

    def others(self, expected: Mapping[str, uuid.UUID], answers: Answers, timeout_s: float) -> Mapping[str, uuid.UUID]:
        """Wait for ``answers``; return the topics of ``expected`` that now have a different id, with that id.

        For a deleted topic no broker reports an id, so the records that were read belong to the deleted topic. Raise
        KafkaException if no broker responds within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        suspected: Mapping[str, uuid.UUID] | None = None
        while True:
            found, failure = _compared(expected, answers)
            if failure is not None:
                if failure.args[0].code() in _FINAL or time.monotonic() > deadline:
                    raise failure
                logger.info("request for topic ids failed: %s", failure)
            elif not found or found == suspected:
                return found
            else:
                suspected = found
            time.sleep(_AGAIN_S)
            answers = self.ask(expected)


def _compared(expected: Mapping[str, uuid.UUID], answers: Answers) -> tuple[Mapping[str, uuid.UUID], KafkaException | None]:
    """Wait for the responses. Return the topics that have a different id, with that id, and the last failure."""
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
            # Brokers before 2.8 have no topic ids.
            if now.int and expected[topic].int and now != expected[topic]:
                found[topic] = now
    return found, failure


def _to_uuid(found: Any) -> uuid.UUID:
    words = (found.get_most_significant_bits(), found.get_least_significant_bits())
    high, low = (word & 0xFFFF_FFFF_FFFF_FFFF for word in words)
    return uuid.UUID(int=high << 64 | low)
