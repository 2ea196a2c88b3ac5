"""The exec probe: ``python -m consumer_coord.health FILE`` exits with 0 if the consumer that writes the file is healthy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from consumer_coord.health.file import read_health


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the consumer is healthy (with ``--live``: if no restart is needed), otherwise 1; print each problem."""
    parser = argparse.ArgumentParser(prog="python -m consumer_coord.health", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="the file of consumer_coord.health.file.HealthFile")
    parser.add_argument("--live", action="store_true", help="fail only if a restart of the process is needed")
    given = parser.parse_args(arguments)
    health = read_health(given.file)
    for problem in health.get("problems", ()):
        print(problem)
    return 0 if health["live" if given.live else "healthy"] else 1


if __name__ == "__main__":
    sys.exit(main())
