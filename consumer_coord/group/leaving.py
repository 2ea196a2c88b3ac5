"""Telling the coordinator that a member leaves (``AbstractCoordinator.maybeLeaveGroup``)."""

from __future__ import annotations

from typing import Protocol

from consumer_coord.config import CoordinatorConfig
from consumer_coord.errors import CoordinatorError
from consumer_coord.group import requests
from consumer_coord.group.member_log import MemberLog
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes

#: Limit for finding the coordinator when leaving; the session expires on the broker anyway.
LEAVE_LOOKUP_MS = 3_000


class Leaver(Protocol):
    """The member that leaves."""

    @property
    def config(self) -> CoordinatorConfig: ...
    @property
    def cluster(self) -> ClusterClient: ...

    async def find_coordinator(self, deadline: Deadline) -> Broker: ...
    def coordinator_gone(self, broker: Broker, why: str) -> None: ...


async def leave_group(member: Leaver, member_id: str, reason: str, deadline: Deadline, log: MemberLog) -> None:
    """Send LeaveGroup; what goes wrong is logged, because the member has left all the same."""
    config = member.config
    request = requests.leave_group(config, member_id, reason)
    found = Deadline.after(deadline.within(LEAVE_LOOKUP_MS))
    for moved in (False, True):
        try:
            broker = await member.find_coordinator(found)
        except CoordinatorError as error:
            log.warning("left without telling the coordinator, which is not known: %s", error)
            return
        try:
            answer = await member.cluster.request(
                broker, request, timeout_ms=config.request_timeout_ms, patience_ms=max(1.0, deadline.remaining_ms)
            )
        except CoordinatorError as error:
            log.warning("the coordinator did not confirm that we left: %s", error)
            return
        if answer.error_code != codes.NOT_COORDINATOR or moved:
            break
        # It moved since this member last sent something: leave where it is now.
        member.coordinator_gone(broker, "LeaveGroup: NOT_COORDINATOR")
    for code in (answer.error_code, *(row.error_code for row in answer.members)):
        if code not in (codes.NONE, codes.UNKNOWN_MEMBER_ID):
            log.warning("LeaveGroup was answered with %s", codes.error_name(code))
