"""Spark's daemon, which forks the executors' Python workers, with the modules that reading needs.

A worker of ``pyspark.daemon`` imports PySpark and this package before its first task. A worker of this daemon has them already,
and shares their memory with the other workers. The launcher starts this module instead of ``pyspark.daemon``. Without the
launcher, set ``spark.python.daemon.module=consumer_coord.spark.daemon``.
"""

from __future__ import annotations

import gc
import importlib

from pyspark.daemon import manager

#: None of these modules starts a thread that a forked worker would miss.
_LOADED = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "consumer_coord.spark.source",
    "consumer_coord.spark.reader",
)


def main() -> None:
    """Import the modules, and run the daemon until Spark ends it."""
    for module in _LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
