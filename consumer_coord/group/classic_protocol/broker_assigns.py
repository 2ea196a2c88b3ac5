"""A classic member in a group with members of the consumer protocol: the broker assigns, and no member leads (KIP-848)."""

from __future__ import annotations

from consumer_coord.group.classic_protocol.session import ClassicSession
from consumer_coord.group.consumer_protocol.schedule import DEFAULT_INTERVAL_MS, early_moments
from consumer_coord.group.member_log import MemberLog
from consumer_coord.wire.messages.group import JoinGroupResponse

#: Kafka's assignors, which the broker's assignors may replace without a warning.
_OF_KAFKA = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})

#: Default of the brokers' ``group.consumer.session.timeout.ms``, in milliseconds.
_GROUP_SESSION_MS = 45_000


def session_ms(answer: JoinGroupResponse, own_ms: int) -> int:
    """Return the session timeout that a lease may use after a JoinGroup response, in milliseconds."""
    return own_ms if answer.leader else min(own_ms, _GROUP_SESSION_MS)


class BrokerAssigns:
    """Records whether the broker assigns, and applies the consequences for the member."""

    def __init__(self, log: MemberLog, session: ClassicSession) -> None:
        self._log = log
        self._session = session
        #: True after a JoinGroup response of a group with members of the consumer protocol.
        self.active: bool = False
        self._reported = False

    def joined(self, answer: JoinGroupResponse) -> None:
        """Process a JoinGroup response; warn once if the broker replaces an assignor that is not one of Kafka's."""
        self.active = not answer.leader
        if self.active and answer.protocol_name not in _OF_KAFKA and not self._reported:
            self._reported = True
            self._log.warning(
                "the group has members of the consumer protocol, so the broker assigns the partitions with one"
                " of its group.consumer.assignors. Assignor %r is not used until these members have left",
                answer.protocol_name,
            )

    def synced(self) -> None:
        """If the broker assigns, send early heartbeats: others may revoke partitions for this member in the same generation."""
        if self.active:
            self._session.beat_early(early_moments(DEFAULT_INTERVAL_MS))
