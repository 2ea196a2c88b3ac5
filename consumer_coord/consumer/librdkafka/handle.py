"""librdkafka's handle: one ``confluent_kafka.Consumer`` with manual assignment.

Only one thread at a time may use the handle. It runs one call at a time, and in no fixed order, so a call from one thread may
wait for a long time while another thread calls ``consume()``. Therefore only the thread of
:class:`~consumer_coord.consumer.librdkafka.pump.Pump` calls it.
"""

from __future__ import annotations

import importlib
import os
import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from consumer_coord.confluent.topic_partitions import epoch_of, native, rows
from consumer_coord.confluent.types import KafkaError, KafkaException, own_because
from consumer_coord.confluent.types import TopicPartition as NativePartition
from consumer_coord.consumer.librdkafka.security_errors import with_tokens
from consumer_coord.errors import ConfigurationError
from consumer_coord.log_text import get_logger
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.setting_names import KNOWN_BY, LIBRDKAFKA, did_you_mean
from consumer_coord.settings import KNOWN, refuse_unknown
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

T = TypeVar("T")

#: Settings whose callbacks librdkafka calls during a fetch.
_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")
#: How long an assignment may wait for librdkafka's metadata of a topic, in seconds.
_LEARN_S = 0.25
#: Time before a metadata look-up is repeated, in seconds: after a timeout, and after any other failure.
_ASKED_S, _NOT_ASKED_S = 5.0, 2.0
#: librdkafka's default of ``fetch.wait.max.ms``.
_FETCH_WAIT_MS = 500
#: Above this number of unknown topics, one request looks up all topics; otherwise there is one request for each topic.
_ONE_BY_ONE = 4
#: Larger than the number of partitions of any topic.
_MAX_PARTITIONS = 2**31
#: Maximum number of events kept for an application that does not poll; older events are dropped.
_MOST_EVENTS = 1_000

#: All instances of :class:`Librdkafka` in this process.
_planes: weakref.WeakSet[Librdkafka] = weakref.WeakSet()


def _keep_handles() -> None:
    """Keep librdkafka's handles alive in a forked child, where their destruction would end the process (``abort()``).

    librdkafka's threads do not exist in the child. Each handle gets one more reference, which is never released.
    """
    for plane in _planes:
        # Imported here, because few processes fork.
        ctypes = importlib.import_module("ctypes")
        if plane.is_open:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(plane.handle))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_handles)


