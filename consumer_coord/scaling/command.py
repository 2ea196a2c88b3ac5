"""``consumer-coord serve-metrics``: the lag of groups, and how many replicas they need, for autoscalers."""

from __future__ import annotations

import argparse
import asyncio
import logging
from typing import TYPE_CHECKING

import attrs

from consumer_coord.admin.commands import ExitCode
from consumer_coord.admin.lag_flags import add_lag_flags, lag_policy
from consumer_coord.admin.listening import parse_listen, serve, unless, until_stopped
from consumer_coord.admin.properties import add_client_flags, client_settings, positive, utf8
from consumer_coord.config import parse
from consumer_coord.errors import ConfigurationError
from consumer_coord.lag.partition_lag import LagPolicy
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.scaling.flags import add_limits, limits_of
from consumer_coord.scaling.scaler import Scaler

if TYPE_CHECKING:
    from starlette.types import ASGIApp

DEFAULT_LISTEN = "127.0.0.1:8099"
NO_WEB = "serve-metrics needs starlette and uvicorn: pip install 'consumer-coord[web]'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``consumer-coord serve-metrics`` to a parser."""
    parser.add_argument("groups", nargs="+", type=utf8, metavar="GROUP", help="names of groups")
    parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT", help="brokers, separated by commas")
    add_client_flags(parser)
    add_lag_flags(parser, seconds=False)
    add_limits(parser.add_argument_group("wanted replicas"))
    serving = parser.add_argument_group("serving")
    serving.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="address to serve at (%(default)s)")
    serving.add_argument("--interval-ms", type=positive, default=15_000, metavar="MS", help="between two readings (15000)")
    serving.add_argument("--duration-ms", type=positive, metavar="MS", help="milliseconds after which the command ends")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C, SIGTERM or ``--duration-ms``; return an :class:`~consumer_coord.admin.commands.ExitCode`."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    parse_listen(arguments.listen)
    try:
        from consumer_coord.scaling import server  # noqa: F401  # whether the extra is installed
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise ConfigurationError(NO_WEB) from None
    return asyncio.run(_serve(arguments))


async def _serve(arguments: argparse.Namespace) -> ExitCode:
    from consumer_coord.scaling.server import application

    cluster = cluster_client(parse(client_settings(arguments), needs_group=False).client)
    scaler = Scaler(
        cluster,
        arguments.groups,
        _policy(arguments),
        limits_of(vars(arguments)),
        interval_s=arguments.interval_ms / 1000,
        timeout_ms=arguments.timeout,
    )

    def app(loopback: bool) -> ASGIApp:
        return application(scaler, asyncio.get_running_loop().time, loopback=loopback)

    try:
        with until_stopped(arguments.duration_ms) as stop:
            await unless(stop, scaler.first())
            reading = asyncio.ensure_future(scaler.run())
            # If the scaler fails, end the command with its error, so that nobody scales by a figure that never changes again.
            reading.add_done_callback(lambda _: stop.set())
            shows = "the figures have no password, and show the names of groups and topics"
            try:
                await serve(arguments.listen, app, stop, shows=shows)
            finally:
                reading.cancel()
                await asyncio.wait({reading})
            if not reading.cancelled():
                reading.result()
    finally:
        await cluster.close()
    return ExitCode.DONE


def _policy(arguments: argparse.Namespace) -> LagPolicy:
    """Return what counts as lag: never the offsets of transaction markers alone, at any isolation level."""
    return attrs.evolve(lag_policy(arguments), records=True)
