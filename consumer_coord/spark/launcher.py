"""A Python for Spark's processes that starts in a third of the time.

Spark puts ``pyspark.zip`` first on the path of each Python process it starts.  That archive holds no compiled modules, so each
process compiles a second's worth of PySpark again, and on a busy machine a planner misses Spark's ten seconds to connect
back.  It puts one of its jars there, too, of which Python reads the whole directory.  Where PySpark is installed with pip,
the installed package does as well.
"""

from __future__ import annotations

import sys
from pathlib import Path

_SCRIPT = """#!/bin/sh
kept=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
        *) kept=${{kept:+$kept:}}$entry ;;
    esac
done
case "$*" in
    # A planner computes nothing, and numpy would start a thread for each core that waits busily for work.
    *streaming_source_runner*) export OPENBLAS_NUM_THREADS="${{OPENBLAS_NUM_THREADS:-1}}" ;;
esac
PYTHONPATH=$kept exec "{python}" "$@"
"""


def fast_python(directory: str | Path) -> str:
    """Write a launcher of this very Python into ``directory``; its path is for ``PYSPARK_PYTHON``."""
    launcher = Path(directory) / "python"
    launcher.write_text(_SCRIPT.format(python=sys.executable))
    launcher.chmod(0o755)
    return str(launcher)
