"""Remove members that leave, fail, or are late, and increase the group epoch (``consumerGroupFenceMembers``)."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Sequence
from typing import Final

from consumer_coord.broker.consumer_group import conversion, records
from consumer_coord.broker.consumer_group.context import Change, Coordination, write
from consumer_coord.broker.consumer_group.group import ConsumerGroup, subscribed_topics
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember
from consumer_coord.broker.consumer_group.subscriptions import metadata_is_due
from consumer_coord.broker.shard import Shard
from consumer_coord.log_text import get_logger
from consumer_coord.wire import error_codes

logger: Final = get_logger(__name__)

#: Time until a timer runs again if the log refused its records, in milliseconds.
_RETRY_MS = 500


class TimerKind(enum.Enum):
    """The kinds of a member's timers (``CoordinatorTimer``), with the reason to fence a member when its timer expires."""

    SESSION = "sent no heartbeat"
    REBALANCE = "did not revoke its partitions in time"
    #: Of classic members.
    JOIN = "did not join again in time"
    SYNC = "did not send SyncGroup in time"


class Fencing:
    """Removes members, at once or when a timer expires."""

    def __init__(self, coordination: Coordination) -> None:
        self._with = coordination

    def fence(self, shard: Shard, group: ConsumerGroup, members: Sequence[ConsumerGroupMember]) -> Change:
        """Remove members. If no member of the consumer protocol remains, the group may become a classic group."""
        change = Change(shard)
        if not members:
            return change
        gone = {member.member_id: member for member in members}
        remaining = len(group.members) - len(gone)
        if group.all_classic_but(gone) and conversion.can_downgrade(self._with, group, remaining):
            reason = "the last members of the consumer protocol left"
            conversion.to_classic(self._with, group, change, leaving=gone, rebalance=reason)
            return change
        group_id = group.group_id
        for member_id in gone:
            change.records += records.member_tombstones(group_id, member_id)
        resolved = dict(group.resolved_regexes)
        for regex, count in Counter(one.subscribed_regex for one in gone.values() if one.subscribed_regex).items():
            if regex is not None and group.subscribers_of(regex) == count:
                change.records.append(records.regex_tombstone(group_id, regex))
                resolved.pop(regex, None)
        left = [member for member_id, member in group.members.items() if member_id not in gone]
        metadata_hash = self._with.image.group_hash(subscribed_topics(left, resolved))
        change.records.append(records.group_epoch(group_id, group.epoch + 1, metadata_hash))
        if not left:
            # An empty group needs no assignment. With the assignment time 0, the broker computes the target of the next member
            # without a delay.
            change.records.append(records.target_epoch(group_id, group.epoch + 1, 0))

        def cancel_timers() -> None:
            for member_id in gone:
                self.cancel(shard, group_id, member_id, *TimerKind)

        change.after.append(cancel_timers)
        if metadata_is_due(group, self._with.image):
            # Make the next heartbeat check the topics in any case, because only the removed members may have subscribed to the
            # changed topics.
            change.after.append(lambda: group.metadata_was_looked_at(-1))
        return change

    # -- timers

    def schedule_session(self, shard: Shard, group_id: str, member_id: str, timeout_ms: int | None = None) -> None:
        """Restart the member's session, by default with the session timeout of the group."""
        if timeout_ms is None:
            timeout_ms = self._with.group_settings.session_timeout_ms(group_id)
        self.schedule(shard, TimerKind.SESSION, group_id, member_id, timeout_ms)

    def schedule_rebalance(self, shard: Shard, group_id: str, member: ConsumerGroupMember) -> None:
        """Fence a member if it does not revoke its partitions in time, unless the member has reached a later epoch."""
        timeout_ms = member.rebalance_timeout_ms
        self.schedule(shard, TimerKind.REBALANCE, group_id, member.member_id, timeout_ms, only_in_epoch=member.member_epoch)

    def schedule(
        self,
        shard: Shard,
        kind: TimerKind,
        group_id: str,
        member_id: str,
        timeout_ms: int,
        *,
        only_in_epoch: int | None = None,
    ) -> None:
        """Fence a member when a timer of this kind expires; replace an earlier timer of the same kind.

        But keep an earlier timer for JoinGroup, and only postpone an earlier session timer, which is cheaper than a new timer.
        """
        name = (kind.name, group_id, member_id)
        purgatory = self._with.purgatory

        def start(delay_ms: int) -> None:
            shard.timers[name] = purgatory.schedule(delay_ms, expire)

        def expire() -> None:
            shard.timers.pop(name, None)
            group = shard.consumer_groups.get(group_id)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None or only_in_epoch not in (None, member.member_epoch):
                return
            logger.debug("member %s of group %s is fenced: it %s", member_id, group_id, kind.value)
            write(self._with.store, self.fence(shard, group, (member,))).add_done_callback(retry_if_refused)

        def retry_if_refused(result: asyncio.Future[int]) -> None:
            refused = not result.cancelled() and result.result() not in (error_codes.NONE, error_codes.NOT_LEADER_OR_FOLLOWER)
            if refused and name not in shard.timers:
                start(_RETRY_MS)

        present = shard.timers.get(name)
        if present is None:
            start(timeout_ms)
        elif kind is TimerKind.SESSION:
            purgatory.put_off(present, timeout_ms)
        elif kind is not TimerKind.JOIN:
            purgatory.cancel(present)
            start(timeout_ms)

    def cancel(self, shard: Shard, group_id: str, member_id: str, *kinds: TimerKind) -> None:
        """Cancel the timers of these kinds of a member."""
        for kind in kinds:
            self._with.purgatory.cancel(shard.timers.pop((kind.name, group_id, member_id), None))

    def close(self, shard: Shard) -> None:
        """Cancel all timers of a partition that another broker leads now."""
        for operation in shard.timers.values():
            self._with.purgatory.cancel(operation)
        shard.timers.clear()
