"""Create the response to a request that failed as a whole (Kafka's ``getErrorResponse``), from the tables of the messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages.log import FetchRequest
from consumer_coord.wire.schema import FieldSpec, Struct, fields_of

#: Fields by which a response identifies the requested items. A requested item that is not a structure is itself the name or the
#: number.
_NAMES = frozenset(
    {"group_id", "index", "key", "member_id", "name", "partition", "partition_index"}
    | {"partition_id", "resource_name", "resource_type", "session_id", "topic", "topic_id", "transactional_id"}
)
#: Fields of a response -> their names in the request, if different.
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "coordinators": ("coordinator_keys",),
    "groups": ("groups", "group_ids"),
    "partition_index": ("partition_index", "partition"),
    "partition_responses": ("partition_data",),
    "partition_result": ("partitions",),
    "partitions": ("partitions", "partition_indexes"),
    "replica_election_results": ("topic_partitions",),
    "responses": ("topics", "topic_data", "topic_names", "resources"),
    "results_by_partition": ("partitions",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_transaction": ("transactions",),
    "results": ("topics", "resources", "groups_names"),
    "topic_results": ("topics",),
    "transaction_states": ("transactional_ids",),
}
#: The values of other fields in a failed response. Fields that may be null are null.
_NOTHING = {"metadata": "", "records": b""} | dict.fromkeys(
    ("base_offset", "committed_offset", "high_watermark", "low_watermark", "node_id", "port", "producer_epoch", "producer_id"),
    -1,
)
#: Since this version, the response to a failed Fetch contains no partitions.
_FETCH_WITHOUT_ROWS_FROM = 13


def error_response(request: Struct, version: int, error_code: int) -> Struct:
    """Return the response to a failed request, with ``error_code`` for the request and for each item in it."""
    return _failed(api_for(type(request)).response, request, version, error_code)


def _failed(kind: type[Struct], asked: Any, version: int, error_code: int) -> Struct:
    values: dict[str, Any] = {}
    for spec in fields_of(kind):
        if version not in spec.versions:
            continue
        if spec.name in ("error_code", "partition_error_code"):
            values[spec.name] = error_code
        elif spec.name in _NOTHING:
            values[spec.name] = _NOTHING[spec.name]
        elif spec.name in _NAMES:
            values[spec.name] = _name(spec, asked, version)
        elif version in spec.nullable:
            values[spec.name] = None
        elif spec.kind.element is not None and spec.kind.element.struct is not None:
            row = spec.kind.element.struct
            values[spec.name] = tuple(_failed(row, each, version, error_code) for each in _rows(spec.name, asked, version))
    return kind(**values)


def _name(spec: FieldSpec, asked: Any, version: int) -> Any:
    value = _field(asked, spec.name, spec.default) if isinstance(asked, Struct) else asked
    return spec.kind.default if value is None and version not in spec.nullable else value


def _rows(name: str, asked: Any, version: int) -> Iterable[Any]:
    if isinstance(asked, FetchRequest) and version >= _FETCH_WITHOUT_ROWS_FROM:
        return ()
    return _field(asked, name, None) or ()


def _field(asked: Any, name: str, default: Any) -> Any:
    """Return the value of the first field, under one of its names, that the request contains and that is not empty."""
    found = (getattr(asked, each, None) for each in _OTHER_NAMES.get(name, (name,)))
    return next((value for value in found if value not in (None, ())), default)
