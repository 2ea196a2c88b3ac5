"""Brokers that answer wrongly: rows are missing, foreign, refused or senseless, although the broker did what was asked.

The faults of :data:`WRONG_ANSWERS` concern the requests with a row for each partition, and :data:`EDITED` every request.

The change happens after the production broker has served the request, so the checkers' view of the broker stays true. A wrong
answer concerns about a third of the partitions; the client must ask again for these, and go on with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import attrs

from consumer_coord.broker.kafka_apis import ClientConnection
from consumer_coord.errors import DisconnectedError
from consumer_coord.simulation.edits import EDITS
from consumer_coord.simulation.network import Server
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import APIS
from consumer_coord.wire.codec import decode_request, decode_request_header, decode_response, encode_request, encode_response

FETCH: Final = 1
LIST_OFFSETS: Final = 2
_METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
_FIND_COORDINATOR: Final = 10
#: JoinGroup, Heartbeat, LeaveGroup and SyncGroup.
CLASSIC: Final = (11, 12, 13, 14)
_API_VERSIONS: Final = 18
_EPOCHS: Final = 23
CONSUMER_GROUP_HEARTBEAT: Final = 68
#: The requests with a row for each partition, other than Fetch.
LOOK_UPS: Final = (LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, _EPOCHS)
#: The requests of a consumer that is a member of a group.
OF_CONSUMERS: Final = (
    *(FETCH, *LOOK_UPS, _METADATA, _FIND_COORDINATOR, _API_VERSIONS),
    *(*CLASSIC, CONSUMER_GROUP_HEARTBEAT),
)
#: Edits that concern some requests only -> the API keys.
_ONLY: Final[Mapping[str, Collection[int]]] = {
    "first-answer": (_METADATA, _FIND_COORDINATOR),
    "reset": (_API_VERSIONS,),
    "odd-versions": (_API_VERSIONS,),
    "from-below": (FETCH,),
}
#: The errors with which look-ups are refused.
REFUSALS: Final = (error_codes.TOPIC_AUTHORIZATION_FAILED, error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT)
#: A foreign row has a partition number that no topic has.
_FOREIGN = 1_000
#: ApiVersions is flexible from this version on.
_RESET_FROM: Final = 3
#: How many offsets before the wanted one a batch may begin.
_BELOW: Final = 3
#: Of this many partitions, a wrong answer concerns one.
_SHARE = 3

#: Changes the rows of one topic.
EditRows = Callable[[Sequence[Any]], Sequence[Any]]


@attrs.frozen(eq=False)
class WrongAnswer:
    """One way to answer wrongly: the requests it concerns (API keys), and the change of their responses.

    ``change`` receives the API key, the version and the response, and may raise
    :class:`~consumer_coord.errors.DisconnectedError` in place of an answer. ``spares`` says for a partition's number whether
    its row stays as it was. ``refuses``: some rows have a final error. ``ask`` changes a request before the broker serves it.
    ``belongs_to`` is added to the correlation id, so that the response belongs to another request. ``edits``: the response to
    any request may be edited, so its sender sees errors that no broker gives.
    """

    api_keys: Collection[int]
    change: Callable[[int, int, Any], Any]
    spares: Callable[[int], bool]
    refuses: bool = False
    ask: Callable[[Any], Any] | None = None
    belongs_to: int = 0
    edits: bool = False


class WrongApis:
    """The request handler of a broker whose responses are wrong while the list ``active`` is not empty.

    ``told`` remembers for a wrong response the one that the broker gave.
    """

    def __init__(self, apis: Server, active: Sequence[WrongAnswer], told: dict[bytes, bytes]) -> None:
        self._apis = apis
        self._active = active
        self._told = told

    @property
    def up(self) -> bool:
        """Whether the broker runs."""
        return self._apis.up

    async def handle(self, frame: bytes, client: ClientConnection) -> bytes | None:
        """Serve one request frame, as :class:`~consumer_coord.broker.kafka_apis.KafkaApis`."""
        if not self._active:
            return await self._apis.handle(frame, client)
        header = decode_request_header(frame)
        wrong = [one for one in self._active if header.api_key in one.api_keys]
        for one in wrong:
            if one.ask is not None:
                frame = _asked_otherwise(frame, one.ask)
        answer = await self._apis.handle(frame, client)
        if not wrong or answer is None:
            return answer
        correlation_id, response = decode_response(APIS[header.api_key].response, header.version, answer)
        for one in wrong:
            response = one.change(header.api_key, header.version, response)
            correlation_id += one.belongs_to
        edited = encode_response(response, header.version, correlation_id)
        self._told[edited] = answer
        return edited


def _asked_otherwise(frame: bytes, ask: Callable[[Any], Any]) -> bytes:
    request = decode_request(frame)
    return encode_request(ask(request.message), request.version, request.correlation_id, request.client_id)


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

    def omit(rows: Sequence[Any]) -> Sequence[Any]:
        return [row for row in rows if spares(_number(row))]

    return WrongAnswer(api_keys, lambda _, __, response: _in_topics(response, omit), spares)


def foreign_rows(api_keys: Collection[int]) -> WrongAnswer:
    """Return the fault that adds rows that were not asked for."""

    def add(rows: Sequence[Any]) -> Sequence[Any]:
        if not rows:
            return rows
        name = "partition" if hasattr(rows[0], "partition") else "partition_index"
        return [attrs.evolve(rows[0], **{name: _FOREIGN + _number(rows[0])}), *rows]

    return WrongAnswer(api_keys, lambda _, __, response: _in_topics(response, add), lambda _: True)


def refused_rows(value: int) -> WrongAnswer:
    """Return the fault that refuses look-ups of some partitions: ListOffsets finally, OffsetFetch with a retriable error."""

    def change(api_key: int, _: int, response: Any) -> Any:
        if api_key == LIST_OFFSETS:
            worse = {"error_code": REFUSALS[value // _SHARE % len(REFUSALS)], "offset": -1}
        else:
            worse = {"error_code": error_codes.UNKNOWN_TOPIC_OR_PARTITION, "committed_offset": -1}
        return _in_topics(response, lambda rows: [row if spares(_number(row)) else attrs.evolve(row, **worse) for row in rows])

    spares = _sparing(value)
    return WrongAnswer((LIST_OFFSETS, OFFSET_FETCH), change, spares, refuses=True)


def senseless_offsets(value: int) -> WrongAnswer:
    """Return the fault that answers ListOffsets with the offset -1 and no error."""

    def change(_: int, __: int, response: Any) -> Any:
        return _in_topics(
            response, lambda rows: [row if spares(_number(row)) else attrs.evolve(row, offset=-1) for row in rows]
        )

    spares = _sparing(value)
    return WrongAnswer((LIST_OFFSETS,), change, spares)


def other_group(value: int) -> WrongAnswer:
    """Return the fault that answers OffsetFetch without the group, or with the offsets of a group of another name."""

    def change(_: int, __: int, response: Any) -> Any:
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


# -- edits of the response to any request


def _first_answer() -> Callable[[int, int, Any], Any]:
    """Return a change that gives every request the first response since the fault began: old metadata, an old coordinator."""
    first: dict[tuple[int, int], Any] = {}
    return lambda api_key, version, response: first.setdefault((api_key, version), response)


def _reset(_: int, version: int, response: Any) -> Any:
    """Reset the connection at a flexible version of ApiVersions, as brokers and proxies do that do not know this version."""
    if version >= _RESET_FROM:
        raise DisconnectedError("the broker does not know this version")
    return response


def _from_below(request: Any) -> Any:
    """Ask for earlier offsets, so that the response has a batch below the offset that was asked for."""
    topics = []
    for topic in request.topics:
        rows = [attrs.evolve(row, fetch_offset=max(0, row.fetch_offset - _BELOW)) for row in topic.partitions]
        topics.append(attrs.evolve(topic, partitions=rows))
    return attrs.evolve(request, topics=topics)


def edited(api_key: int, edit: str, value: int) -> WrongAnswer:
    """Return the fault that answers one kind of request wrongly in one of the ways of :data:`EDITED`."""

    def spares(_: int) -> bool:
        return False

    if edit == "first-answer":
        return WrongAnswer((api_key,), _first_answer(), spares, edits=True)
    if edit == "reset":
        return WrongAnswer((api_key,), _reset, spares, edits=True)
    if edit == "of-another-request":
        return WrongAnswer((api_key,), lambda _, __, response: response, spares, edits=True, belongs_to=1)
    if edit == "from-below":
        return WrongAnswer((api_key,), lambda _, __, response: response, spares, edits=True, ask=_from_below)
    change = EDITS[edit]
    return WrongAnswer((api_key,), lambda _, version, response: change(response, version, value), spares, edits=True)


#: The names of all edits.
_NAMES: Final = tuple(dict.fromkeys((*EDITS, "of-another-request", *_ONLY)))


def edits_of(api_key: int) -> tuple[str, ...]:
    """Return the names of the edits of the response to one kind of request."""
    return tuple(edit for edit in _NAMES if api_key in _ONLY.get(edit, (api_key,)))


#: Each request of a consumer with each edit of its response, as (API key, name of the edit).
EDITED: Final = tuple((api_key, edit) for edit in _NAMES for api_key in OF_CONSUMERS if edit in edits_of(api_key))
