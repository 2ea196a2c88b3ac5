"""Detect topics that were deleted and created again, by their ids (KIP-516).

Offsets of the old topic are invalid in the new topic.

Brokers learn of a new topic one after another, and a broker that lags behind reports the old id. So a new id is accepted only
after two reports, and a replaced id is never accepted again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Set
from typing import TypeAlias

from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import NO_TOPIC_ID, Metadata, is_other
from consumer_coord.printable import get_logger
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.cluster import MetadataRequest, MetadataRequestTopic

logger = get_logger(__name__)

#: Topic -> topic id. Topics that the cluster does not have are missing.
TopicIds: TypeAlias = Mapping[str, uuid.UUID]

#: Topic -> the topic ids of the owned partitions. A topic has two ids if a partition was added after the topic was recreated.
HeldIds: TypeAlias = Mapping[str, Set[uuid.UUID]]

#: Time between the first report and the second report of a new id, in seconds.
AGAIN_S = 0.2


async def topic_ids(cluster: ClusterClient, topics: Iterable[str], timeout_ms: float) -> TopicIds:
    """Return the current ids of these topics.

    The id is :data:`~consumer_coord.net.metadata.NO_TOPIC_ID` if the broker is older than 2.8, or reports an error for the
    topic. Topics that do not exist are missing.
    """
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in sorted(topics)], allow_auto_topic_creation=False
    )
    response = await cluster.request_any(request, Deadline.after(timeout_ms))
    found: dict[str, uuid.UUID] = {}
    for topic in response.topics:
        if topic.error_code == codes.NONE:
            found[topic.name] = topic.topic_id
        elif topic.error_code != codes.UNKNOWN_TOPIC_OR_PARTITION:
            logger.info("the id of topic %s is not known: %s", topic.name, codes.error_name(topic.error_code))
            found[topic.name] = NO_TOPIC_ID
    return found


class TopicIdentity:
    """The topic ids that one query uses."""

    def __init__(self, pause: Callable[[float], None] = time.sleep) -> None:
        self._pause = pause
        self._replaced: set[uuid.UUID] = set()
        self._checked_metadata = -1
        self._hinted = False

    def hint(self) -> None:
        """Make the next call of :meth:`recreated` request metadata, because a topic may have been recreated."""
        self._hinted = True

    def recreated(self, held: HeldIds, metadata: Metadata, reported: TopicIds, refresh: Callable[[], Metadata]) -> TopicIds:
        """Return the topics of ``held`` that were deleted and created again, with their new ids.

        ``metadata`` and ``reported`` are known without a request. ``refresh`` requests metadata, and is called only if an id
        may have changed.
        """
        known = self._others(held, reported)
        if metadata.version != self._checked_metadata:
            known = known or self._others(held, _ids(metadata))
        if not known and not self._hinted:
            self._checked_metadata = metadata.version
            return {}
        found = self._others(held, _ids(refresh()))
        if found:
            self._pause(AGAIN_S)
            second = self._others(held, _ids(refresh()))
            found = {topic: now for topic, now in found.items() if second.get(topic) == now}
        self._hinted = False
        return found

    def replaced(self, topic_id: uuid.UUID) -> None:
        """Record that this id was replaced, so a broker that still reports this id is out of date."""
        self._replaced.add(topic_id)

    def _others(self, held: HeldIds, now: TopicIds) -> dict[str, uuid.UUID]:
        return {
            topic: now[topic]
            for topic, expected in held.items()
            if any(is_other(one, now.get(topic)) for one in expected) and now[topic] not in self._replaced
        }


def _ids(metadata: Metadata) -> TopicIds:
    return {name: topic.id for name, topic in metadata.topics.items()}
