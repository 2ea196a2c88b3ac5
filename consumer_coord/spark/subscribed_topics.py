"""The topics of a subscription as of one Metadata response, as a value."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Set

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import RetriableError
from consumer_coord.final_errors import fatal
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Metadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes


@attrs.frozen
class TopicView:
    """The id (KIP-516) and the number of partitions of one topic."""

    id: uuid.UUID
    count: int


@attrs.frozen
class View:
    """The subscribed topics as of one Metadata response.

    ``version`` grows with each response. ``unclear``: topic -> the reason why the response does not show whether it exists.
    """

    version: int
    topics: Mapping[str, TopicView]
    unclear: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Return every partition in the view."""
        return frozenset(TopicPartition(name, number) for name, topic in self.topics.items() for number in range(topic.count))

    def incomplete(self, asked_version: int) -> str | None:
        """Return why this view may not show all existing partitions, or None if the view shows all.

        ``asked_version``: the version of the first response to a request that was sent after the subscription or the assignment
        arrived.
        """
        if self.version < asked_version:
            return f"the metadata of version {self.version} is too old: version {asked_version} or later is needed"
        if self.unclear:
            return ", ".join(f"topic {name!r}: {why}" for name, why in sorted(self.unclear.items()))
        return None


async def fresh_view(cluster: ClusterClient, topics: Iterable[str], pattern: str | None, deadline: Deadline) -> View:
    """Return a complete view from metadata that is requested after this call began.

    Raise ``RetriableError`` while the metadata does not show for certain which topics exist, and the errors of :func:`view_of`.
    """
    version = cluster.metadata.version + 1
    view = view_of(await cluster.refresh(deadline), topics, pattern)
    incomplete = view.incomplete(version)
    if incomplete is not None:
        raise RetriableError(incomplete)
    return view


def view_of(metadata: Metadata, topics: Iterable[str], pattern: str | None) -> View:
    """Return the part of ``metadata`` for a subscription: ``topics``, or every topic whose whole name matches ``pattern``.

    A topic that some broker has just called unknown is unclear, because that broker's metadata may be outdated. Raise
    ``AuthorizationError`` if the principal may not describe one of the topics.
    """
    matches = None if pattern is None else re.compile(pattern)
    names: Set[str] = frozenset(topics)
    if matches is not None:
        names = frozenset(metadata.matching(matches, exclude_internal=True))
    unclear = dict.fromkeys(names & metadata.unknown_since.keys(), "a broker does not know it")
    for name, code in metadata.errors.items():
        if not (name in names if matches is None else matches.fullmatch(name) is not None):
            continue
        if code == codes.TOPIC_AUTHORIZATION_FAILED:
            raise fatal(code, group_id="", request=f"Metadata of topic {name!r}")
        if code != codes.UNKNOWN_TOPIC_OR_PARTITION and name not in metadata.topics:
            unclear[name] = codes.error_name(code)
    found = {name: metadata.topics[name] for name in names & metadata.topics.keys()}
    return View(metadata.version, {name: TopicView(one.id, one.partition_count) for name, one in found.items()}, unclear)
