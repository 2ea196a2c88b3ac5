"""Handle ConsumerGroupHeartbeat, by which members join, stay in and leave a group of the consumer protocol.

This is Kafka's ``consumerGroupHeartbeat``. A heartbeat has three steps:

1. Create or update the member; increase the group epoch if this changes the group's subscription.
2. Compute the target if its epoch is lower than the group epoch.
3. Reconcile the member with its target.

The steps only create records. The group changes when the records are written.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any, Final

import attrs

from consumer_coord.broker.classic_group import GroupState
from consumer_coord.broker.consumer_group import conversion, membership, records
from consumer_coord.broker.consumer_group.assignors.spec import AssignorFailedError
from consumer_coord.broker.consumer_group.context import Change, Coordination, write
from consumer_coord.broker.consumer_group.fencing import Fencing, TimerKind
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupMember,
    MemberState,
)
from consumer_coord.broker.consumer_group.reconciliation import Owned, Target, reconcile
from consumer_coord.broker.consumer_group.subscriptions import GroupSubscription, Subscriptions
from consumer_coord.broker.consumer_group.target_assignment import compute_target
from consumer_coord.broker.errors import GroupError
from consumer_coord.broker.group_store import response_error
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.shard import Shard
from consumer_coord.log_text import get_logger
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

logger: Final = get_logger(__name__)

#: The first version in which a member generates its member id.
_OWN_MEMBER_ID_FROM = 1
#: The value of ``rebalance_timeout_ms`` in a request that does not set the rebalance timeout.
NO_TIMEOUT = -1


class Heartbeats:
    """Serves ConsumerGroupHeartbeat requests."""

    def __init__(self, coordination: Coordination, fencing: Fencing, subscriptions: Subscriptions) -> None:
        self._with = coordination
        self._fencing = fencing
        self._subscriptions = subscriptions

    async def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """Handle a heartbeat, and return the response when the log has the records of the request."""
        try:
            self._check(context, request)
            error_code, shard = self._with.store.shard_of(request.group_id)
            if shard is None:
                return ConsumerGroupHeartbeatResponse(error_code=error_code)
            leaves = request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH)
            change, response = self._leave(shard, request) if leaves else self._stay(context, shard, request)
        except GroupError as error:
            # As in Kafka, the response to an unexpected error has no text, and the broker's log has the cause.
            unexpected = error.code == error_codes.UNKNOWN_SERVER_ERROR
            logger.log(logging.INFO if unexpected else logging.DEBUG, "ConsumerGroupHeartbeat was refused: %s", error)
            return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=None if unexpected else str(error))
        error_code = response_error(await write(self._with.store, change))
        return ConsumerGroupHeartbeatResponse(error_code=error_code) if error_code else response

    def _check(self, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> None:
        epoch = request.member_epoch
        if context.api_version >= _OWN_MEMBER_ID_FROM or epoch > 0 or epoch == LEAVE_EPOCH:
            _not_blank(request.member_id, "the member id")
        _not_blank(request.group_id, "the group id")
        _not_blank(request.instance_id, "the instance id")
        _not_blank(request.rack_id, "the rack id")
        problem = None
        if epoch == JOIN_EPOCH:
            if request.rebalance_timeout_ms == NO_TIMEOUT:
                problem = "the first request must contain the rebalance timeout"
            elif request.topic_partitions is None or request.topic_partitions:
                problem = "a member that joins must report that it owns no partitions"
            elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
                problem = "a member that joins must subscribe to topics or a regular expression"
        elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
            problem = "only a static member may leave with epoch -2"
        elif epoch < LEAVE_STATIC_EPOCH:
            problem = f"{epoch} is not a valid member epoch"
        if problem is not None:
            raise GroupError(error_codes.INVALID_REQUEST, problem)
        if request.server_assignor is not None and request.server_assignor not in self._with.assignors:
            raise GroupError(
                error_codes.UNSUPPORTED_ASSIGNOR,
                f"assignor {request.server_assignor} does not exist; this broker has {', '.join(self._with.assignors)}",
            )

    # -- leaving

    def _leave(self, shard: Shard, request: ConsumerGroupHeartbeatRequest) -> tuple[Change, ConsumerGroupHeartbeatResponse]:
        group = _existing(shard, request.group_id)
        response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        member = membership.find(group, request.member_id, request.instance_id)
        if request.instance_id is None or request.member_epoch != LEAVE_STATIC_EPOCH:
            return self._fencing.fence(shard, group, (member,)), response
        # The static member stays in the group and keeps its target until it returns. From now on, its partitions have the
        # assignment epoch 0.
        left = attrs.evolve(
            member,
            member_epoch=LEAVE_STATIC_EPOCH,
            pending_revocation={},
            assigned={topic_id: dict.fromkeys(numbers, 0) for topic_id, numbers in member.assigned.items()},
        )
        return Change(shard, [records.current_assignment(group.group_id, left)]), response

    # -- joining and staying

    def _stay(
        self, context: RequestContext, shard: Shard, request: ConsumerGroupHeartbeatRequest
    ) -> tuple[Change, ConsumerGroupHeartbeatResponse]:
        change = Change(shard)
        joins = request.member_epoch == JOIN_EPOCH
        group = self._group_to_join(change, request.group_id) if joins else _existing(shard, request.group_id)
        membership.check_size(group, request.member_id, request.instance_id, self._with.config.group_consumer_max_size)
        member_id = request.member_id or self._with.new_member_id()
        owned = _owned(request)
        member = self._member(group, request, member_id, owned, change)
        updated = _updated(member, context, request)
        subscription = self._subscriptions.update(change, group, member, updated)
        reconciled = self.settle(change, group, updated, subscription, owned)
        change.after.append(lambda: self._fencing.schedule_session(shard, request.group_id, member_id))
        is_full = (
            request.rebalance_timeout_ms != NO_TIMEOUT
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and owned is not None
        )
        reports_assignment = joins or is_full or member.assigned != reconciled.assigned
        return change, ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=reconciled.member_epoch,
            heartbeat_interval_ms=self._with.group_settings.heartbeat_interval_ms(request.group_id),
            assignment=_assignment(reconciled) if reports_assignment else None,
        )

    def _group_to_join(self, change: Change, group_id: str) -> ConsumerGroup:
        """Return an existing, a converted or a new group, as it will be when the records of ``change`` are applied."""
        shard = change.shard
        group = shard.consumer_groups.get(group_id)
        if group is not None:
            return group
        classic = shard.groups.get(group_id)
        if classic is None:
            return ConsumerGroup(group_id)
        if classic.state is GroupState.EMPTY:
            conversion.delete_empty_classic(self._with, classic, change)
            return ConsumerGroup(group_id)
        converted = conversion.to_consumer(self._with, classic, change)
        sessions = [
            (member.member_id, member.classic.session_timeout_ms)
            for member in converted.members.values()
            if member.classic is not None
        ]

        def start_sessions() -> None:
            for member_id, timeout_ms in sessions:
                self._fencing.schedule_session(shard, group_id, member_id, timeout_ms)

        change.after.append(start_sessions)
        return converted

    @staticmethod
    def _member(
        group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str, owned: Owned, change: Change
    ) -> ConsumerGroupMember:
        joins = request.member_epoch == JOIN_EPOCH
        if joins and request.instance_id is not None:
            return membership.join_static(group, member_id, request.instance_id, False, change.records)
        if joins:
            return membership.join_dynamic(group, member_id)
        member = membership.find(group, member_id, request.instance_id)
        membership.check_epoch(member, request.member_epoch, owned)
        return member

    def settle(
        self,
        change: Change,
        group: ConsumerGroup,
        updated: ConsumerGroupMember,
        subscription: GroupSubscription,
        owned: Owned,
    ) -> ConsumerGroupMember:
        """Move a member one step towards its target, of which there may be a new one; return the member after this step.

        When ``change`` is written, the group's topics were checked in the current version of the metadata.
        """
        target = self._target(change, group, updated, subscription)
        version = self._with.image.topics.version

        def remember() -> None:
            written = change.shard.consumer_groups.get(group.group_id)
            if written is not None:
                written.metadata_was_looked_at(version)

        change.after.append(remember)
        return self.reconcile(change, group, updated, target, owned, subscription.changed)

    def _target(
        self, change: Change, group: ConsumerGroup, updated: ConsumerGroupMember, subscription: GroupSubscription
    ) -> Target:
        """Return a member's target; first compute the group's target if it is outdated and the assignment interval is over.

        Raise :class:`~consumer_coord.broker.errors.GroupError` with UNKNOWN_SERVER_ERROR if the assignor fails.
        """
        now_ms = self._with.wall_clock_ms()
        interval_ms = self._with.config.group_consumer_assignment_interval_ms
        due = group.assignment_timestamp_ms == 0 or interval_ms == 0 or now_ms >= group.assignment_timestamp_ms + interval_ms
        if group.assignment_epoch >= subscription.epoch or not due:
            holder: str | None = updated.member_id
            if updated.instance_id is not None:
                holder = group.static_members.get(updated.instance_id)
            return Target(group.assignment_epoch, {} if holder is None else group.target_of(holder))
        name = group.assignor_for(updated, self._with.default_assignor)
        assignor = self._with.assignors.get(name)
        if assignor is None:
            raise GroupError(error_codes.UNKNOWN_SERVER_ERROR, f"assignor {name} no longer exists")
        try:
            partitions = compute_target(change, group, subscription, updated, assignor, self._with.image, now_ms)
        except AssignorFailedError as error:
            raise GroupError(error_codes.UNKNOWN_SERVER_ERROR, f"no assignment could be computed: {error}") from error
        return Target(subscription.epoch, partitions)

    def reconcile(
        self,
        change: Change,
        group: ConsumerGroup,
        updated: ConsumerGroupMember,
        target: Target,
        owned: Owned,
        subscription_changed: bool,
    ) -> ConsumerGroupMember:
        """Move a member one step towards its target; if the member changes, add the record and the timer to ``change``."""
        if not subscription_changed and updated.is_reconciled_to(target.epoch):
            return updated
        reconciled = reconcile(
            updated,
            target,
            self._with.image.topic_ids(group.topics_of(updated)).keys(),
            group.partition_epoch,
            owned,
            subscription_changed,
        )
        if reconciled == updated:
            return updated
        shard, group_id = change.shard, group.group_id
        change.records.append(records.current_assignment(group_id, reconciled))
        if reconciled.classic is None:
            if reconciled.state is MemberState.UNREVOKED_PARTITIONS:
                change.after.append(lambda: self._fencing.schedule_rebalance(shard, group_id, reconciled))
            else:
                change.after.append(lambda: self._fencing.cancel(shard, group_id, reconciled.member_id, TimerKind.REBALANCE))
        return reconciled


def _existing(shard: Shard, group_id: str) -> ConsumerGroup:
    group = shard.consumer_groups.get(group_id)
    if group is None:
        raise GroupError(error_codes.GROUP_ID_NOT_FOUND, f"consumer group {group_id} does not exist")
    return group


def _updated(
    member: ConsumerGroupMember, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupMember:
    """Return the member with the fields of its heartbeat. A field with the value None is unchanged."""
    reported = {
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "rebalance_timeout_ms": None if request.rebalance_timeout_ms == NO_TIMEOUT else request.rebalance_timeout_ms,
        "server_assignor": request.server_assignor,
        "subscribed_topics": None if request.subscribed_topic_names is None else frozenset(request.subscribed_topic_names),
        "subscribed_regex": request.subscribed_topic_regex,
        "client_id": context.client_id,
        "client_host": context.client_host,
    }
    news: dict[str, Any] = {
        name: value for name, value in reported.items() if value is not None and value != getattr(member, name)
    }
    if member.classic is not None:
        news["classic"] = None
    # Most heartbeats change nothing, so return the same object.
    return attrs.evolve(member, **news) if news else member


def _owned(request: ConsumerGroupHeartbeatRequest) -> Owned:
    if request.topic_partitions is None:
        return None
    owned: dict[uuid.UUID, list[int]] = {}
    for topic in request.topic_partitions:
        owned.setdefault(topic.topic_id, []).extend(topic.partitions)
    return owned


def _assignment(member: ConsumerGroupMember) -> ConsumerGroupHeartbeatAssignment:
    return ConsumerGroupHeartbeatAssignment(
        topic_partitions=tuple(
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
            for topic_id, numbers in member.assigned.items()
        )
    )


def _not_blank(value: str | None, what: str) -> None:
    if value is not None and not value.strip():
        raise GroupError(error_codes.INVALID_REQUEST, f"{what} must not be empty")
