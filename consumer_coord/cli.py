"""``consumer-coord``: commands for consumer groups, an embedded Kafka, and the simulation.

The flags are those of Kafka's ``kafka-consumer-groups``. Kafka's form ``--describe --group g`` also works.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from consumer_coord.admin import commands, completion
from consumer_coord.admin.commands import ExitCode, exit_code, warn
from consumer_coord.admin.lag_flags import add_lag_flags
from consumer_coord.admin.properties import add_client_flags, client_settings, count, not_negative, positive, utf8
from consumer_coord.admin.top import top_command
from consumer_coord.config import parse
from consumer_coord.errors import ConfigurationError, CoordinatorError
from consumer_coord.net import reach
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.printable import escape_unencodable
from consumer_coord.retry import Deadline
from consumer_coord.runtime.background import cluster_client
from consumer_coord.scaling.lag_export import add_export_flags, lag_command
from consumer_coord.setting_names import did_you_mean
from consumer_coord.version import __version__

_COMPLETION = (
    'Print a script that completes commands and flags. bash: add eval "$(consumer-coord completion bash)" to ~/.bashrc;'
    " zsh: the same with zsh, in ~/.zshrc; fish: consumer-coord completion fish >"
    " ~/.config/fish/completions/consumer-coord.fish"
)

Command = Callable[[ClusterClient, argparse.Namespace, Deadline], Awaitable[ExitCode]]

#: Time after which a command ends if no address is listening, in milliseconds.
_UNREACHABLE_MS = 2_000

#: Kafka's flag for an action -> the command here.
KAFKA_ACTIONS = {
    "--list": "list",
    "--describe": "describe",
    "--delete": "delete",
    "--reset-offsets": "reset",
    "--delete-offsets": "delete-offsets",
}
#: States of groups of every type (Kafka's ``GroupState``).
_STATES = (
    "Assigning",
    "CompletingRebalance",
    "Dead",
    "Empty",
    "NotReady",
    "PreparingRebalance",
    "Reconciling",
    "Stable",
    "Unknown",
)
#: Types of groups (Kafka's ``GroupType``).
_TYPES = ("Classic", "Consumer", "Share", "Streams", "Unknown")
#: Command -> (module, help text). The module is imported when the command is used.
ELSEWHERE = {
    "watch": ("consumer_coord.watch.command", "serve a page that shows groups live; record and replay groups"),
    "migrate": ("consumer_coord.migration.command", "check and follow a move to KIP-848, another assignor or this library"),
    "serve-metrics": ("consumer_coord.scaling.command", "serve the lag of groups, and how many replicas they need"),
    "embedded-kafka": ("consumer_coord.broker.command", "run an embedded Kafka broker in memory, for demos and tests"),
    "simulate": ("consumer_coord.simulation.command", "run groups and brokers in virtual time, with faults"),
}


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
        parser, of_command = _parsers(arguments)
        if given and given[0] in of_command:
            _refuse_unknown_flags(of_command[given[0]], given[1:])
        parsed = parser.parse_args(given)
    except ConfigurationError as error:
        warn(f"Error: {error}")
        return ExitCode.USAGE
    try:
        if parsed.command == "completion":
            print(_completion(parsed.shell), end="")
            return ExitCode.DONE
        if parsed.command in ELSEWHERE:
            # --assignor and group.consumer.assignors accept module:Class, including files in the working directory. The
            # directory is last in the path, so that no file in it replaces an installed module.
            if os.getcwd() not in sys.path:
                sys.path.append(os.getcwd())
            return int(importlib.import_module(ELSEWHERE[parsed.command][0]).run(parsed) or 0)
        logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
        with _unreachable_brokers_logged():
            return int(asyncio.run(_run(parsed.run, parsed)))
    except CoordinatorError as error:
        warn(f"\nError: {error}")
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.DONE if parsed.command == "top" else 130


@contextmanager
def _unreachable_brokers_logged() -> Iterator[None]:
    """Log the brokers' addresses and the connection errors, if no broker was reached for some seconds."""
    before = reach.logger.level
    reach.logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        reach.logger.setLevel(before)


async def _run(command: Command, arguments: argparse.Namespace) -> ExitCode:
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


def _some_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a function that splits ``stable,empty`` and refuses unknown names, ignoring case."""
    by_lower_case = {one.lower(): one for one in known}

    def split(given: str) -> tuple[str, ...]:
        names = tuple(one.strip() for one in given.split(",") if one.strip())
        for name in names:
            if name.lower() not in by_lower_case:
                hint = did_you_mean(name.capitalize(), known)
                raise argparse.ArgumentTypeError(f"unknown name {name!r}{hint}; known are {', '.join(known)}")
        return tuple(by_lower_case[name.lower()] for name in names)

    return split


def _refuse_unknown_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Exit with an error that suggests the flag that was probably meant. argparse suggests no flags."""
    known = parser._option_string_actions
    for argument in itertools.takewhile(lambda each: each != "--", arguments):
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            parser.error(f"unrecognized argument: {flag}{did_you_mean(flag, known)}")


