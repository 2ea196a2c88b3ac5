"""``consumer-coord schema COMMAND``: the JSON schema of a command's document, derived from its type."""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

from consumer_coord.command_table import COMMANDS, named

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def schema_of(document: type) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a ``TypedDict``.

    Later versions may add properties, so the schema allows additional ones.
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema(document)}


def schemas() -> Mapping[str, dict[str, Any]]:
    """Return command -> schema, for the commands that print JSON."""
    return {name: schema_of(named(command.document)) for name, command in COMMANDS.items() if command.document}


def _schema(hint: Any) -> dict[str, Any]:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {**_schema(arguments[0]), "description": arguments[1]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if origin is types.UnionType:
        return {"anyOf": [_schema(one) for one in arguments]}
    assert is_typeddict(hint), hint
    fields = get_type_hints(hint, include_extras=True)
    return {
        "type": "object",
        "properties": {name: _schema(field) for name, field in fields.items()},
        "required": list(fields),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of ``schema``."""
    parser.add_argument(
        "of", metavar="COMMAND", choices=[name for name, command in COMMANDS.items() if command.document], help="a command"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the schema."""
    print(json.dumps(schema_of(named(COMMANDS[arguments.of].document)), indent=2))
    return 0
