"""Random values for every message in every version, from the tables of the messages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from consumer_coord.wire.apis import APIS
from consumer_coord.wire.embedded_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from consumer_coord.wire.schema import (
    BOOL,
    BYTES,
    FLOAT64,
    RECORDS,
    STRING,
    UUID,
    FieldSpec,
    Kind,
    Struct,
    fields_of,
    message_spec,
)

#: Every message that has a table.
MESSAGES: Sequence[type[Struct]] = (
    *(message for api in APIS.values() for message in (api.request, api.response)),
    ConsumerProtocolSubscription,
    ConsumerProtocolAssignment,
)

#: Few examples, because every test runs over all messages and versions. No shrinking, because messages are large, and a
#: failure shows the version and the value anyway.
FEW = settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

#: A function that returns a strategy for a field that a comparison must restrict, or None.
Narrow = Callable[[FieldSpec], "st.SearchStrategy[Any] | None"]

_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["x" * 126, "x" * 127, "x" * 128, "é" * 150]),
)
_BYTES = st.one_of(st.binary(max_size=6), st.sampled_from([b"\0" * 126, b"\xff" * 127, b"b" * 300]))
_BITS = {"b": (8, True), "h": (16, True), "H": (16, False), "i": (32, True), "I": (32, False), "q": (64, True)}


def versions_of(message: type[Struct]) -> Sequence[int]:
    """Return the versions that a message's table covers."""
    return list(message_spec(message).versions)


def is_flexible(message: type[Struct], version: int) -> bool:
    """Return whether this version has compact types and tag buffers."""
    return version in message_spec(message).flexible


def values_of(struct: type[Struct], version: int, narrow: Narrow = lambda spec: None) -> st.SearchStrategy[Any]:
    """Return a strategy for instances in which only the fields of ``version`` may differ from their defaults."""
    strategies = {}
    for spec in fields_of(struct):
        if version in spec.versions:
            strategy = narrow(spec)
            if strategy is None:
                strategy = _value_of(spec.kind, version, narrow)
            if version in spec.nullable:
                strategy = st.none() | strategy
            strategies[spec.name] = strategy if spec.tag is None else st.just(spec.default) | strategy
    return st.builds(struct, **strategies)


def _value_of(kind: Kind[Any], version: int, narrow: Narrow) -> st.SearchStrategy[Any]:
    if kind.struct is not None:
        return values_of(kind.struct, version, narrow)
    if kind.element is not None:
        return st.lists(_value_of(kind.element, version, narrow), max_size=3).map(tuple)
    if kind is BOOL:
        return st.booleans()
    if kind is UUID:
        return st.just(uuid.UUID(int=0)) | st.uuids()
    if kind is FLOAT64:
        return st.floats(allow_nan=False)
    if kind.format:
        bits, signed = _BITS[kind.format]
        low = -(1 << bits - 1) if signed else 0
        return st.integers(low, low + (1 << bits) - 1)
    return _TEXT if kind is STRING else _BYTES


def full_value(struct_class: type[Struct], version: int, elements: int = 2) -> Struct:
    """Return a value in which every optional part is present."""
    return struct_class(
        **{spec.name: _full(spec.kind, version, elements) for spec in fields_of(struct_class) if version in spec.versions}
    )


def _full(kind: Kind[Any], version: int, elements: int) -> Any:
    if kind.struct is not None:
        return full_value(kind.struct, version, elements)
    if kind.element is not None:
        return tuple(_full(kind.element, version, elements) for _ in range(elements))
    if kind is STRING:
        return "naïve"
    if kind in (BYTES, RECORDS):
        return b"\x00\xffbytes"
    if kind is UUID:
        return uuid.UUID(int=0x0123456789ABCDEF)
    return True if kind is BOOL else 77
