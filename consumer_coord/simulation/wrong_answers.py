"""Brokers that answer wrongly: rows are missing, foreign, refused or senseless, although the broker did what was asked.

The change happens after the production broker has served the request, so the checkers' view of the broker stays true. A wrong
answer concerns about a third of the partitions; the client must ask again for these, and go on with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import attrs

from consumer_coord.broker.kafka_apis import ClientConnection
from consumer_coord.simulation.network import Server
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import decode_request_header, decode_response, encode_response
from consumer_coord.wire.messages.log import FetchResponse, OffsetForLeaderEpochResponse
from consumer_coord.wire.messages.offsets import ListOffsetsResponse, OffsetCommitResponse, OffsetFetchResponse

FETCH: Final = 1
LIST_OFFSETS: Final = 2
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
_EPOCHS = 23
#: The requests with a row for each partition, other than Fetch.
LOOK_UPS: Final = (LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, _EPOCHS)

_RESPONSES: dict[int, type[Any]] = {
    FETCH: FetchResponse,
    LIST_OFFSETS: ListOffsetsResponse,
    OFFSET_COMMIT: OffsetCommitResponse,
    OFFSET_FETCH: OffsetFetchResponse,
    _EPOCHS: OffsetForLeaderEpochResponse,
}
#: The errors with which look-ups are refused.
REFUSALS: Final = (error_codes.TOPIC_AUTHORIZATION_FAILED, error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT)
#: A foreign row has a partition number that no topic has.
_FOREIGN = 1_000
#: Of this many partitions, a wrong answer concerns one.
_SHARE = 3

#: Changes the rows of one topic.
EditRows = Callable[[Sequence[Any]], Sequence[Any]]


@attrs.frozen(eq=False)
class WrongAnswer:
    """One way to answer wrongly: the requests it concerns (API keys), and the change of their responses.

    ``spares`` says for a partition's number whether its row stays as it was. ``refuses``: some rows have a final error.
    """

    api_keys: Collection[int]
    change: Callable[[int, Any], Any]
    spares: Callable[[int], bool]
    refuses: bool = False


class WrongApis:
    """The request handler of a broker whose responses are wrong while the list ``active`` is not empty."""

    def __init__(self, apis: Server, active: Sequence[WrongAnswer]) -> None:
        self._apis = apis
        self._active = active

    @property
    def up(self) -> bool:
        """Whether the broker runs."""
        return self._apis.up

    async def handle(self, frame: bytes, client: ClientConnection) -> bytes | None:
        """Serve one request frame, as :class:`~consumer_coord.broker.kafka_apis.KafkaApis`."""
        answer = await self._apis.handle(frame, client)
        if not self._active or answer is None:
            return answer
        header = decode_request_header(frame)
        changes = [one.change for one in self._active if header.api_key in one.api_keys]
        if not changes:
            return answer
        correlation_id, response = decode_response(_RESPONSES[header.api_key], header.version, answer)
        for change in changes:
            response = change(header.api_key, response)
        return encode_response(response, header.version, correlation_id)


def _in_topics(response: Any, edit: EditRows) -> Any:
    """Apply a change to the rows of each topic of a response, whatever its form."""
    for inner in ("groups", "responses", "topics"):
        if getattr(response, inner, ()):
            rows = [_in_topics(one, edit) for one in getattr(response, inner)]
            return attrs.evolve(response, **{inner: rows})
    return attrs.evolve(response, partitions=list(edit(response.partitions))) if hasattr(response, "partitions") else response


def _number(row: Any) -> int:
    number: int = row.partition if hasattr(row, "partition") else row.partition_index
    return number


def _concerns(number: int, value: int) -> bool:
    return number % _SHARE == value % _SHARE


def _sparing(value: int) -> Callable[[int], bool]:
    return lambda number: not _concerns(number, value)


def lacking_rows(api_keys: Collection[int], value: int) -> WrongAnswer:
    """Return the fault that omits the rows of some partitions."""
    spares = _sparing(value)
    return WrongAnswer(
        api_keys, lambda _, response: _in_topics(response, lambda rows: [row for row in rows if spares(_number(row))]), spares
    )


def foreign_rows(api_keys: Collection[int]) -> WrongAnswer:
    """Return the fault that adds rows that were not asked for."""

    def add(rows: Sequence[Any]) -> Sequence[Any]:
        if not rows:
            return rows
        name = "partition" if hasattr(rows[0], "partition") else "partition_index"
        return [attrs.evolve(rows[0], **{name: _FOREIGN + _number(rows[0])}), *rows]

    return WrongAnswer(api_keys, lambda _, response: _in_topics(response, add), lambda _: True)


def refused_rows(value: int) -> WrongAnswer:
    """Return the fault that refuses look-ups of some partitions: ListOffsets finally, OffsetFetch with a retriable error."""

    def change(api_key: int, response: Any) -> Any:
        if api_key == LIST_OFFSETS:
            worse = {"error_code": REFUSALS[value // _SHARE % len(REFUSALS)], "offset": -1}
        else:
            worse = {"error_code": error_codes.UNKNOWN_TOPIC_OR_PARTITION, "committed_offset": -1}
        return _in_topics(response, lambda rows: [row if spares(_number(row)) else attrs.evolve(row, **worse) for row in rows])

    spares = _sparing(value)
    return WrongAnswer((LIST_OFFSETS, OFFSET_FETCH), change, spares, refuses=True)


def senseless_offsets(value: int) -> WrongAnswer:
    """Return the fault that answers ListOffsets with the offset -1 and no error."""

    def change(_: int, response: Any) -> Any:
        return _in_topics(
            response, lambda rows: [row if spares(_number(row)) else attrs.evolve(row, offset=-1) for row in rows]
        )

    spares = _sparing(value)
    return WrongAnswer((LIST_OFFSETS,), change, spares)


def other_group(value: int) -> WrongAnswer:
    """Return the fault that answers OffsetFetch without the group, or with the offsets of a group of another name."""

    def change(_: int, response: Any) -> Any:
        groups = [attrs.evolve(group, group_id=f"{group.group_id}-other") for group in response.groups] if value % 2 else []
        return attrs.evolve(response, groups=groups)

    return WrongAnswer((OFFSET_FETCH,), change, lambda _: False)


#: Kind of fault -> the wrong answer for a fault's value.
WRONG_ANSWERS: Mapping[str, Callable[[int], WrongAnswer]] = {
    "lack": lambda value: lacking_rows(LOOK_UPS, value),
    "foreign": lambda _: foreign_rows(LOOK_UPS),
    "refuse": refused_rows,
    "senseless": senseless_offsets,
    "groupless": other_group,
    "lack-fetch": lambda value: lacking_rows((FETCH,), value),
    "foreign-fetch": lambda _: foreign_rows((FETCH,)),
}
