"""The leave heartbeat, a consumer-protocol member's last heartbeat: its epoch is -1, or -2 for a static member."""

from __future__ import annotations

from consumer_coord.group.classic_protocol.leaving import send_leave
from consumer_coord.group.consumer_protocol import requests
from consumer_coord.group.member_context import MemberContext
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes

#: Error codes which mean that the coordinator no longer has the member.
_GONE_ALREADY = frozenset(
    {codes.UNKNOWN_MEMBER_ID, codes.FENCED_MEMBER_EPOCH, codes.GROUP_ID_NOT_FOUND, codes.FENCED_INSTANCE_ID}
)


async def send_leave_heartbeat(context: MemberContext, member_id: str, deadline: Deadline, *, for_good: bool) -> None:
    """Send the leave heartbeat; log errors instead of raising them, because the member has left in any case."""
    request = requests.goodbye(context.config, member_id, for_good=for_good)
    answer = await send_leave(context, request, "ConsumerGroupHeartbeat", deadline)
    if answer is not None and answer.error_code != codes.NONE and answer.error_code not in _GONE_ALREADY:
        context.log.warning("the coordinator answered the leave heartbeat with %s", codes.error_name(answer.error_code))
