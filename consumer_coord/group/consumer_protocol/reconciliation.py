"""The target of one member of the consumer protocol, and the owned partitions in its heartbeats.

:class:`Holdings` translates between the topic ids of responses and the names of
:class:`~consumer_coord.group.assignment.AssignmentState`, which tells the application what to revoke and what to add.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from consumer_coord.group.consumer_protocol.requests import Owned
from consumer_coord.group.consumer_protocol.target_assignment import TargetAssignment, owned_by_id, reconcile
from consumer_coord.group.member_context import MemberContext
from consumer_coord.topic_partition import TopicPartition, listed


class Holdings:
    """Target and owned partitions of one member; all methods run on the member's loop."""

    def __init__(self, context: MemberContext) -> None:
        self._with = context
        self._target = TargetAssignment()
        #: Topic -> topic id, for the topics of partitions that are owned or in the target.
        self._ids: Mapping[str, uuid.UUID] = {}
        #: True while some partitions of the target must wait: for metadata, or until the member has revoked the partitions of a
        #: deleted topic with the same name.
        self.waits: bool = False
        self._refreshes = 0
        #: The partitions that a heartbeat reports as owned: owned partitions, partitions to add, and partitions being revoked.
        self.owned: Owned = ()

    def follow(self, rows: Iterable[tuple[uuid.UUID, Sequence[int]]]) -> bool:
        """Set the target to the rows of a response; return False if the target does not change."""
        target = self._target.following(rows)
        is_news = target is not self._target
        self._target = target
        return is_news

    def resolve(self, epoch: int, *, new: bool = False) -> bool:
        """Publish the target's partitions of known topics; return True if they changed or the membership is ``new``."""
        assignment, cluster = self._with.assignment, self._with.cluster
        held = assignment.held | assignment.revoked
        found = reconcile(self._target, cluster.metadata.names(), held, self._ids)
        self._ids = {
            **{topic: topic_id for topic, topic_id in self._ids.items() if any(one.topic == topic for one in held)},
            **found.ids,
        }
        self.waits = not found.complete
        if not found.unknown:
            self._refreshes = 0
        elif self._refreshes:
            cluster.refresh_later(cluster.backoff.ms(self._refreshes))
            self._refreshes += 1
        else:
            cluster.refresh_soon()
            self._refreshes = 1
        changed = new or found.partitions != assignment.target.partitions
        if changed:
            assignment.publish(epoch, found.partitions)
            self._with.log.info("assigned %s", listed(found.partitions))
        self.look()
        return changed

    def look(self) -> None:
        """Recompute :attr:`owned`."""
        assignment = self._with.assignment
        held = assignment.held | assignment.revoked | assignment.target.partitions
        self.owned = owned_by_id((one for one in held if one.topic in self._ids), self._ids)

    @property
    def unacknowledged(self) -> frozenset[TopicPartition]:
        """Partitions that were revoked here and not yet acknowledged. Until they are, the broker assigns them to nobody."""
        return self._with.assignment.revoked

    def acknowledged(self, partitions: frozenset[TopicPartition]) -> None:
        """Acknowledge revoked partitions whose commits have completed, so that the broker may assign them to other members."""
        self._with.assignment.drop_revoked(partitions)
        self.look()

    @property
    def to_revoke(self) -> bool:
        """True while the application owns partitions to revoke, or revoked partitions are not acknowledged."""
        return bool(self._with.assignment.to_revoke or self.unacknowledged)

    def lost(self) -> bool:
        """Lose the target and the owned partitions with the membership; return False if there was nothing to lose."""
        self._target = TargetAssignment()
        self.waits = False
        had = self._with.assignment.lose()
        self.look()
        return had


def has_revoked(reported: Owned, owned: Owned) -> bool:
    """Return whether a partition in ``reported``, which the coordinator knows as owned, is not in ``owned``."""
    if reported == owned:
        return False
    now = {topic_id: frozenset(numbers) for topic_id, numbers in owned}
    return any(not now.get(topic_id, frozenset()).issuperset(numbers) for topic_id, numbers in reported)
