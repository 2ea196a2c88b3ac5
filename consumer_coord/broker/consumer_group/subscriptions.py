"""Apply a changed subscription to its group: regular expressions, the hash of the topics, the group epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from consumer_coord.broker.consumer_group import records
from consumer_coord.broker.consumer_group.context import Change, Coordination, write
from consumer_coord.broker.consumer_group.group import (
    ConsumerGroup,
    ResolvedRegex,
    is_homogeneous,
    subscribed_topics,
)
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember
from consumer_coord.broker.consumer_group.regex import compile_regex, resolve
from consumer_coord.broker.consumer_group.topics_image import MetadataImage
from consumer_coord.broker.shard import Shard

#: Minimum interval between two resolutions of a group's regular expressions, in milliseconds.
REGEX_REFRESH_MIN_INTERVAL_MS = 10_000


@attrs.frozen
class GroupSubscription:
    """The group epoch after a heartbeat, and whether the heartbeat changes the member's subscription.

    ``members`` are the group's members, or None if the heartbeat does not change them.
    """

    epoch: int
    changed: bool
    members: Sequence[ConsumerGroupMember] | None = None

    def is_homogeneous(self, group: ConsumerGroup) -> bool:
        """Return whether all members subscribe to the same topics."""
        return is_homogeneous(group.members.values() if self.members is None else self.members)


class Subscriptions:
    """Updates the matching topics of regular expressions, and the group epoch, when a subscription or a topic changes."""

    def __init__(self, coordination: Coordination) -> None:
        self._with = coordination

    def update(
        self, change: Change, group: ConsumerGroup, member: ConsumerGroupMember, updated: ConsumerGroupMember
    ) -> GroupSubscription:
        """Add the records of a member's update to ``change``, and schedule a look-up of matching topics if it is due.

        Increase the group epoch if ``updated`` changes the group's topics or assignor, or if topics of the group changed. Raise
        :class:`~consumer_coord.broker.errors.GroupError` with INVALID_REGULAR_EXPRESSION if RE2 refuses an expression.
        """
        if updated is not member and updated != member:
            change.records.append(records.member_metadata(group.group_id, updated))
        image = self._with.image
        renamed = member.subscribed_topics != updated.subscribed_topics
        regex_changed = member.subscribed_regex != updated.subscribed_regex
        regex_resolved = self._update_regex(change, group, member, updated)
        if updated.classic is None:
            # As in Kafka, only ConsumerGroupHeartbeat checks the assignors.
            bump = renamed or regex_resolved or group.changes_assignor(updated, self._with.default_assignor)
        else:
            bump = renamed or regex_changed  # A classic member has no regular expression.
        changed = renamed or regex_changed
        if not bump and not metadata_is_due(group, image):
            return GroupSubscription(group.epoch, changed)
        members = members_with(group, updated)
        metadata_hash = image.group_hash(subscribed_topics(members, group.resolved_regexes))
        epoch = group.epoch
        if bump or metadata_hash != group.metadata_hash:
            epoch += 1
            change.records.append(records.group_epoch(group.group_id, epoch, metadata_hash))
        if group.has_partition_metadata:
            change.records.append(records.partition_metadata_tombstone(group.group_id))
        return GroupSubscription(epoch, changed, members)

    # -- regular expressions

    def _update_regex(
        self, change: Change, group: ConsumerGroup, member: ConsumerGroupMember, updated: ConsumerGroupMember
    ) -> bool:
        """Update a member's regular expression; return whether the group epoch must increase at once.

        This is the case if the expression was removed, or if the matching topics of the new expression are already known. In
        other cases, the matching topics are looked up after this heartbeat, and the group epoch increases after the look-up.
        """
        old, new = member.subscribed_regex or "", updated.subscribed_regex or ""
        is_new = resolved = False
        if member.subscribed_regex != updated.subscribed_regex:
            if old and group.subscribers_of(old) == 1:
                change.records.append(records.regex_tombstone(group.group_id, old))
            is_new = bool(new) and not group.subscribers_of(new)
            if is_new:
                compile_regex(new)
            else:
                resolved = new in group.resolved_regexes or (bool(old) and not new)
        self._maybe_resolve(change, group, member, updated, is_new)
        return resolved

    def _maybe_resolve(
        self, change: Change, group: ConsumerGroup, member: ConsumerGroupMember, updated: ConsumerGroupMember, is_new: bool
    ) -> None:
        if group.resolving or not (is_new or group.has_regexes):
            return
        now_ms = self._with.wall_clock_ms()
        # All expressions are resolved together, so each expression has the time of the last resolution.
        last = next(iter(group.resolved_regexes.values()), None)
        if last is not None and now_ms <= last.timestamp_ms + REGEX_REFRESH_MIN_INTERVAL_MS:
            return
        expressions = group.regexes_with(member, updated)
        due = (
            is_new
            or len(expressions) != len(group.resolved_regexes)
            or (0 if last is None else last.version) < self._with.image.topics.newest_topic_version
            or last is None
            or now_ms > last.timestamp_ms + self._with.config.group_consumer_regex_refresh_interval_ms
        )
        if due and expressions:
            change.after.append(lambda: self._schedule_resolving(change.shard, group.group_id, expressions))

    def _schedule_resolving(self, shard: Shard, group_id: str, expressions: Iterable[str]) -> None:
        """Resolve the expressions after this heartbeat's response, because this may take a long time with many topics."""
        group = shard.consumer_groups.get(group_id)
        if group is None or group.resolving:
            return
        group.resolving = True
        name = ("regex", group_id, "")

        def happen() -> None:
            shard.timers.pop(name, None)
            found = resolve(
                expressions, self._with.image.topics.by_name, self._with.image.topics.version, self._with.wall_clock_ms()
            )
            self._resolved(shard, group_id, found)

        shard.timers[name] = self._with.purgatory.schedule(0, happen)

    def _resolved(self, shard: Shard, group_id: str, found: Mapping[str, ResolvedRegex]) -> None:
        group = shard.consumer_groups.get(group_id)
        if group is None:
            return
        group.resolving = False
        change = Change(shard)
        resolved = dict(group.resolved_regexes)
        changed = False
        for expression, result in found.items():
            if group.subscribers_of(expression):
                known = resolved.get(expression)
                changed |= (frozenset() if known is None else known.topics) != result.topics
                resolved[expression] = result
                change.records.append(records.regex(group_id, expression, result))
        version = self._with.image.topics.version
        metadata_hash = self._with.image.group_hash(subscribed_topics(group.members.values(), resolved))
        if changed or metadata_hash != group.metadata_hash:
            change.records.append(records.group_epoch(group_id, group.epoch + 1, metadata_hash))
            change.after.append(lambda: group.metadata_was_looked_at(version))
        write(self._with.store, change)


def metadata_is_due(group: ConsumerGroup, image: MetadataImage) -> bool:
    """Return whether the hash of a group's topics must be computed again (``hasMetadataExpired``).

    The hash must be computed again only after a change of the group's topics. An unresolved regular expression would also
    change the hash, but as in Kafka, the group epoch increases only after the expression is resolved.
    """
    version = group.metadata_version
    return version != image.topics.version and (version < 0 or image.changed_since(version, group.subscribed_topics()))


def members_with(group: ConsumerGroup, updated: ConsumerGroupMember) -> tuple[ConsumerGroupMember, ...]:
    """Return the group's members after the update, without the static member that ``updated`` replaces."""
    former = group.static_members.get(updated.instance_id) if updated.instance_id is not None else None
    members = {**group.members, updated.member_id: updated}
    if former is not None and former != updated.member_id:
        members.pop(former, None)
    return tuple(members.values())