class Librdkafka:
    """librdkafka's handle, and the events that librdkafka reported.

    If a callback raised an exception inside ``consume()``, the whole batch would be lost. So librdkafka calls no Python code:
    its callbacks are the ``append`` method of a deque. The consumer calls the application's callbacks after it has stored the
    messages (:meth:`events`).
    """

    def __init__(self, settings: Mapping[str, Any], *, fetches: bool = True, **keywords: Any) -> None:
        """Check the settings, and create the handle if it ``fetches`` the messages."""
        self.settings = settings
        needed = own_because is None and fetches
        #: The arguments of librdkafka's callbacks since the last :meth:`events`.
        self.reported: deque[Any] = deque(maxlen=_MOST_EVENTS)
        #: Whether the last wait returned no message.
        self._dry = False
        #: The number of partitions of each topic that librdkafka knows.
        self._known: dict[str, int] = {}
        #: Topic whose look-up had no response -> the time before which the look-up is not repeated (``time.monotonic``).
        self._asked_until: dict[str, float] = {}
        #: True after the first assignment. From then on, a Fetch may be in flight.
        self._has_fetched = False
        made = self._prepared(settings, needed)
        for name in _CALLBACKS:
            if name == "error_cb" or made.get(name) is not None:
                made[name] = self.reported.append
        #: librdkafka's handle; None if this package's own Fetch fetches the messages.
        self.handle: Any = self._make(made, keywords) if needed else None
        _planes.add(self)

    def _prepared(self, settings: Mapping[str, Any], needed: bool) -> dict[str, Any]:
        """Return the settings of the handle. Check their names if there is no handle, which would check them."""
        if not needed:
            refuse_unknown(settings)
        if own_because is not None:
            return dict(settings)
        # list_topics() imports this module in C code, which turns Ctrl-C during the import into an ImportError.
        importlib.import_module("confluent_kafka.admin")
        return with_tokens(settings)

    def _make(self, made: dict[str, Any], keywords: Mapping[str, Any]) -> Any:
        from confluent_kafka import __version__ as installed
        from confluent_kafka import cimpl

        try:
            # The C class, because applications and tracing libraries may replace confluent_kafka.Consumer.
            return cimpl.Consumer(made, **keywords)
        except KafkaException as error:
            reason = error.args[0].str()
            unknown = re.fullmatch(r'No such configuration property: "(.*)"', reason)
            if unknown and unknown[1] in LIBRDKAFKA:
                raise ConfigurationError(
                    f"{unknown[1]} needs a newer confluent-kafka: the installed version {installed} does not know this setting,"
                    f" version {KNOWN_BY} does"
                ) from error
            hint = did_you_mean(unknown[1], KNOWN) if unknown else ""
            raise ConfigurationError(f"librdkafka refuses the settings: {reason}{hint}") from error

    @property
    def is_open(self) -> bool:
        """Whether there is a handle."""
        return self.handle is not None

    def events(self) -> Iterator[tuple[Callable[[Any], object] | None, Any]]:
        """Yield librdkafka's events since the last call: the application's callback, and its argument."""
        while self.reported:
            what = self.reported.popleft()
            name = "error_cb" if isinstance(what, KafkaError) else "stats_cb" if isinstance(what, str) else "throttle_cb"
            yield self.settings.get(name), what

    def fetch(self, most: int, wait_s: float) -> list[Any]:
        """Wait for one message, at most ``wait_s`` seconds, then return all available messages, at most ``most``.

        ``consume()`` alone would wait for ``most`` messages.
        """
        # If the last wait returned nothing, there are probably no messages.
        messages: list[Any] = [] if self._dry else self.handle.consume(most, 0)
        if not messages:
            first = self.handle.poll(wait_s)
            messages = [] if first is None else [first, *self.handle.consume(most - 1, 0)]
        self._dry = not messages
        return messages

    def learn(self, topics: Collection[str], limit_s: float = _LEARN_S) -> bool:
        """Make librdkafka look up unknown topics, within ``limit_s`` seconds; return False if a response is missing.

        Otherwise librdkafka would begin to read a partition of an unknown topic up to a second later.
        """
        ends = time.monotonic() + limit_s
        unknown = [topic for topic in topics if topic not in self._known]
        unasked = [topic for topic in unknown if self._asked_until.get(topic, 0.0) <= time.monotonic()]
        questions = [unasked] if len(unasked) > _ONE_BY_ONE else [[topic] for topic in unasked]
        answered = [self._ask(topics, max(0.001, ends - time.monotonic())) for topics in questions]
        return all(answered) and len(unasked) == len(unknown)

    def _ask(self, topics: Sequence[str], limit_s: float) -> bool:
        """Look up one topic, or all topics of the cluster; return False if no response arrived."""
        # Set before the request, so that an interrupted request is not repeated. Its response still reaches librdkafka.
        self._asked_until.update(dict.fromkeys(topics, time.monotonic() + _ASKED_S))
        try:
            for topic in topics:
                # This call does not wait, but makes librdkafka look up the topic as well. The request below is lost if
                # librdkafka closes its connection to a bootstrap server, as it does at each start.
                self.handle.get_watermark_offsets(NativePartition(topic, 0), cached=True)
            if len(topics) == 1:
                self._record(self.handle.list_topics(topics[0], timeout=limit_s).topics)
            else:
                self._record(self.handle.list_topics(timeout=limit_s).topics)
        except KafkaException as error:
            # librdkafka learns of the topics later, and reports errors of brokers through error_cb.
            logger.debug("data plane: topics could not be looked up: %s", error)
            # The response to a request that timed out still reaches librdkafka. If each of fifty members repeated its request,
            # a distant broker would have a queue of requests before the first Fetch.
            if error.args[0].code() != KafkaError._TIMED_OUT:
                self._asked_until.update(dict.fromkeys(topics, time.monotonic() + _NOT_ASKED_S))
            return False
        for topic in topics:
            del self._asked_until[topic]
        return True

    def _record(self, topics: Mapping[str, Any]) -> None:
        self._known.update({name: len(topic.partitions) for name, topic in topics.items() if topic.error is None})

    def assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Also read these partitions, which are not assigned yet; first make librdkafka look up their topics."""
        # The look-up may wait for a Fetch that waits for new records.
        limit_s = _LEARN_S + (self._fetch_wait_s() if self._has_fetched else 0.0)
        self.learn(_to_learn(positions), limit_s)
        self._warn_of_missing(positions, limit_s)
        self._has_fetched = True
        self.handle.incremental_assign([native(partition, at) for partition, at in sorted(positions.items())])

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        self.handle.incremental_unassign(rows(partitions))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions, and drop what was fetched of them."""
        self.handle.pause(rows(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again."""
        self.handle.resume(rows(partitions))

    def _warn_of_missing(self, positions: Iterable[TopicPartition], limit_s: float) -> None:
        """Log partitions that do not exist, because librdkafka reports such partitions half a minute later, or never."""
        missing = [partition for partition in positions if not self._exists(partition)]
        # Look up the topics again, because they may have new partitions.
        for topic in {partition.topic for partition in missing}:
            self._ask([topic], limit_s)
        for partition in missing:
            if not self._exists(partition):
                logger.warning(
                    "partition %s does not exist: the topic's partition count is %d. Reading begins when the"
                    " partition is created",
                    partition,
                    self._known[partition.topic],
                )

    def _exists(self, partition: TopicPartition) -> bool:
        """Return whether librdkafka's metadata has this partition; return True if the topic is unknown."""
        return partition.partition < self._known.get(partition.topic, _MAX_PARTITIONS)

    def _fetch_wait_s(self) -> float:
        return float(self.settings.get("fetch.wait.max.ms", _FETCH_WAIT_MS)) / 1000

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the position after each partition's last message, also past offsets without one; omit those without any."""
        found = self.handle.position(rows(partitions))
        return {
            TopicPartition(row.topic, row.partition): OffsetAndMetadata(row.offset, epoch_of(row))
            for row in found
            if row.offset >= 0
        }

    def watermarks(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Return the first offset and the high watermark, as librdkafka remembers them."""
        found: tuple[int, int] | None = self.handle.get_watermark_offsets(native(partition), cached=True)
        return found


def _to_learn(positions: Mapping[TopicPartition, OffsetAndMetadata]) -> set[str]:
    """Return the topics that librdkafka must know before it reads these partitions.

    Omit topics with a leader epoch to check (KIP-320), because librdkafka checks epochs when it learns of an assigned topic.
    """
    checked = {partition.topic for partition, at in positions.items() if at.leader_epoch >= 0}
    return {partition.topic for partition in positions} - checked
