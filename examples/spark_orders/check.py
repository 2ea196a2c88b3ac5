"""Check the result of the demo: ``python -m examples.spark_orders.check DIRECTORY QUERY...`` prints one line of JSON.

``sold.json`` in the directory has the orders that the shop sold: id -> quantity.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from examples.spark_orders.query import session


def check(directory: Path, names: Sequence[str], sold: Mapping[str, int]) -> Mapping[str, Any]:
    """Compare the queries' results with the orders sold; ``wrong`` is None if they are equal."""
    spark = session("check")
    paths = [directory / "result" / name for name in names]
    # Read the output of each query: only finished batches (those in the sink's _spark_metadata).
    frames = [spark.read.parquet(str(path)) for path in paths if (path / "_spark_metadata").exists()]
    result = frames[0]
    for frame in frames[1:]:
        result = result.unionByName(frame)
    result = result.select("order_id", "quantity", "window", "title", "revenue").cache()
    written = result.count()
    once = result.dropDuplicates(["order_id"]).cache()
    found = {row["order_id"]: row["quantity"] for row in once.select("order_id", "quantity").collect()}
    windows = once.select("window").distinct().count()
    best = once.groupBy("title").agg(f.sum("revenue").alias("revenue")).orderBy(f.desc("revenue")).first()
    spark.stop()
    wrong = None
    if found != sold:
        missing, strange = sold.keys() - found.keys(), found.keys() - sold.keys()
        changed = [order for order in sold.keys() & found.keys() if sold[order] != found[order]]
        wrong = f"{len(missing)} orders are missing, {len(strange)} were never sold, {len(changed)} changed their quantity"
    return {
        "orders": len(found),
        "windows": windows,
        "again": written - len(found),
        "best": best["title"] if best else "nothing",
        "revenue": best["revenue"] if best else 0.0,
        "wrong": wrong,
    }


def main() -> None:
    """Check the result, and print it."""
    directory, *names = sys.argv[1:]
    sold = json.loads(Path(directory, "sold.json").read_text())
    print(json.dumps(check(Path(directory), names, sold)))


if __name__ == "__main__":
    main()
