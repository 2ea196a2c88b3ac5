"""``python -m benchmarks [NAME ...]``: the benchmarks of docs/benchmarks.md, each with its defaults. No name means all.

Each benchmark is a module with its own options: ``python -m benchmarks.rebalances --help``.
"""

from __future__ import annotations

import argparse
import importlib

NAMES = (
    "throughput",
    "columns",
    "first_message",
    "far_away",
    "rebalances",
    "idle",
    "goals",
    "codec",
    "decode",
    "rows",
    "growth",
    "largest_group",
    "scale",
    "churn",
    "commits",
    "watch_page",
    "parallel",
    "embedded",
)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names or NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    for name in names:
        print(f"\n# {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main([])


if __name__ == "__main__":
    main()
