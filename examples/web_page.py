"""The demos' ``--web`` option: run ``consumer-coord watch`` to show each rebalance on a page."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add the ``--web`` option."""
    parser.add_argument(
        "--web",
        nargs="?",
        const="127.0.0.1:8098",
        metavar="HOST:PORT",
        help="serve a page that shows the group (default: at 127.0.0.1:8098), and write it to a file at the end",
    )


@contextlib.contextmanager
def watched(listen: str | None, servers: str, group: str, keep: Path) -> Iterator[None]:
    """Serve the page while the demo runs, and write it to ``keep`` at the end; do nothing if ``listen`` is None."""
    if listen is None:
        yield
        return
    command = [sys.executable, "-m", "consumer_coord", "watch", group, "--bootstrap-server", servers]
    flags = ["--listen", listen, "--interval-ms", "500", "--html", str(keep)]
    watch = subprocess.Popen([*command, *flags], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert watch.stdout is not None
        url = watch.stdout.readline().strip()
        if not url:
            raise SystemExit(watch.wait())
        print(f"the group, live: {url}", flush=True)
        if sys.stdin.isatty():
            input("open it in a browser, then press Enter to begin ")
        yield
    finally:
        watch.terminate()
        watch.communicate(timeout=30)
    print(f"the page of the whole demo: {keep}")
