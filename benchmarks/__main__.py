"""``python -m benchmarks [NAME ...] [--again]``: the benchmarks of docs/benchmarks.md and the notebook. No name means all.

What the pages show is kept in ``measured/``, and ``python -m benchmarks.published`` renews the pages from it. A run that was
interrupted continues; ``--again`` measures everything anew. Each benchmark is a module with its own options:
``python -m benchmarks.rebalances --help``.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence

#: The runs of each benchmark.
RUNS: Mapping[str, Sequence[str]] = {
    "throughput": ["--rounds 5 --records 400000"],
    "columns": [""],
    "first_message": ["--rounds 7"],
    "far_away": [""],
    "rebalances": ["--rounds 4 --members 50", "--rounds 8 --members 50 --across --no-death --few"],
    "idle": ["--seconds 10 --few", "--seconds 10 --few --members 500 --rounds 1"],
    "goals": ["--rounds 7"],
    "commits": ["--rounds 5"],
    "parallel": ["--rounds 3"],
    "spark": ["--only drain --only ranges --rounds 7"],
    "codec": [""],
    "decode": [""],
    "rows": [""],
    "growth": [""],
    "largest_group": [""],
    "scale": [""],
    "churn": [""],
    "watch_page": [""],
    "embedded": [""],
}
#: Benchmarks that keep their results.
KEPT = ("throughput", "columns", "first_message", "far_away", "rebalances", "idle", "goals", "commits", "parallel")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    parser.add_argument("--again", action="store_true", help="measure again what measured/ has already")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in RUNS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(RUNS)}")
    for name in options.names or RUNS:
        module = importlib.import_module("benchmarks.spark.__main__" if name == "spark" else f"benchmarks.{name}")
        for run in RUNS[name]:
            print(f"\n# {name} {run}", flush=True)
            module.main([*run.split(), *(["--again"] if options.again and name in KEPT else [])])


if __name__ == "__main__":
    main()
