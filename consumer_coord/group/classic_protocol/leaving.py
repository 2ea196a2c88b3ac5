"""The requests by which a member leaves its group (``AbstractCoordinator.maybeLeaveGroup``)."""

from __future__ import annotations

from typing import Any

from consumer_coord.errors import CoordinatorError, DisconnectedError
from consumer_coord.group.classic_protocol import requests
from consumer_coord.group.member_context import MemberContext
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes

#: Time limit of the coordinator look-up when leaving, in milliseconds; the session expires on the broker anyway.
LEAVE_LOOKUP_MS = 3_000
#: How long to wait for the response, in milliseconds. The coordinator need not wait for anything before it responds.
_LEAVE_ANSWER_MS = 5_000


async def leave_group(context: MemberContext, member_id: str, reason: str, deadline: Deadline) -> None:
    """Send LeaveGroup; log errors instead of raising them, because the member has left in any case."""
    answer = await send_leave(context, requests.leave_group(context.config, member_id, reason), "LeaveGroup", deadline)
    if answer is None:
        return
    for code in (answer.error_code, *(row.error_code for row in answer.members)):
        if code not in (codes.NONE, codes.UNKNOWN_MEMBER_ID):
            context.log.warning("LeaveGroup was answered with %s", codes.error_name(code))


async def send_leave(context: MemberContext, request: Any, name: str, deadline: Deadline) -> Any | None:
    """Send a leave request, and retry once if the coordinator has moved or the connection ended.

    Return the response. If there is no response, log this and return None.
    """
    config, link, log = context.config, context.link, context.log
    found = Deadline.after(deadline.within(LEAVE_LOOKUP_MS))
    for is_last in (False, True):
        try:
            broker = await link.find(found)
        except CoordinatorError as error:
            log.warning("left without LeaveGroup, because the coordinator is not known: %s", error)
            return None
        try:
            answer = await context.cluster.request(
                broker,
                request,
                timeout_ms=config.request_timeout_ms,
                patience_ms=max(1.0, deadline.within(_LEAVE_ANSWER_MS)),
            )
        except CoordinatorError as error:
            # An earlier request may have caused the disconnect, and a second leave request is harmless, so retry.
            if isinstance(error, DisconnectedError) and not is_last and not deadline.passed:
                continue
            log.warning("the coordinator did not confirm LeaveGroup: %s", error)
            return None
        if answer.error_code != codes.NOT_COORDINATOR or is_last:
            break
        # The coordinator has moved since this member's last request: send the leave request to the new coordinator.
        link.forget(broker, f"{name}: NOT_COORDINATOR")
    return answer
