"""Telling the coordinator that a member leaves (``AbstractCoordinator.maybeLeaveGroup``)."""

from __future__ import annotations

from consumer_coord.errors import CoordinatorError
from consumer_coord.group import requests
from consumer_coord.group.protocol import MemberContext
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes

#: Limit for finding the coordinator when leaving; the session expires on the broker anyway.
LEAVE_LOOKUP_MS = 3_000


async def leave_group(context: MemberContext, member_id: str, reason: str, deadline: Deadline) -> None:
    """Send LeaveGroup; what goes wrong is logged, because the member has left all the same."""
    config, link, log = context.config, context.link, context.log
    request = requests.leave_group(config, member_id, reason)
    found = Deadline.after(deadline.within(LEAVE_LOOKUP_MS))
    for moved in (False, True):
        try:
            broker = await link.find(found)
        except CoordinatorError as error:
            log.warning("left without telling the coordinator, which is not known: %s", error)
            return
        try:
            answer = await context.cluster.request(
                broker, request, timeout_ms=config.request_timeout_ms, patience_ms=max(1.0, deadline.remaining_ms)
            )
        except CoordinatorError as error:
            log.warning("the coordinator did not confirm that we left: %s", error)
            return
        if answer.error_code != codes.NOT_COORDINATOR or moved:
            break
        # It moved since this member last sent something: leave where it is now.
        link.forget(broker, "LeaveGroup: NOT_COORDINATOR")
    for code in (answer.error_code, *(row.error_code for row in answer.members)):
        if code not in (codes.NONE, codes.UNKNOWN_MEMBER_ID):
            log.warning("LeaveGroup was answered with %s", codes.error_name(code))
