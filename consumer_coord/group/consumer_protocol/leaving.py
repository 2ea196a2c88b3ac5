"""The goodbye of a member of the consumer protocol: a heartbeat with epoch -1, of a static member with -2."""

from __future__ import annotations

from consumer_coord.errors import CoordinatorError, DisconnectedError
from consumer_coord.group.consumer_protocol import requests
from consumer_coord.group.leaving import LEAVE_LOOKUP_MS
from consumer_coord.group.protocol import MemberContext
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes

#: The coordinator does not count the member any more, or never did.
_GONE_ALREADY = frozenset(
    {codes.UNKNOWN_MEMBER_ID, codes.FENCED_MEMBER_EPOCH, codes.GROUP_ID_NOT_FOUND, codes.FENCED_INSTANCE_ID}
)


async def say_goodbye(context: MemberContext, member_id: str, deadline: Deadline, *, for_good: bool) -> None:
    """Leave; what goes wrong is logged, because the member has left all the same."""
    config, link, log = context.config, context.link, context.log
    request = requests.goodbye(config, member_id, for_good=for_good)
    found = Deadline.after(deadline.within(LEAVE_LOOKUP_MS))
    code = codes.NONE
    for is_last in (False, True):
        try:
            broker = await link.find(found)
            answer = await context.cluster.request(
                broker, request, timeout_ms=config.request_timeout_ms, patience_ms=max(1.0, deadline.remaining_ms)
            )
        except DisconnectedError as error:
            # A request before it may have been what the broker did not answer; that it hears this one twice does no harm.
            if is_last or deadline.passed:
                log.warning("the coordinator did not confirm that we left: %s", error)
                return
            continue
        except CoordinatorError as error:
            log.warning("the coordinator did not confirm that we left: %s", error)
            return
        code = answer.error_code
        if code != codes.NOT_COORDINATOR:
            break
        # It moved since this member last sent something: leave where it is now.
        link.forget(broker, "ConsumerGroupHeartbeat: NOT_COORDINATOR")
    if code != codes.NONE and code not in _GONE_ALREADY:
        log.warning("the heartbeat that leaves was answered with %s", codes.error_name(code))
