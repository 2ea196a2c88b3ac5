"""Messages as JSON for the converters in Kafka's jars."""

from __future__ import annotations

import base64
import re
from typing import Any, cast

import attrs

from consumer_coord.wire.schema import BYTES, RECORDS, UUID, Kind, Struct, fields_of


def message_as_json(value: Struct, version: int) -> dict[str, Any]:
    """Return a message's fields, in Kafka's spelling.

    Structures that the version does not have are omitted: the converters accept none, not even to refuse them in ``write``.
    """
    return {
        _camel(spec.name): _as_json(spec.kind, getattr(value, spec.name), version)
        for spec in fields_of(type(value))
        if version in spec.versions or not _is_structural(spec.kind)
    }


def without_structures_of_other_versions(value: Struct, version: int) -> Struct:
    """Return the value with defaults for the structures (and arrays of them) that :func:`message_as_json` omits."""
    changed = {}
    for spec in fields_of(type(value)):
        field = getattr(value, spec.name)
        if not _is_structural(spec.kind):
            continue
        if version not in spec.versions:
            changed[spec.name] = spec.default
        elif field is None:
            continue
        elif spec.kind.struct is not None:
            changed[spec.name] = without_structures_of_other_versions(field, version)
        else:
            changed[spec.name] = tuple(without_structures_of_other_versions(element, version) for element in field)
    evolved: Struct = attrs.evolve(cast(Any, value), **changed)
    return evolved


def _is_structural(kind: Kind[Any]) -> bool:
    return kind.struct is not None or (kind.element is not None and kind.element.struct is not None)


def _as_json(kind: Kind[Any], value: Any, version: int) -> Any:
    if value is None:
        return None
    if kind.struct is not None:
        return message_as_json(value, version)
    if kind.element is not None:
        return [_as_json(kind.element, element, version) for element in value]
    if kind in (BYTES, RECORDS):
        return base64.b64encode(value).decode()
    if kind is UUID:
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    return value


def _camel(name: str) -> str:
    return re.sub("_(.)", lambda match: match[1].upper(), name)
