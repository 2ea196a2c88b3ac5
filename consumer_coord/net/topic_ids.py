"""The ids of a few topics, and whether these topics exist, from one Metadata request."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from consumer_coord.errors import AuthorizationError
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import NO_TOPIC_ID
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.cluster import MetadataRequest, MetadataRequestTopic

logger: Final = get_logger(__name__)

#: Topic -> topic id. Topics that the cluster does not have are missing.
TopicIds: TypeAlias = Mapping[str, uuid.UUID]


async def topic_ids(cluster: ClusterClient, topics: Iterable[str], timeout_ms: float) -> TopicIds:
    """Return the current ids of these topics.

    The id is :data:`~consumer_coord.net.metadata.NO_TOPIC_ID` if the broker is older than 2.8, reports an error that may pass,
    or has left out the topic. Topics that do not exist are missing. Raise ``AuthorizationError`` if the principal may not
    describe a topic.
    """
    names = sorted(topics)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)
    response = await cluster.request_any(request, Deadline.after(timeout_ms))
    matched = cluster.answers.match("Metadata", "a broker", names, ((topic.name, topic) for topic in response.topics))
    found = dict.fromkeys(matched.unanswered, NO_TOPIC_ID)
    for name, topic in matched.rows.items():
        code = topic.error_code
        if code == codes.NONE:
            found[name] = topic.topic_id
        elif code == codes.TOPIC_AUTHORIZATION_FAILED:
            raise AuthorizationError(f"this principal may not describe topic {name!r}", code=code)
        elif code != codes.UNKNOWN_TOPIC_OR_PARTITION:
            logger.info("the id of topic %s is not known: %s", name, codes.error_name(code))
            found[name] = NO_TOPIC_ID
    return found
