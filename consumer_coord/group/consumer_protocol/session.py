"""The session timeout at the coordinator, which heartbeat responses do not contain.

If its principal may describe configurations, the member reads the timeout with DescribeConfigs: ``consumer.session.timeout.ms``
of the group or, if that is not set, ``group.consumer.session.timeout.ms`` of the broker. Otherwise the member assumes three
heartbeat intervals, but at most Kafka's default. Kafka guarantees only that the timeout is longer than one interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from consumer_coord.errors import CoordinatorError
from consumer_coord.group.heartbeat_clock import answer_in_time_ms
from consumer_coord.group.lease import Lease
from consumer_coord.group.member_context import MemberContext
from consumer_coord.net.metadata import Broker
from consumer_coord.wire import error_codes as codes

if TYPE_CHECKING:
    from consumer_coord.wire.messages.admin import DescribeConfigsRequest, DescribeConfigsResponse

_BROKER = 4
_GROUP = 32
_OF_GROUP = "consumer.session.timeout.ms"
_OF_BROKER = "group.consumer.session.timeout.ms"

#: Kafka's default session timeout, in milliseconds.
DEFAULT_SESSION_MS = 45_000
_INTERVALS = 3


def assumed_ms(interval_ms: float) -> float:
    """Return the session timeout to assume until the broker's value is known."""
    return min(DEFAULT_SESSION_MS, _INTERVALS * interval_ms)


def ask(group_id: str, coordinator: int) -> DescribeConfigsRequest:
    """Return the request that reads the session timeout."""
    # Import the module only here, because many processes with consumers do not need it.
    from consumer_coord.wire.messages.admin import DescribeConfigsRequest, DescribeConfigsResource

    return DescribeConfigsRequest(
        resources=(
            DescribeConfigsResource(resource_type=_GROUP, resource_name=group_id, configuration_keys=(_OF_GROUP,)),
            DescribeConfigsResource(resource_type=_BROKER, resource_name=str(coordinator), configuration_keys=(_OF_BROKER,)),
        )
    )


def configured_ms(answer: DescribeConfigsResponse) -> int | None:
    """Return the session timeout in a response, or None if the response has no session timeout."""
    found: dict[str, str] = {}
    for result in answer.results:
        if result.error_code == codes.NONE:
            found.update({config.name: config.value for config in result.configs if config.value is not None})
    return _first_number([found.get(_OF_GROUP), found.get(_OF_BROKER)])


def _first_number(texts: Sequence[str | None]) -> int | None:
    for text in texts:
        if text is not None and text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
    return None


class Session:
    """A member's session at its coordinator, and the member's lease; all methods run on the member's loop."""

    def __init__(self, context: MemberContext, interval_ms: float) -> None:
        self._with = context
        #: The session timeout, either read from the broker or assumed, in milliseconds.
        self.timeout_ms: float = assumed_ms(interval_ms)
        self.lease: Lease = context.make_lease(
            session_timeout_ms=self.timeout_ms, rebalance_timeout_ms=context.config.rebalance_timeout_ms
        )

    @property
    def quick_ms(self) -> float:
        """Time limit for a response, in milliseconds, which allows a retry on a new connection within the session."""
        return answer_in_time_ms(self._with.config.request_timeout_ms, self.timeout_ms)

    def joined(self, interval_ms: float, broker: Broker, sent: float) -> None:
        """Start the session after ``broker`` answered a joining heartbeat, which was sent at ``sent`` (lease's clock)."""
        self._believe(assumed_ms(interval_ms))
        self._with.tasks.spawn(self._learn(broker), "session timeout")
        self.lease.joined(new=True)
        self.lease.synced(sent)

    def _believe(self, timeout_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self.lease.session_is(timeout_ms)

    async def _learn(self, broker: Broker) -> None:
        question = ask(self._with.config.group_id, broker.id)
        try:
            answer = await self._with.cluster.request(broker, question, timeout_ms=self._with.config.request_timeout_ms)
        except CoordinatorError as error:
            self._with.log.debug("the session timeout is not known: %s", error)
            return
        configured = configured_ms(answer)
        if configured is not None:
            self._believe(configured)
