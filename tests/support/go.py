"""Go programs of the tests (``tests/support/programs/go``), built once and cached by the hash of their sources."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from consumer_coord.testing.jars import UnavailableError, cache_directory, exclusive

SOURCES = Path(__file__).parent / "programs" / "go"
_BUILD_DEADLINE_S = 600


def go_program(name: str) -> Path:
    """Return the executable of the program ``name``, built if necessary; raise `UnavailableError` without Go or a network."""
    go = shutil.which("go")
    if go is None:
        raise UnavailableError("Go is needed for members of franz-go, and there is none on the path")
    source = SOURCES / name
    digest = hashlib.sha256()
    for file in sorted(source.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    binary = cache_directory() / "go" / f"{name}-{digest.hexdigest()[:16]}"
    with exclusive(cache_directory() / "go.lock"):
        if not binary.exists():
            _build(go, source, binary)
    return binary


def _build(go: str, source: Path, binary: Path) -> None:
    binary.parent.mkdir(exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix="partial-", dir=binary.parent))
    try:
        command = [go, "build", "-mod=readonly", "-o", str(staging / "program"), "."]
        try:
            built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=_BUILD_DEADLINE_S, check=False)
        except subprocess.TimeoutExpired as expired:
            raise UnavailableError(f"building {source.name} took more than {_BUILD_DEADLINE_S} s: no network?") from expired
        if built.returncode != 0:
            raise UnavailableError(f"{source.name} could not be built: {built.stderr.strip()[-300:]}")
        (staging / "program").rename(binary)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def module_version(name: str, module: str) -> str:
    """Return the version of a module that the program ``name`` uses, from its ``go.mod``."""
    for line in (SOURCES / name / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if words[:1] == [module]:
            return words[1].removeprefix("v")
    raise ValueError(f"{name}/go.mod does not name {module}")
