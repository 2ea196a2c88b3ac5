"""Remove members that leave, fail, or are late, and increase the group epoch (``consumerGroupFenceMembers``)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from consumer_coord.broker.consumer_group import conversion, records
from consumer_coord.broker.consumer_group.context import Change, Coordination, write
from consumer_coord.broker.consumer_group.group import ConsumerGroup, subscribed_topics
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember
from consumer_coord.broker.consumer_group.subscriptions import metadata_is_due
from consumer_coord.broker.consumer_group.timers import TimerKind
from consumer_coord.broker.shard import Shard
from consumer_coord.printable import get_logger
from consumer_coord.wire import error_codes

logger: Final = get_logger(__name__)

#: Time until a timer runs again if the log refused its records, in milliseconds.
_RETRY_MS = 500


class Fencing:
    """Removes members, at once or when a timer expires."""

    def __init__(self, coordination: Coordination) -> None:
        self._with = coordination

    def fence(self, shard: Shard, group: ConsumerGroup, members: Sequence[ConsumerGroupMember]) -> Change:
        """Remove members. If no member of the consumer protocol remains, the group may become a classic group."""
        change = Change()
        if not members:
            return change
        gone = {member.member_id: member for member in members}
        remaining = len(group.members) - len(gone)
        if group.all_classic_but(gone) and conversion.can_downgrade(self._with, group, remaining):
            reason = "the last members of the consumer protocol left"
            conversion.to_classic(self._with, shard, group, change, leaving=gone, rebalance=reason)
            return change
        group_id = group.group_id
        for member_id in gone:
            change.add(records.member_tombstones(group_id, member_id))
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
                self._with.timers.cancel_all(shard, group_id, member_id)

        change.after.append(cancel_timers)
        if metadata_is_due(group, self._with.image):
            # Make the next heartbeat check the topics in any case, because only the removed members may have subscribed to the
            # changed topics.
            change.after.append(lambda: group.metadata_was_looked_at(-1))
        return change

    # -- timers

    def schedule_session(self, shard: Shard, group_id: str, member_id: str, timeout_ms: int | None = None) -> None:
        """Restart the member's session, with ``group.consumer.session.timeout.ms`` by default."""
        if timeout_ms is None:
            timeout_ms = self._with.config.group_consumer_session_timeout_ms
        self._schedule(shard, TimerKind.SESSION, group_id, member_id, timeout_ms, "sent no heartbeat")

    def schedule_rebalance(self, shard: Shard, group_id: str, member: ConsumerGroupMember) -> None:
        """Fence a member if it does not revoke its partitions in time, unless the member has reached a later epoch."""
        self._schedule(
            shard,
            TimerKind.REBALANCE,
            group_id,
            member.member_id,
            member.rebalance_timeout_ms,
            "did not revoke its partitions in time",
            only_in_epoch=member.member_epoch,
        )

    def schedule_join(self, shard: Shard, group_id: str, member: ConsumerGroupMember) -> None:
        """Fence a classic member if it does not rejoin in time."""
        self._schedule(
            shard,
            TimerKind.JOIN,
            group_id,
            member.member_id,
            member.rebalance_timeout_ms,
            "did not join again in time",
            if_absent=True,
        )

    def schedule_sync(self, shard: Shard, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Fence a classic member if it does not send SyncGroup in time."""
        self._schedule(shard, TimerKind.SYNC, group_id, member_id, timeout_ms, "did not send SyncGroup in time")

    def _schedule(
        self,
        shard: Shard,
        kind: TimerKind,
        group_id: str,
        member_id: str,
        timeout_ms: int,
        reason: str,
        *,
        only_in_epoch: int | None = None,
        if_absent: bool = False,
    ) -> None:
        def expire() -> None:
            group = shard.consumer_groups.get(group_id)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None or only_in_epoch not in (None, member.member_epoch):
                return
            logger.debug("member %s of group %s is fenced: it %s", member_id, group_id, reason)
            done = write(self._with.store, shard, self.fence(shard, group, (member,)))
            done.add_done_callback(lambda result: self._retry(result, retry))

        def retry() -> None:
            self._with.timers.schedule(shard, kind, group_id, member_id, _RETRY_MS, expire, if_absent=True)

        self._with.timers.schedule(shard, kind, group_id, member_id, timeout_ms, expire, if_absent=if_absent)

    @staticmethod
    def _retry(result: asyncio.Future[int], again: Callable[[], None]) -> None:
        if not result.cancelled() and result.result() not in (error_codes.NONE, error_codes.NOT_LEADER_OR_FOLLOWER):
            again()
