"""Run the fast tests with every Python from 3.11 on that is on this machine: ``python -m tools.pythons [pytest's arguments]``.

The Pythons are those on the path and those of pyenv, one for each patch version. Each gets an environment of its own in
``.pythons/``. The Python of the present environment is left out, because ``make test`` runs all tests with it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".pythons"
OLDEST = (3, 11)
_FAST = "not kafka and not spark and not slow and not thorough"
#: What pytest runs with each Python if it gets no arguments: the fast tests, then the others of the embedded Kafka.
RUNS: Sequence[Sequence[str]] = (
    ["-m", _FAST, "--hypothesis-profile=quick"],
    ["-m", f"not kafka and not spark and not ({_FAST})", "tests/broker"],
)
_ASK = "import sys, venv, ensurepip; print('.'.join(map(str, sys.version_info[:3])), sys.prefix == sys.base_prefix)"

Version = tuple[int, int, int]


def candidates() -> Iterator[Path]:
    """Find everything that is named like a Python, on the path and in pyenv's directory."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for folder in (*folders, *sorted(pyenv.glob("versions/*/bin"))):
        yield from sorted(file for file in folder.glob("python3*") if re.fullmatch(r"python3(\.\d+)?t?", file.name))


def version_of(python: Path) -> Version | None:
    """Return an interpreter's version, or None if it does not start, makes no environments, or is an environment's own."""
    try:
        ran = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    found = re.match(r"(\d+)\.(\d+)\.(\d+) True", ran.stdout)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def pythons(found: Iterator[Path]) -> Mapping[Version, Path]:
    """Return one interpreter for each version from :data:`OLDEST` on, oldest first; the first one of a version counts."""
    versions: dict[Version, Path] = {}
    for python in found:
        version = version_of(python)
        if version is not None and version >= OLDEST:
            versions.setdefault(version, python)
    return dict(sorted(versions.items()))


def run(python: Path, environment: Path, runs: Sequence[Sequence[str]]) -> int:
    """Make ``environment`` with ``python`` and run pytest in it; return the first exit code that is not 0."""
    environment.parent.mkdir(exist_ok=True)
    made = subprocess.run([python, ROOT / "tools" / "make_env.py", environment], check=False)
    if made.returncode != 0:
        return made.returncode
    for arguments in runs:
        command = [str(environment / "bin" / "python"), "-m", "pytest", "-n", os.environ.get("WORKERS", "5"), *arguments]
        ran = subprocess.run(command, cwd=ROOT, check=False)
        if ran.returncode != 0:
            return ran.returncode
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the tests with each Python, and print which Pythons failed; return 1 if one failed."""
    present = sys.version_info[:3]
    outcomes = {}
    for version, python in pythons(candidates()).items():
        name = ".".join(map(str, version))
        if version == present:
            print(f"Python {name} is the present environment's", flush=True)
            continue
        print(f"Python {name}: {python}", flush=True)
        outcomes[name] = run(python, ENVIRONMENTS / name, [arguments] if arguments else RUNS)
    failed = [name for name, code in outcomes.items() if code != 0]
    if not outcomes:
        print("no other Python from 3.11 on was found on the path or in pyenv's directory")
    print(
        f"failed with Python {', '.join(failed)}" if failed else f"passed with Python {', '.join(outcomes) or 'none'}",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
