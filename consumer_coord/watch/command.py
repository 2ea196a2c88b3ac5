"""``consumer-coord watch``: watch, serve and record groups, or show a recording."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from consumer_coord.admin.commands import ExitCode
from consumer_coord.admin.lag_flags import add_lag_flags, lag_policy
from consumer_coord.admin.listening import parse_listen, serve, unless, until_stopped
from consumer_coord.admin.properties import add_client_flags, client_settings, positive, utf8
from consumer_coord.config import parse
from consumer_coord.errors import ConfigurationError
from consumer_coord.lag.partition_lag import LagPolicy
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.watch.changes import Message
from consumer_coord.watch.collect import Collector
from consumer_coord.watch.history import History
from consumer_coord.watch.page import write_page
from consumer_coord.watch.recording import Meta, Recorder, read_recording

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from consumer_coord.watch.server import Hub

DEFAULT_LISTEN = "127.0.0.1:8098"
NO_WEB = "the page needs starlette and uvicorn: pip install 'consumer-coord[web]' (or use --no-page with --record or --html)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``consumer-coord watch`` to a parser."""
    parser.add_argument("groups", nargs="*", type=utf8, metavar="GROUP", help="names of groups; without names, all groups")
    source = parser.add_argument_group("source (choose one)")
    source.add_argument("--bootstrap-server", metavar="HOST:PORT", help="brokers, separated by commas")
    source.add_argument("--replay", type=Path, metavar="FILE", help="file that --record wrote")
    add_client_flags(parser)
    add_lag_flags(parser)
    parser.add_argument("--interval-ms", type=positive, default=1_000, metavar="MS", help="between two snapshots (1000)")
    page = parser.add_argument_group("the page")
    page.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="address of the page (%(default)s)")
    page.add_argument("--no-page", action="store_true", help="do not serve the page; only write files")
    page.add_argument("--history-ms", type=positive, default=3_600_000, metavar="MS", help="history on the page (an hour)")
    kept = parser.add_argument_group("output files")
    kept.add_argument("--record", type=Path, metavar="FILE", help="write a recording for --replay")
    kept.add_argument("--html", type=Path, metavar="FILE", help="at the end, write one self-contained page")
    kept.add_argument("--duration-ms", type=positive, metavar="MS", help="milliseconds after which the command ends")


def run(arguments: argparse.Namespace) -> int:
    """Run until Ctrl-C, SIGTERM or ``--duration-ms``; return an :class:`~consumer_coord.admin.commands.ExitCode`."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    check(arguments)
    if arguments.replay is not None:
        return asyncio.run(_replay(arguments))
    return asyncio.run(_watch(arguments))


def check(arguments: argparse.Namespace) -> None:
    """Raise :class:`ConfigurationError` for contradictory flags, before any request is sent."""
    replay = arguments.replay is not None
    if replay == (arguments.bootstrap_server is not None):
        raise ConfigurationError("choose a source: --bootstrap-server HOST:PORT, or --replay FILE")
    if replay and (arguments.record is not None or arguments.groups):
        raise ConfigurationError("--replay shows a whole recording: remove the names of groups and --record")
    if arguments.no_page and arguments.record is None and arguments.html is None:
        raise ConfigurationError("--no-page leaves nothing to do: add --record FILE or --html FILE")
    if not arguments.no_page and not (replay and arguments.html is not None):
        parse_listen(arguments.listen)
        _server_module()


def _server_module() -> Any:
    try:
        from consumer_coord.watch import server
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise ConfigurationError(NO_WEB) from None
    return server


async def _replay(arguments: argparse.Namespace) -> ExitCode:
    recording = read_recording(arguments.replay)
    if arguments.html is not None:
        write_page(arguments.html, recording.meta, recording.messages)
        print(arguments.html)
        return ExitCode.DONE
    history = History(keep_s=float("inf"), most_bytes=1 << 40)
    for message in recording.messages:
        history.add(message)
    with until_stopped(arguments.duration_ms) as stop:
        await _serve(arguments, _server_module().Hub(recording.meta, history, live=False), stop)
    return ExitCode.DONE


async def _watch(arguments: argparse.Namespace) -> ExitCode:
    keep_s = arguments.history_ms / 1000
    meta = Meta(title=arguments.bootstrap_server, keep_s=keep_s)
    cluster = cluster_client(parse(client_settings(arguments), needs_group=False).client)
    history = History(keep_s)
    with contextlib.ExitStack() as stack:
        stack.callback(_write_html, arguments.html, meta, history)
        recorder = None if arguments.record is None else stack.enter_context(Recorder(arguments.record, meta))
        hub: Hub | None = None if arguments.no_page else _server_module().Hub(meta, history)
        stop = stack.enter_context(until_stopped(arguments.duration_ms))
        collector = Collector(
            cluster, arguments.groups, _policy(arguments), interval_s=arguments.interval_ms / 1000, timeout_ms=arguments.timeout
        )

        def publish(message: Message) -> None:
            text = history.add(message)
            if recorder is not None:
                recorder.write(text)
            if hub is not None:
                hub.publish(text)

        try:
            first = await unless(stop, collector.first())
            if first is not None:
                publish(first)
                looking = asyncio.ensure_future(_look(collector, publish, stop))
                # If the collector fails, also stop the web server, so that the command fails with the collector's error.
                looking.add_done_callback(lambda _: stop.set())
                await (stop.wait() if hub is None else _serve(arguments, hub, stop))
                stop.set()
                await looking
        finally:
            await cluster.close()
    return ExitCode.DONE


def _policy(arguments: argparse.Namespace) -> LagPolicy:
    """Return what counts as lag. Records are read only for ``--seconds``, because the page asks every two seconds."""
    policy = lag_policy(arguments)
    return policy if policy.seconds else attrs.evolve(policy, records=False)


async def _look(collector: Collector, publish: Callable[[Message], None], stop: asyncio.Event) -> None:
    while (message := await unless(stop, collector.next())) is not None:
        publish(message)


async def _serve(arguments: argparse.Namespace, hub: Hub, stop: asyncio.Event) -> None:
    def app(loopback: bool) -> ASGIApp:
        return _server_module().application(hub, loopback=loopback)  # type: ignore[no-any-return]

    shows = "the page has no password, and shows the names of groups, topics, members and hosts"
    await serve(arguments.listen, app, stop, shows=shows, ending=hub.close)


def _write_html(path: Path | None, meta: Meta, history: History) -> None:
    messages = history.messages()
    if path is not None and messages:
        stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(messages[0]["at"]))
        write_page(path, Meta(title=meta.title, subtitle=f"from {stamp}"), messages)
        print(path)
