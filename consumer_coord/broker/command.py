"""The command ``python -m consumer_coord embedded-kafka``: an embedded cluster that runs until it is interrupted."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import ConfigurationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="number of brokers (default: 1)")
    parser.add_argument(
        "--topics", default="", metavar="LIST", help="topics to create, as name:partitions, separated by commas"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port of the first broker (default: a free port)")
    parser.add_argument("--data-dir", metavar="DIR", help="directory for topics, records and groups (default: only in memory)")
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a broker setting by Kafka's name, such as group.initial.rebalance.delay.ms=3000; may be repeated",
    )
    parser.add_argument("--verbose", action="store_true", help="log rebalances and closed connections")


def run(arguments: argparse.Namespace) -> int:
    """Run brokers until SIGINT or SIGTERM; return the exit code.

    The first line of output has the bootstrap addresses. The line is written when clients can connect.
    """
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    if not _is_loopback(arguments.host):
        print(
            f"Warning: --host {arguments.host}: every machine that can reach this machine may read, write and delete"
            " without a password; use an embedded Kafka only for demos and tests",
            file=sys.stderr,
        )
    kafka = EmbeddedKafka(
        _topics(arguments.topics),
        arguments.brokers,
        config=_settings(arguments.config),
        data_dir=arguments.data_dir,
        host=arguments.host,
        port=arguments.port,
    )
    # Block the signals, and wait for them only after the start, so that a signal during the start is not lost.
    signals = {signal.SIGINT, signal.SIGTERM}
    for number in signals:
        signal.signal(number, _ignore)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        with kafka:
            print(f"bootstrap.servers={kafka.bootstrap_servers}", flush=True)
            signal.sigwait(signals)
    except OSError as error:
        print(f"Error: cannot listen on {arguments.host}: {error}", file=sys.stderr)
        return 1
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return 0


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address; return False for a name other than localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _topics(text: str) -> dict[str, int]:
    topics = {}
    for entry in filter(None, text.split(",")):
        name, _, count = entry.rpartition(":") if ":" in entry else (entry, ":", "1")
        if not count.isdecimal() or int(count) < 1:
            raise ConfigurationError(f"--topics takes name:partitions, not {entry!r}")
        topics[name] = int(count)
    return topics


def _settings(entries: Sequence[str]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise ConfigurationError(f"--config takes name=value, not {entry!r}")
        settings[name] = value
    return settings


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. This handler only replaces the default handler, which would end the process."""
