"""``consumer-coord migrate``: check a move to another protocol, assignor or client, and follow it live."""

from __future__ import annotations

import argparse
import asyncio
import logging
from datetime import UTC, datetime

import attrs

from consumer_coord.admin.commands import ExitCode, print_json, warn
from consumer_coord.admin.listening import unless, until_stopped
from consumer_coord.admin.properties import add_client_flags, client_settings, positive, utf8
from consumer_coord.config import parse
from consumer_coord.errors import ConfigurationError, CoordinatorError
from consumer_coord.log_text import printable, printable_json
from consumer_coord.migration.group import BrokerSettings, MigratingGroup
from consumer_coord.migration.plans import Target, plan_of
from consumer_coord.migration.progress import progress_of
from consumer_coord.migration.read import read_group, read_settings
from consumer_coord.migration.text import as_json, plan_text, progress_text
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.retry import Deadline

#: Time after which the command ends if no address is listening, in milliseconds.
_UNREACHABLE_MS = 2_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``consumer-coord migrate`` to a parser."""
    parser.add_argument("group", type=utf8, metavar="GROUP", help="name of a classic or consumer group")
    parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT", help="brokers, separated by commas")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="show what prevents the move, what is lost, and the order (default)")
    what.add_argument("--watch", action="store_true", help="follow the move, and say when the next member may be restarted")
    parser.add_argument(
        "--to",
        type=Target,
        choices=list(Target),
        default=Target.CONSUMER,
        metavar="TARGET",
        help="consumer (KIP-848, the default), classic, cooperative-sticky (from an eager assignor), or consumer-coord"
        " (from confluent-kafka)",
    )
    parser.add_argument("--interval-ms", type=positive, default=1_000, metavar="MS", help="between two looks of --watch (1000)")
    parser.add_argument("--duration-ms", type=positive, metavar="MS", help="milliseconds after which --watch ends")
    add_client_flags(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document; with --watch, one line for each change")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return an :class:`~consumer_coord.admin.commands.ExitCode`."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    if arguments.duration_ms is not None and not arguments.watch:
        raise ConfigurationError("--duration-ms ends --watch: add --watch")
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> ExitCode:
    config = parse(client_settings(arguments), needs_group=False).client
    cluster = cluster_client(config, unreachable_timeout_ms=_UNREACHABLE_MS)
    try:
        return await (_watch if arguments.watch else check)(cluster, arguments)
    finally:
        await cluster.close()


async def _look(cluster: ClusterClient, arguments: argparse.Namespace) -> tuple[MigratingGroup, BrokerSettings]:
    deadline = Deadline.after(arguments.timeout)
    group = await read_group(cluster, arguments.group, deadline)
    return group, await read_settings(cluster, group, deadline)


async def check(cluster: ClusterClient, arguments: argparse.Namespace) -> ExitCode:
    """Print the plan. FAILED: something prevents the move; INCOMPLETE: the settings of a broker are unknown."""
    group, settings = await _look(cluster, arguments)
    plan, progress = plan_of(group, settings, arguments.to), progress_of(group, settings, arguments.to)
    if arguments.json:
        print_json(as_json(group, settings, plan, progress))
    else:
        print(plan_text(group, settings, plan, progress))
    if not plan.possible:
        return ExitCode.FAILED
    return ExitCode.INCOMPLETE if settings.unknown else ExitCode.DONE


async def _watch(cluster: ClusterClient, arguments: argparse.Namespace) -> ExitCode:
    """Print a line for each change until the move is complete (DONE), a signal, or ``--duration-ms`` (FAILED)."""
    follower = _Follower(arguments)
    with until_stopped(arguments.duration_ms) as stop:
        while not stop.is_set():
            try:
                look = await unless(stop, _look(cluster, arguments))
            except CoordinatorError as error:
                follower.take_error(error)
            else:
                if look is not None and follower.take(*look):
                    return ExitCode.DONE
            await unless(stop, asyncio.sleep(arguments.interval_ms / 1000))
    return ExitCode.FAILED


class _Follower:
    """Compares each look with the one before, and prints what has changed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._last: object = None
        #: The names of the members in the last look that succeeded, and their number in the first one.
        self._members: frozenset[str] | None = None
        self._expected = 0

    def take(self, group: MigratingGroup, settings: BrokerSettings) -> bool:
        """Take a look; return whether the move is complete."""
        present = frozenset(member.name for member in group.members)
        self._expected = self._expected or len(present)
        progress = progress_of(group, settings, self._arguments.to, expected=self._expected)
        if (progress, present) != self._last:
            before = present if self._members is None else self._members
            news = {"joined": tuple(sorted(present - before)), "left": tuple(sorted(before - present))}
            if self._arguments.json:
                print(printable_json({"at": _now(), **attrs.asdict(progress), **news}), flush=True)
            else:
                print(printable(f"{_now()} {progress_text(progress, self._arguments.to, news)}"), flush=True)
        self._last, self._members = (progress, present), present
        return progress.complete

    def take_error(self, error: CoordinatorError) -> None:
        """Print that nothing is known at present, so that nothing is safe; raise the error of the first look."""
        if self._last is None:
            raise error
        if str(error) == self._last:
            return
        self._last = str(error)
        if self._arguments.json:
            unknown = {"at": _now(), "error": str(error), "wait": str(error), "back": None, "back_refused": str(error)}
            print(printable_json(unknown), flush=True)
        else:
            warn(f"{_now()} unknown, so wait: {error}")


def _now() -> str:
    return datetime.now(UTC).strftime("%H:%M:%SZ")