def build_parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser. If ``arguments`` begin with a command of :data:`ELSEWHERE`, add the flags of this command."""
    return _parsers(arguments)[0]


def _parsers(arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and the parser of each command."""
    parser = argparse.ArgumentParser(
        "consumer-coord", description="Consumer groups from the command line.", allow_abbrev=False, epilog=_exit_codes()
    )
    parser.add_argument("--version", action="version", version=f"consumer-coord {__version__}")
    added = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Command, help_: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        made = added.add_parser(name, help=help_, description=help_, parents=[_common(), *parents], allow_abbrev=False)
        made.set_defaults(run=run)
        return made

    listing = command("list", commands.list_command, "list all groups")
    listing.add_argument(
        "--state",
        nargs="?",
        const=(),
        type=_some_of(_STATES),
        metavar="STATES",
        help="show states; with a value, only groups in these states: stable,empty",
    )
    listing.add_argument(
        "--type",
        nargs="?",
        const=(),
        type=_some_of(_TYPES),
        metavar="TYPES",
        help="show types; with a value, only groups of these types: classic,share",
    )

    describe = command(
        "describe", commands.describe_command, "members, assignor, partitions, offsets and lag", _groups(), _lag()
    )
    view = describe.add_mutually_exclusive_group()
    view.add_argument("--offsets", action="store_true", help="offsets and lag of each partition (the default)")
    view.add_argument("--members", action="store_true", help="the members")
    view.add_argument("--state", action="store_true", help="state, coordinator and assignor")
    describe.add_argument("--verbose", action="store_true", help="more columns: epochs, assignments, subscriptions")

    lag = command("lag", lag_command, "lag of groups, by topic", _groups(), _lag())
    lag.add_argument("--max-lag", type=int, metavar="N", help=f"exit with {ExitCode.BEHIND} if a partition's lag is higher")
    lag.add_argument(
        "--max-lag-seconds",
        type=not_negative,
        metavar="S",
        help=f"exit with {ExitCode.BEHIND} if the first unread record of a partition is older (implies --seconds)",
    )

    add_export_flags(lag)

    _add_reset(command("reset", commands.reset_command, "set the offsets of a group without members", _groups()))
    command("delete", commands.delete_command, "delete groups without members, and their offsets", _groups())
    offsets = command("delete-offsets", commands.delete_offsets_command, "delete a group's offsets of topics", _groups())
    offsets.add_argument("--topic", action="append", type=utf8, metavar="TOPIC[:0,1]", help="may be repeated")

    top = command("top", top_command, "watch the lag and rates of groups, by topic", _groups(), _lag())
    top.add_argument("--interval", type=positive, default=2.0, metavar="S", help="seconds between two queries (default: 2)")
    top.add_argument("--count", type=count, metavar="N", help="number of queries after which the command ends")

    completing = added.add_parser(
        "completion", help="print a completion script for your shell", description=_COMPLETION, allow_abbrev=False
    )
    completing.add_argument("shell", choices=completion.SHELLS)

    for name, (module, help_) in ELSEWHERE.items():
        made = added.add_parser(name, help=help_, description=help_, allow_abbrev=False)
        if name in arguments[:1]:
            importlib.import_module(module).add_arguments(made)
    return parser, added.choices


def _completion(shell: str) -> str:
    parsers: dict[str, argparse.ArgumentParser] = {}
    helps: dict[str, str] = {}
    # Each command of ELSEWHERE adds its flags only if it is the requested command.
    for asked in ("", *ELSEWHERE):
        for action in build_parser([asked])._actions:
            if isinstance(action, argparse._SubParsersAction):
                helps |= {one.dest: one.help or "" for one in action._choices_actions}
                parsers |= {name: one for name, one in action.choices.items() if name == asked or name not in parsers}
    return completion.script(shell, parsers, helps)


def _common() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT", help="brokers, separated by commas")
    add_client_flags(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    return parser


def _groups() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("groups", nargs="*", type=utf8, metavar="GROUP", help="names of groups")
    parser.add_argument("--group", action="append", type=utf8, metavar="GROUP", help="name of a group; may be repeated")
    parser.add_argument("--all-groups", action="store_true", help="every consumer group")
    return parser


def _lag() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    add_lag_flags(parser)
    return parser


def _add_reset(parser: argparse.ArgumentParser) -> None:
    scope = parser.add_argument_group("partitions to reset")
    scope.add_argument("--topic", action="append", type=utf8, metavar="TOPIC[:0,1]", help="may be repeated")
    scope.add_argument("--all-topics", action="store_true", help="all partitions for which the group has committed offsets")
    rule = parser.add_argument_group("target (choose one)")
    rule.add_argument("--to-earliest", action="store_true", help="the first record")
    rule.add_argument("--to-latest", action="store_true", help="the end")
    rule.add_argument("--to-current", action="store_true", help="the committed offset, or the end if there is none")
    rule.add_argument("--to-offset", type=int, metavar="N", help="this offset")
    rule.add_argument("--shift-by", type=int, metavar="N", help="move by this number of records; a negative number moves back")
    rule.add_argument("--to-datetime", metavar="TIME", help="the first record since YYYY-MM-DDTHH:mm:SS.sss (UTC)")
    rule.add_argument("--by-duration", metavar="PnDTnHnMnS", help="the first record of the last period, such as P1DT12H")
    rule.add_argument("--from-file", metavar="CSV", help="a file that --export wrote: topic,partition,offset")
    how = parser.add_argument_group("how")
    how.add_argument("--dry-run", action="store_true", help="change nothing (the default)")
    how.add_argument("--execute", action="store_true", help="set the offsets")
    how.add_argument("--export", action="store_true", help="print CSV for --from-file")


def _exit_codes() -> str:
    return "Exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode) + "."
