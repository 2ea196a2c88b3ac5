"""What a Python process of Spark must have installed, checked before anything fails with a bare module's name."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping

#: module -> the package that pip knows
MODULES = {"attrs": "attrs", "confluent_kafka": "confluent-kafka", "numpy": "numpy", "pyarrow": "pyarrow", "pyspark": "pyspark"}


def check(modules: Mapping[str, str]) -> None:
    """Raises ImportError, which names this process's Python: as a rule Spark runs another one than the driver's."""
    missing = [package for module, package in modules.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(
            f"kafka_group needs {', '.join(missing)}, which the Python of this process, {sys.executable}, does not have."
            " Spark's processes run the Python that PYSPARK_PYTHON (or spark.pyspark.python) names: let it name the driver's"
            " on every machine, or pip install consumer-coord[spark] there"
        )


check(MODULES)
