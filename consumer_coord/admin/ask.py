"""Send requests to a group's coordinator from a client that is not a member of the group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from consumer_coord.errors import (
    AuthorizationError,
    BrokerError,
    CoordinatorError,
    CoordinatorNotAvailableError,
    IncompleteResponseError,
    RetriableError,
)
from consumer_coord.final_errors import fatal
from consumer_coord.lag.log_offsets import PATIENCE_MS
from consumer_coord.net import group_requests
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.group_requests import coordinator_in
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline, retrying
from consumer_coord.wire import error_codes as codes

K = TypeVar("K")
T = TypeVar("T")


async def patiently(
    keys: Iterable[K], ask: Callable[[K, Deadline], Coroutine[Any, Any, T]], deadline: Deadline
) -> dict[K, T | CoordinatorError]:
    """Return for each key the result or the error of ``ask(key, deadline)``, so that one ill broker costs its own key only.

    Retriable errors are final after :data:`PATIENCE_MS` if another key has a result; otherwise ``ask`` gets the time until
    ``deadline``.
    """

    async def attempt(key: K, limit: Deadline) -> T | CoordinatorError:
        try:
            return await ask(key, limit)
        except CoordinatorError as error:
            return error

    wanted = list(keys)
    first = Deadline.after(deadline.within(PATIENCE_MS))
    found = dict(zip(wanted, await asyncio.gather(*(attempt(key, first) for key in wanted)), strict=True))
    again = [key for key, result in found.items() if isinstance(result, RetriableError)]
    if len(again) == len(wanted) and not deadline.passed:
        found = dict(zip(again, await asyncio.gather(*(attempt(key, deadline) for key in again)), strict=True))
    return found


async def all_brokers(cluster: ClusterClient, deadline: Deadline) -> Sequence[Broker]:
    """Return the brokers of new metadata, by id; raise :class:`RetriableError` if no response names any until ``deadline``."""
    async for attempt in retrying(cluster.backoff, deadline, what="Metadata"):
        # If no broker can be reached, refresh() has tried long enough.
        brokers = (await cluster.refresh(deadline)).brokers
        with attempt:
            if not brokers:
                raise IncompleteResponseError("the response to Metadata names no broker")
            return [brokers[broker_id] for broker_id in sorted(brokers)]
    raise AssertionError("unreachable: the retry loop returns or raises")


async def find_coordinator(cluster: ClusterClient, group_id: str, deadline: Deadline) -> Broker:
    """Find the broker that coordinates a group; raise :class:`RetriableError` if the group has no coordinator at present."""
    answer = await cluster.request_any(group_requests.find_coordinator(group_id), deadline)
    code, coordinator = coordinator_in(answer, group_id, cluster.answers)
    if code == codes.NONE:
        return coordinator
    if codes.is_retriable(code):
        raise CoordinatorNotAvailableError(
            f"group {group_id!r} currently has no coordinator ({codes.error_name(code)})", code=code
        )
    raise refused(code, group_id, "FindCoordinator")


async def ask_coordinator(
    cluster: ClusterClient, group_id: str, message: Any, deadline: Deadline, read: Callable[[Any, Broker], T]
) -> T:
    """Send ``message`` to the group's coordinator, repeatedly if necessary, until ``read`` returns a value for the response.

    ``read(response, coordinator)`` raises the errors of :func:`check`; retriable errors are retried until ``deadline``.
    """
    async for attempt in retrying(cluster.backoff, deadline, what=f"a request to the coordinator of {group_id}"):
        with attempt:
            coordinator = await find_coordinator(cluster, group_id, deadline)
            timeout_ms = max(1.0, deadline.within(cluster.config.request_timeout_ms))
            return read(await cluster.request(coordinator, message, timeout_ms=timeout_ms), coordinator)
    raise AssertionError("unreachable: the retry loop returns or raises")


def row_of(
    cluster: ClusterClient,
    request: str,
    sender: Broker,
    group_id: str,
    rows: Iterable[T],
    name: Callable[[T], str],
    senseless: Callable[[T], str | None] = lambda _: None,
) -> T:
    """Return the only row about a group; raise :class:`IncompleteResponseError`, which is retriable, without such a row.

    ``senseless`` returns why the values of a row have no meaning, or None.
    """
    named = ((name(row), row) for row in rows)
    matched = cluster.answers.match(request, sender.address, [group_id], named, lambda _, row: senseless(row))
    if matched.unanswered:
        raise matched.unanswered[group_id]
    return matched.rows[group_id]


def senseless_epoch(group: Any) -> str | None:
    """Return why the epochs of a described group have no meaning, or None; the epochs of an existing group begin with 0."""
    if group.error_code != codes.NONE or min(group.group_epoch, group.assignment_epoch) >= 0:
        return None
    return f"group epoch {group.group_epoch}, assignment epoch {group.assignment_epoch}"


def check(code: int, group_id: str, request: str) -> None:
    """Raise :class:`RetriableError` for a retriable error code, otherwise the error of :func:`refused`."""
    if code == codes.NONE:
        return
    if codes.is_retriable(code) and code != codes.UNKNOWN_TOPIC_OR_PARTITION:
        raise RetriableError(f"{request} of group {group_id!r}: {codes.error_name(code)}", code=code)
    raise refused(code, group_id, request)


def refused(code: int, group_id: str, request: str) -> CoordinatorError:
    """Return the error for a code that a retry cannot resolve."""
    text = {
        codes.GROUP_ID_NOT_FOUND: f"consumer group {group_id!r} does not exist",
        codes.NON_EMPTY_GROUP: f"consumer group {group_id!r} has active members; stop them first",
        codes.GROUP_SUBSCRIBED_TO_TOPIC: f"consumer group {group_id!r} is subscribed to the topic; stop its members first",
        # The broker's error code for a commit without generation and member id to a group with active members.
        codes.UNKNOWN_MEMBER_ID: f"consumer group {group_id!r} has active members; stop them first",
    }.get(code)
    if text is not None:
        return BrokerError(text, code=code)
    if code == codes.GROUP_AUTHORIZATION_FAILED:
        return AuthorizationError(
            f"the principal is not authorized for this operation on group {group_id!r} ({request} was refused). To describe a"
            " group, the principal needs DESCRIBE on the group; to reset offsets, READ; to delete a group or offsets, DELETE",
            code=code,
        )
    return fatal(code, group_id=group_id, request=request)
