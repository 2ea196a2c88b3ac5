"""Check the packages of Spark's Python processes early, so that an error names the remedy and not only a module."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: Module -> the package that pip installs.
MODULES = {
    "attrs": "attrs",
    "cramjam": "cramjam",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "pyspark": "pyspark",
}


def check(modules: Mapping[str, str]) -> None:
    """Raise ImportError that names this process's Python, which usually differs from the driver's."""
    missing = [package for module, package in modules.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(
            f"kafka_group needs {', '.join(missing)}, which the Python of this process, {sys.executable}, does not have."
            " PYSPARK_PYTHON (or spark.pyspark.python) selects the Python of Spark's processes: set it to the driver's Python"
            " on every machine, or run pip install consumer-coord[spark] for that Python"
        )


#: Run by the Python of Spark's processes: prints its version, and the modules that it does not find.
_PROBE = (
    "import importlib.util, sys; print(*sys.version_info[:2], sep='.');"
    " print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])"
)
_PROBE_S = 60


def check_python(executable: str) -> None:
    """Raise ImportError if the Python of Spark's processes, as installed on this machine, cannot run the source.

    ``executable``: the value of ``PYSPARK_PYTHON`` or ``spark.pyspark.python``. This function cannot check a Python that only
    the executors have. Processes of that Python report the error when they start.
    """
    found = shutil.which(executable)
    if found is None or Path(found) == Path(sys.executable):
        return
    # Spark's own archive provides PySpark to its processes.
    modules = [name for name in MODULES if name != "pyspark"]
    command = [found, "-c", _PROBE, "consumer_coord", *modules]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PROBE_S)
    remedy = "set PYSPARK_PYTHON (or spark.pyspark.python) to the driver's Python before the session is created"
    if asked.returncode != 0:
        reason = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ImportError(f"Spark's processes would run {found}, which does not start: {reason}; {remedy}")
    version, missing = [*asked.stdout.splitlines(), "", ""][:2]
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if missing:
        names = ", ".join({"consumer_coord": "consumer-coord", **MODULES}[name] for name in missing.split())
        raise ImportError(
            f"Spark's processes would run {found}, which does not have {names}; {remedy}, or run pip install"
            " consumer-coord[spark] for that Python"
        )
    if version != ours:
        raise ImportError(f"Spark's processes would run {found}, Python {version}, but the driver runs Python {ours}; {remedy}")


check(MODULES)
