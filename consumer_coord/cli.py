"""``consumer-coord``: commands for consumer groups, an embedded Kafka, and the simulation.

The flags are those of Kafka's ``kafka-consumer-groups``. Kafka's form ``--describe --group g`` also works.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from consumer_coord.admin.commands import ExitCode, exit_code, warn
from consumer_coord.admin.properties import client_settings
from consumer_coord.command_table import COMMANDS, add_flags, named
from consumer_coord.config import parse
from consumer_coord.errors import ConfigurationError, CoordinatorError
from consumer_coord.log_text import escape_unencodable
from consumer_coord.net import unreachable
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.retry import Deadline
from consumer_coord.setting_names import did_you_mean
from consumer_coord.version import __version__

_Run = Callable[[ClusterClient, argparse.Namespace, Deadline], Awaitable[ExitCode]]

#: Time after which a command ends if no address is listening, in milliseconds.
_UNREACHABLE_MS = 2_000

#: Kafka's flag for an action -> the command here.
KAFKA_ACTIONS = {command.kafka_action: name for name, command in COMMANDS.items() if command.kafka_action}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code (see :class:`ExitCode`)."""
    escape_unencodable(sys.stdout)
    try:
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        finally:
            # Write the buffered output here: an error at the interpreter's exit would replace the exit code by 120.
            print(end="", flush=True)
    except BrokenPipeError:
        # The reader closed the pipe (`| head`), so the rest of the buffer cannot be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _main(arguments: Sequence[str]) -> int:
    try:
        given = _by_command(arguments)
        parser, of_command = _parsers(given[:1])
        if given and given[0] in of_command:
            _refuse_unknown_flags(of_command[given[0]], given[1:])
        parsed = parser.parse_args(given)
    except ConfigurationError as error:
        warn(f"Error: {error}")
        return ExitCode.USAGE
    command = COMMANDS[parsed.command]
    try:
        if not command.asks_kafka:
            # --assignor and group.consumer.assignors accept module:Class, including files in the working directory. The
            # directory is last in the path, so that no file in it replaces an installed module.
            if os.getcwd() not in sys.path:
                sys.path.append(os.getcwd())
            return int(named(command.run)(parsed) or 0)
        logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
        with _unreachable_brokers_logged():
            return int(asyncio.run(_run(named(command.run), parsed)))
    except CoordinatorError as error:
        warn(f"\nError: {error}")
        return exit_code(error)
    except KeyboardInterrupt:
        # The usual end of a command that runs until it is interrupted.
        return ExitCode.DONE if getattr(parsed, "interval_ms", None) is not None else 130


@contextmanager
def _unreachable_brokers_logged() -> Iterator[None]:
    """Log the brokers' addresses and the connection errors, if no broker was reached for some seconds."""
    before = unreachable.logger.level
    unreachable.logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        unreachable.logger.setLevel(before)


async def _run(command: _Run, arguments: argparse.Namespace) -> ExitCode:
    cluster = cluster_client(
        parse(client_settings(arguments), needs_group=False).client, unreachable_timeout_ms=_UNREACHABLE_MS
    )
    try:
        return await command(cluster, arguments, Deadline.after(arguments.timeout))
    finally:
        await cluster.close()


def _by_command(arguments: Sequence[str]) -> list[str]:
    """Return ``describe --group g`` for Kafka's form ``--describe --group g``."""
    if not arguments or not arguments[0].startswith("--"):
        return list(arguments)
    actions = [argument for argument in arguments if argument in KAFKA_ACTIONS]
    if not actions:
        return list(arguments)
    if len(set(actions)) > 1:
        raise ConfigurationError(f"give exactly one action: {', '.join(KAFKA_ACTIONS)}")
    return [KAFKA_ACTIONS[actions[0]], *(argument for argument in arguments if argument not in KAFKA_ACTIONS)]


def _refuse_unknown_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Exit with an error that suggests the flag that was probably meant. argparse suggests no flags."""
    known = parser._option_string_actions
    for argument in itertools.takewhile(lambda each: each != "--", arguments):
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            parser.error(f"unrecognized argument: {flag}{did_you_mean(flag, known)}")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands with all flags."""
    return _parsers(COMMANDS)[0]


def _parsers(wanted: Collection[str]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and the parser of each command; only the ``wanted`` commands have their flags."""
    parser = argparse.ArgumentParser(
        "consumer-coord", description="Consumer groups from the command line.", allow_abbrev=False, epilog=_exit_codes()
    )
    parser.add_argument("--version", action="version", version=f"consumer-coord {__version__}")
    added = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        made = added.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        if name in wanted:
            add_flags(command, made)
    return parser, added.choices


def _exit_codes() -> str:
    return "Exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode) + "."
