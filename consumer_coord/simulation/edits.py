"""Edits of any response, made at the tables of the messages (``wire/schema.py``), so that they work for every request.

A broker with such a fault does what it was asked, and then says something else: rows are missing, doubled, in another order, or
of somebody else; numbers are -1; a row has an error and its data; leader epochs are unknown; versions are odd. Four more edits
need the connection or the request, and are in ``wrong_answers.py``. The client must keep to its rule that only a row is an
answer: it asks again with back-off, and skips nothing, doubles nothing, and forgets no position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import attrs

from consumer_coord.wire import error_codes
from consumer_coord.wire.schema import FieldSpec, fields_of

#: Fields that say whose row it is.
_NAMES: Final = frozenset(
    {"group_id", "index", "key", "member_id", "name", "node_id", "partition", "partition_index", "topic", "topic_id"}
)
#: Fields that an edit leaves alone: they are not data, or -1 is a valid value (no commit).
_NO_DATA: Final = frozenset({"error_code", "partition_error_code", "throttle_time_ms", "api_key", "committed_offset"})
#: Lists that lose no rows, because nothing else in the response says what belongs in them: a client cannot know that a record
#: was aborted if the broker does not say so.
_TRUSTED: Final = frozenset({"aborted_transactions"})
#: Added to the numbers of foreign rows, so that they are numbers that no topic has.
_FOREIGN: Final = 1_000
#: An edit of single rows changes every third row.
_SHARE: Final = 3
#: How long a broker says that it throttles, in milliseconds.
_THROTTLE_MS: Final = 700
#: The errors of rows that have data nevertheless; the client knows none of them better than "try again".
_ERRORS: Final = (error_codes.UNKNOWN_SERVER_ERROR, error_codes.REQUEST_TIMED_OUT, error_codes.NETWORK_EXCEPTION)

#: Changes a response of some version; ``value`` selects one of several ways.
Edit = Callable[[Any, int, int], Any]
#: Change the rows of one array of structures, and the value of one field.
EditRows = Callable[[list[Any]], Sequence[Any]]
EditField = Callable[[FieldSpec, Any], Any]


def _edited(message: Any, version: int, rows: EditRows, field: EditField) -> Any:
    """Return a message with edited fields, and with edited arrays of structures, the innermost first."""
    changes: dict[str, Any] = {}
    for spec in fields_of(type(message)):
        value = getattr(message, spec.name)
        if version not in spec.versions or value is None:
            continue
        element = spec.kind.element
        if element is not None and element.struct is not None:
            edited = tuple(rows([_edited(row, version, rows, field) for row in value]))
            changes[spec.name] = value if spec.name in _TRUSTED and len(edited) < len(value) else edited
        elif spec.kind.struct is not None:
            changes[spec.name] = _edited(value, version, rows, field)
        else:
            changes[spec.name] = field(spec, value)
    return attrs.evolve(message, **changes)


def _same(_: FieldSpec, value: Any) -> Any:
    return value


def _rows_edit(edit: Callable[[list[Any], int, int], Iterable[Any]]) -> Edit:
    return lambda message, version, value: _edited(message, version, lambda rows: tuple(edit(rows, version, value)), _same)


def _fields_edit(edit: Callable[[FieldSpec, Any, int], Any]) -> Edit:
    return lambda message, version, value: _edited(message, version, tuple, lambda spec, old: edit(spec, old, value))


def _concerned(place: int, value: int) -> bool:
    return place % _SHARE == value % _SHARE


def _foreign(rows: list[Any], version: int, _: int) -> Iterable[Any]:
    """Add a row in front that has the values of the first, and another name."""
    return [_renamed(row, version) for row in rows[:1]] + rows


def _renamed(row: Any, version: int) -> Any:
    changes: dict[str, Any] = {}
    for spec in fields_of(type(row)):
        value = getattr(row, spec.name)
        if spec.name in _NAMES and version in spec.versions:
            if isinstance(value, str):
                changes[spec.name] = f"{value}-other"
            elif isinstance(value, UUID):
                changes[spec.name] = UUID(int=value.int ^ 1)
            elif isinstance(value, int):
                changes[spec.name] = value + _FOREIGN
    return attrs.evolve(row, **changes)


def _without_numbers(message: Any, version: int, value: int) -> Any:
    """Set the numbers of a third of the rows to -1, and those outside any row if the message has no rows."""

    def field(spec: FieldSpec, old: Any) -> Any:
        is_number = spec.kind.format in {"b", "h", "i", "q"} and spec.name not in _NO_DATA | _NAMES
        return -1 if is_number else old

    def rows(old: list[Any]) -> Sequence[Any]:
        return [_edited(row, version, tuple, field) if _concerned(place, value) else row for place, row in enumerate(old)]

    edited = _edited(message, version, rows, _same)
    return edited if edited != message else _edited(message, version, tuple, field)


def _with_errors(message: Any, version: int, value: int) -> Any:
    """Give an error to a third of the rows that can have one, or to the response if it has no such rows. The data stay."""
    code = _ERRORS[value // _SHARE % len(_ERRORS)]

    def fail(row: Any) -> Any:
        return attrs.evolve(row, error_code=code) if hasattr(row, "error_code") else row

    def rows(old: list[Any]) -> Sequence[Any]:
        return [fail(row) if _concerned(place, value) else row for place, row in enumerate(old)]

    edited = _edited(message, version, rows, _same)
    return edited if edited != message else fail(message)


def _odd_versions(message: Any, version: int, value: int) -> Any:
    """Offer a third of the APIs only in their first version, a third of them up to a version that nobody has."""

    def rows(old: list[Any]) -> Sequence[Any]:
        return [_with_odd_range(row, (place + value) % _SHARE) for place, row in enumerate(old)]

    return _edited(message, version, rows, _same)


def _with_odd_range(row: Any, way: int) -> Any:
    if not hasattr(row, "api_key"):
        return row
    return attrs.evolve(row, max_version={0: row.min_version, 1: 0x7FFF}.get(way, row.max_version))


#: Name -> the edit, for the responses to any request that has the fields.
EDITS: Final[Mapping[str, Edit]] = {
    "omitted": _rows_edit(lambda rows, version, value: [row for place, row in enumerate(rows) if not _concerned(place, value)]),
    "emptied": _rows_edit(lambda rows, version, value: ()),
    "doubled": _rows_edit(lambda rows, version, value: [each for row in rows for each in (row, row)]),
    "reversed": _rows_edit(lambda rows, version, value: reversed(rows)),
    "foreign": _rows_edit(_foreign),
    "minus-one": _without_numbers,
    "error-with-data": _with_errors,
    "epochless": _fields_edit(lambda spec, old, _: -1 if spec.name.endswith("_epoch") and spec.name != "member_epoch" else old),
    "throttled": _fields_edit(lambda spec, old, _: _THROTTLE_MS if spec.name == "throttle_time_ms" else old),
    "odd-versions": _odd_versions,
}
