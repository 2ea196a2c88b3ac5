"""The content of one member's heartbeats, and the part of the content that the coordinator already has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from consumer_coord.config import CoordinatorConfig
from consumer_coord.group.consumer_protocol import patterns, requests
from consumer_coord.group.consumer_protocol.reconciliation import has_revoked
from consumer_coord.group.consumer_protocol.requests import HeartbeatFields, Owned
from consumer_coord.group.metadata_watch import MetadataWatch
from consumer_coord.group.subscription import NOTHING, TopicSubscription
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.wire.messages.group import ConsumerGroupHeartbeatRequest

#: After so many heartbeats without all fields, one has them. Only then does the coordinator return the whole assignment again,
#: which corrects a response that omitted partitions.
_MOST_BRIEF: Final = 9


class HeartbeatContents:
    """The heartbeat contents of one member; all methods run on the member's loop."""

    def __init__(self, config: CoordinatorConfig, cluster: ClusterClient, watch: MetadataWatch) -> None:
        self._config = config
        self._cluster = cluster
        self._watch = watch
        #: The member's id, which remains the same until the member is closed (KIP-1082).
        self.member_id: str = requests.new_member_id(cluster.environment.random.getrandbits)
        self._subscription: TopicSubscription = NOTHING
        #: The subscription's pattern, if the broker can resolve it.
        self._regex: str | None = None
        #: The subscription and the version of the metadata from which the topics to subscribe to were computed.
        self._topics_of: tuple[TopicSubscription, int] = (NOTHING, -1)
        self._topics: Sequence[str] = ()
        #: Version of the last ConsumerGroupHeartbeat.
        self._version = requests.OWN_ID_AND_REGEX_FROM
        self.reported: HeartbeatFields = HeartbeatFields()
        #: True if the coordinator may not have received the last content, so that the next heartbeat must carry all fields.
        self.everything: bool = True
        #: The number of confirmed heartbeats since the last one with all fields.
        self._brief = 0

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Replace the subscription."""
        self._subscription = subscription
        pattern, config = subscription.pattern, self._config
        self._regex = None
        if pattern is not None:
            self._regex = patterns.for_broker(pattern, exclude_internal=config.exclude_internal_topics)
        self._watch.subscribe(subscription)

    def resolve_here(self) -> bool:
        """Resolve the pattern in this client after the broker refused it; return False if the broker received no pattern."""
        had, self._regex = self._regex, None
        return had is not None

    def has_news(self, owned: Owned) -> bool:
        """Return whether a heartbeat must report at once that the topics changed, or that partitions left ``owned``."""
        says = self._says(self._version, owned)
        return (
            says.topics != self.reported.topics or says.regex != self.reported.regex or has_revoked(self.reported.owned, owned)
        )

    def _says(self, version: int, owned: Owned) -> HeartbeatFields:
        if self._regex is not None and version >= requests.OWN_ID_AND_REGEX_FROM:
            return HeartbeatFields((), self._regex, owned)
        as_of = (self._subscription, self._cluster.metadata.version)
        if as_of != self._topics_of:
            self._topics_of, self._topics = as_of, self._watch.topics()
        return HeartbeatFields(self._topics, None, owned)

    def heartbeat(self, epoch: int, owned: Owned, said: list[HeartbeatFields]) -> Versioned:
        """Return a heartbeat in the version that the broker supports; the list ``said`` receives the heartbeat's content."""

        def build(version: int) -> ConsumerGroupHeartbeatRequest:
            self._version = version
            says = self._says(version, owned)
            said[:] = [says]
            return requests.heartbeat(
                self._config, self.member_id, epoch, says, self.reported, everything=self._has_all, version=version
            )

        return Versioned(ConsumerGroupHeartbeatRequest, build)

    def acknowledged(self, says: HeartbeatFields) -> None:
        """Record that the coordinator has confirmed a heartbeat with the content ``says``."""
        self._brief = 0 if self._has_all else self._brief + 1
        self.reported, self.everything = says, False

    @property
    def _has_all(self) -> bool:
        """Whether the next heartbeat carries all fields."""
        return self.everything or self._brief >= _MOST_BRIEF

    def forgotten(self) -> None:
        """Record that the coordinator does not know this member, so that the next heartbeat carries all fields."""
        self.reported, self.everything = HeartbeatFields(), True
