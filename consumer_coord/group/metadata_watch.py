"""Changes of the cluster's metadata that affect one member: topics that match, grow, vanish, or do not exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, UnknownTopicError
from consumer_coord.final_errors import fatal
from consumer_coord.group.subscription import NOTHING, TopicSubscription
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Metadata
from consumer_coord.wire import error_codes as codes

logger: Final = get_logger(__name__)

#: How long a topic must be missing, or a pattern must match no topic, before the log reports this, in milliseconds. An
#: application may create the topic a little later than it subscribes.
_TOLD_AFTER_MS = 3_000
#: Represents the pattern in the set of logged names. No topic has an empty name, so the empty string cannot be confused with a
#: topic.
_PATTERN = ""


@attrs.frozen
class ClusterView:
    """The metadata from which a leader assigns; if the metadata changes, the leader must assign again (KIP-429, KIP-881)."""

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]]

    @classmethod
    def of(cls, metadata: Metadata, topics: frozenset[str], *, with_racks: bool) -> ClusterView:
        """Return the part of ``metadata`` that affects an assignment of ``topics``."""
        partitions = metadata.partitions(sorted(topics))
        racks = {topic: metadata.racks(topic) for topic in partitions} if with_racks else {}
        return cls(partitions, {topic: sets for topic, sets in racks.items() if any(sets)})


class MetadataWatch:
    """Watches the metadata of the topics that a member needs.

    A follower watches only its own subscription. The leader watches all topics of the group, because no other member notices
    when a topic grows (``ConsumerCoordinator.rejoinNeededOrPending`` of the Java client).
    """

    def __init__(
        self, cluster: ClusterClient, group_id: str, *, exclude_internal: bool, on_change: Callable[[Metadata], None]
    ) -> None:
        self.subscription: TopicSubscription = NOTHING
        self._cluster = cluster
        self._group_id = group_id
        self._exclude_internal = exclude_internal
        self._group_topics: frozenset[str] = frozenset()
        self._assigned: ClusterView | None = None
        self._with_racks = False
        self._doubted_racks: Mapping[str, Sequence[frozenset[str]]] | None = None
        self._missing_reported = False
        #: Topic -> the time since which it is missing.
        self._missing_since: dict[str, float] = {}
        #: The time since which the pattern matches no topic; None while it matches, and without a pattern.
        self._unmatched_since: float | None = None
        #: Topics that were logged as missing, and :data:`_PATTERN` if the log has reported that the pattern matches no topic.
        self._logged: set[str] = set()
        self._watch = cluster.watch(frozenset(), on_change, self._prepare)

    def _prepare(self, metadata: Metadata) -> None:
        """Match the pattern before the loop reads the metadata."""
        self.subscription.wanted(metadata, exclude_internal=self._exclude_internal)

    def close(self) -> None:
        """Stop watching."""
        self._cluster.unwatch(self._watch)

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Watch the topics of a new subscription."""
        self.subscription = subscription
        self._missing_reported = False
        self._missing_since.clear()
        self._unmatched_since = None
        self._logged.clear()
        self._update()

    def topics(self) -> tuple[str, ...]:
        """Return the topics to subscribe to, according to the current metadata."""
        return self.subscription.wanted(self._cluster.metadata, exclude_internal=self._exclude_internal)

    def lead(self, topics: frozenset[str], *, with_racks: bool) -> None:
        """Watch ``topics`` of the group that this member leads."""
        self._group_topics = topics
        self._with_racks = with_racks
        self._update()

    def follow(self) -> None:
        """Watch only this member's subscription, because it does not lead."""
        if self._assigned is not None or self._group_topics:
            self._assigned = None
            self._group_topics = frozenset()
            self._update()

    def view(self) -> ClusterView:
        """Return the metadata for an assignment that is made now, and keep it for :meth:`reason_to_rejoin`."""
        self._assigned = self._view()
        self._doubted_racks = None
        return self._assigned

    def resume(self, assigned: ClusterView) -> None:
        """Watch the metadata for differences from ``assigned``, which an existing assignment covers."""
        self._assigned = assigned

    def _view(self) -> ClusterView:
        return ClusterView.of(self._cluster.metadata, self._group_topics, with_racks=self._with_racks)

    def reason_to_rejoin(self, joined_topics: tuple[str, ...]) -> str | None:
        """Return the reason for another assignment of the group, or None."""
        if self.subscription.pattern is not None and self.topics() != joined_topics:
            return "the topics that match the pattern changed"
        if self._assigned is None:
            return None
        view = self._view()
        if view.partitions != self._assigned.partitions:
            return "topics or partition counts changed"
        if view.racks == self._assigned.racks:
            self._doubted_racks = None
        elif self._doubted_racks == view.racks:
            return "racks changed"
        else:
            # A restarting broker reports wrong racks of its partitions for a short time, so accept changed racks only after two
            # reports.
            self._doubted_racks = view.racks
            self._cluster.refresh_later(self._cluster.config.retry_backoff_max_ms)
        return None

    def missing(self, patience_ms: float, *, at_once: bool = False) -> CoordinatorError | None:
        """Return the error for topics that the application subscribed to by name and cannot read.

        A missing topic may be created soon, so report it only after it was missing for ``patience_ms``. With ``at_once``, also
        report it as soon as a broker calls it unknown.
        """
        metadata = self._cluster.metadata
        missing = [topic for topic in self.subscription.topics if topic not in metadata.topics]
        self._missing_since = {topic: self._missing_since.get(topic, now()) for topic in missing}
        self._log_missing()
        if not missing:
            self._missing_reported = False
            return None
        if self._missing_reported:
            return None
        for topic in missing:
            code = metadata.errors.get(topic, codes.NONE)
            if code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.INVALID_TOPIC_EXCEPTION):
                self._missing_reported = True
                return fatal(code, group_id=self._group_id, request=f"metadata of topic {topic!r}")
        gone = [
            topic
            for topic, since in self._missing_since.items()
            if now() - since > patience_ms / 1000
            or (at_once and metadata.errors.get(topic) == codes.UNKNOWN_TOPIC_OR_PARTITION)
        ]
        if not gone:
            return None
        self._missing_reported = True
        unknown = UnknownTopicError(
            f"subscribed topics do not exist: {', '.join(gone)}. Create them, or correct the names; the member reads them as"
            " soon as they appear",
            code=codes.UNKNOWN_TOPIC_OR_PARTITION,
        )
        unknown.topics = tuple(gone)
        return unknown

    def _log_missing(self) -> None:
        """Log once each topic that remains missing, and once a pattern that matches no topic."""
        self._logged &= {*self._missing_since, *([] if self._unmatched_since is None else [_PATTERN])}
        for topic, since in self._missing_since.items():
            if topic not in self._logged and now() - since >= _TOLD_AFTER_MS / 1000:
                self._logged.add(topic)
                code = self._cluster.metadata.errors.get(topic, codes.UNKNOWN_TOPIC_OR_PARTITION)
                logger.warning(
                    "[group=%s] subscribed topic %s is not available (%s); still looking it up",
                    self._group_id,
                    topic,
                    "it does not exist" if code == codes.UNKNOWN_TOPIC_OR_PARTITION else codes.error_name(code),
                )
        pattern = self.subscription.pattern
        if pattern is None or self.topics():
            self._unmatched_since = None
            return
        if self._unmatched_since is None:
            self._unmatched_since = now()
        if _PATTERN in self._logged:
            return
        if now() - self._unmatched_since < _TOLD_AFTER_MS / 1000:
            self._cluster.refresh_later(_TOLD_AFTER_MS)
        else:
            self._logged.add(_PATTERN)
            logger.warning(
                "[group=%s] no topic that this principal may describe matches the pattern %s; the client looks for new"
                " topics every metadata.max.age.ms",
                self._group_id,
                pattern.pattern,
            )

    def _update(self) -> None:
        if self.subscription.pattern is not None:
            self._cluster.change_watch(self._watch, None)
        else:
            self._cluster.change_watch(self._watch, frozenset(self.subscription.topics) | self._group_topics)
