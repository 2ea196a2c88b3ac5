"""What one member of the consumer protocol is to hold, and what its heartbeats say that it holds.

It stands between the topic ids of the answers and the names of :class:`~consumer_coord.group.assignment.AssignmentState`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from consumer_coord.group.consumer_protocol.requests import Owned
from consumer_coord.group.consumer_protocol.topic_names import TargetAssignment, owned_by_id, reconcile
from consumer_coord.group.protocol import MemberContext
from consumer_coord.topic_partition import TopicPartition, listed


class Holdings:
    """Of one member; on its loop."""

    def __init__(self, context: MemberContext) -> None:
        self._with = context
        self._target = TargetAssignment()
        #: Of which topics the partitions are that are held, or wanted.
        self._ids: Mapping[str, uuid.UUID] = {}
        #: True while a part of the target waits for metadata, or for what is held of a former topic.
        self.waits = False
        self._refreshes = 0
        #: What a heartbeat says that is held: what is, what will be taken up, and what is being given up.
        self.owned: Owned = ()

    def told(self, rows: Iterable[tuple[uuid.UUID, Sequence[int]]]) -> bool:
        """An answer names what to hold; False when that is known already."""
        target = self._target.following(rows)
        is_news = target is not self._target
        self._target = target
        return is_news

    def resolve(self, epoch: int, *, anew: bool = False) -> bool:
        """Publish the target, as far as its topics are known; True when that changed it, or the member is ``anew``."""
        assignment, cluster = self._with.assignment, self._with.cluster
        held = assignment.held | assignment.giving_up
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
        changed = anew or found.partitions != assignment.target.partitions
        if changed:
            assignment.publish(epoch, found.partitions)
            self._with.log.info("assigned %s", listed(found.partitions))
        self.look()
        return changed

    def look(self) -> None:
        """Look at what is held now."""
        assignment = self._with.assignment
        held = assignment.held | assignment.giving_up | assignment.target.partitions
        self.owned = owned_by_id((one for one in held if one.topic in self._ids), self._ids)

    @property
    def giving_up(self) -> frozenset[TopicPartition]:
        """Revoked, while commits of them are under way: not acknowledged yet, so no other member is assigned them."""
        return self._with.assignment.giving_up

    def acknowledged(self, partitions: frozenset[TopicPartition]) -> None:
        """Commits of these have been answered: the group may give them to other members."""
        self._with.assignment.given_up(partitions)
        self.look()

    @property
    def to_revoke(self) -> bool:
        """True while the application holds what the group wants back, or the group has not heard yet that it does not."""
        return bool(self._with.assignment.to_revoke or self.giving_up)

    def lost(self) -> bool:
        """The membership is gone; False if there was nothing to lose."""
        self._target = TargetAssignment()
        self.waits = False
        had = self._with.assignment.lose()
        self.look()
        return had


def has_given_up(told: Owned, owned: Owned) -> bool:
    """True when something of what the coordinator was ``told`` is not ``owned`` any more."""
    if told == owned:
        return False
    now = {topic_id: frozenset(numbers) for topic_id, numbers in owned}
    return any(not now.get(topic_id, frozenset()).issuperset(numbers) for topic_id, numbers in told)
