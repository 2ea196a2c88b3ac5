"""The commands of ``consumer-coord``, as one table.

The parser, the completion scripts, the reference pages and the JSON schemas are derived from this table. To add a command,
add a row. A row names functions instead of importing them, so that a command imports only what it uses.

A flag for a time takes milliseconds, and its name ends with ``-ms``, as the names of Kafka's settings do. ``--timeout`` is the
flag of Kafka's tool, which is in milliseconds too; ``--max-lag-seconds`` is compared with the column LAG-SECONDS.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs


@attrs.frozen
class Command:
    """A command. ``run``, ``flags`` and ``document`` are names, in the form ``module:name``.

    * ``run``: if ``asks_kafka``, a coroutine function of a cluster, the parsed arguments and a deadline; otherwise, a function
      of the parsed arguments. The result is the exit code.
    * ``flags``: a function that adds the flags to a parser. The flags for the connection and for JSON are added to every
      command that ``asks_kafka``.
    * ``document``: the ``TypedDict`` of what ``--json`` prints.
    * ``kafka_action``: the flag of Kafka's tool for this command.
    """

    name: str
    help: str
    run: str
    flags: str = ""
    document: str = ""
    asks_kafka: bool = False
    kafka_action: str = ""


def _about_groups(name: str, help_: str, document: str, kafka_action: str = "", *, module: str = "admin.commands") -> Command:
    word = name.replace("-", "_")
    return Command(
        name,
        help_,
        f"consumer_coord.{module}:{word}_command",
        f"consumer_coord.admin.flags:{word}_flags",
        f"consumer_coord.admin.documents:{document}",
        asks_kafka=True,
        kafka_action=kafka_action,
    )


COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        _about_groups("list", "list all groups", "ListDocument", "--list"),
        _about_groups("describe", "members, assignor, partitions, offsets and lag", "DescribeDocument", "--describe"),
        _about_groups("lag", "lag of groups by topic, once or live", "LagDocument", module="scaling.lag_export"),
        _about_groups("reset", "set the offsets of a group without members", "ResetDocument", "--reset-offsets"),
        _about_groups("delete", "delete groups without members, and their offsets", "DeleteDocument", "--delete"),
        _about_groups("delete-offsets", "delete a group's offsets of topics", "DeleteOffsetsDocument", "--delete-offsets"),
        Command(
            "watch",
            "serve a page that shows groups live; record and replay groups",
            "consumer_coord.watch.command:run",
            "consumer_coord.watch.command:add_arguments",
        ),
        Command(
            "migrate",
            "check and follow a move to KIP-848, another assignor or this library",
            "consumer_coord.migration.command:run",
            "consumer_coord.migration.command:add_arguments",
            "consumer_coord.admin.documents:MigrateDocument",
        ),
        Command(
            "serve-metrics",
            "serve the lag of groups, and how many replicas they need",
            "consumer_coord.scaling.command:run",
            "consumer_coord.scaling.command:add_arguments",
        ),
        Command(
            "completion",
            "print a completion script for your shell",
            "consumer_coord.admin.completion:run",
            "consumer_coord.admin.completion:add_arguments",
        ),
        Command(
            "schema",
            "print the JSON schema of what a command prints with --json",
            "consumer_coord.admin.json_schema:run",
            "consumer_coord.admin.json_schema:add_arguments",
        ),
        Command(
            "embedded-kafka",
            "run an embedded Kafka broker in memory, for demos and tests",
            "consumer_coord.broker.command:run",
            "consumer_coord.broker.command:add_arguments",
        ),
        Command(
            "simulate",
            "run groups and brokers in virtual time, with faults",
            "consumer_coord.simulation.command:run",
            "consumer_coord.simulation.command:add_arguments",
        ),
    )
}


def named(path: str) -> Any:
    """Import and return what ``module:name`` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def add_flags(command: Command, parser: argparse.ArgumentParser) -> None:
    """Add the flags of a command to its parser."""
    if command.asks_kafka:
        add_common: Callable[[argparse.ArgumentParser], None] = named("consumer_coord.admin.flags:connection_flags")
        add_common(parser)
    if command.flags:
        named(command.flags)(parser)
