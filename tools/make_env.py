"""Make the project's virtual environment from the lock file: ``make_env.py DIRECTORY``, run by any Python >= 3.11.

The environment is made once for each state of the lock file and of ``pyproject.toml``; the next run repairs an environment
after an interruption, and simultaneous runs wait for each other. Only the standard library is used here.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
#: pip compiles this file in place if there is a C compiler.
KERNEL = ROOT / "consumer_coord" / "columns" / "_kernel.c"
#: The kernel's source files.
SOURCES = sorted(KERNEL.parent.glob("_*.[ch]"))


def main() -> int:
    """Make the environment if there is none for the present state; print errors in one line on standard error."""
    directory = Path(sys.argv[1]).absolute()
    stamp = directory / "made-from.sha256"
    wanted = state(directory)
    with directory.with_name(f"{directory.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return 0
        print(f"making {directory.name} from {LOCK.name}", flush=True)
        problem = make(directory, lock=held.fileno(), had_been_made=stamp.is_file())
        if problem is not None:
            print(f"make env: {problem}", file=sys.stderr)
            return 1
        unfinished = stamp.with_suffix(".partial")
        unfinished.write_text(wanted)
        unfinished.rename(stamp)
    return 0


def state(directory: Path) -> str:
    """Return a hash of everything that the environment depends on. This includes its path, because it cannot be moved."""
    digest = hashlib.sha256(str(directory).encode())
    for file in (LOCK, ROOT / "pyproject.toml", ROOT / "setup.py", *SOURCES):
        digest.update(b"\0" + file.read_bytes())
    # A new compiler changes the hash, so that the kernel is compiled again.
    digest.update(str(shutil.which("cc")).encode())
    return digest.hexdigest()


def make(directory: Path, *, lock: int, had_been_made: bool) -> str | None:
    """Install everything; return the problem in one line, or None.

    pip inherits the lock, so if this process is killed, the next run waits for the remaining pip.
    """
    python = directory / "bin" / "python"
    # A complete environment is updated in place, because another run may be using it.
    if not (had_been_made and works(python)):
        shutil.rmtree(directory, ignore_errors=True)
        try:
            venv.create(directory, with_pip=True)
        except subprocess.CalledProcessError:
            return f"{sys.executable} cannot make virtual environments (on Debian: install python3-venv)"
    log = directory / "pip.log"
    # Environments of other Pythons share a kernel that is up to date. An old one must go, because compiling may fail.
    changed = max(source.stat().st_mtime for source in SOURCES)
    for kernel in KERNEL.parent.glob("_kernel*.so"):
        if kernel.stat().st_mtime < changed:
            kernel.unlink()
    install = installer(python)
    for arguments in (
        ["--require-hashes", "--requirement", str(LOCK)],
        ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)],
    ):
        with log.open("w") as output:
            ran = subprocess.run([*install, *arguments], stdout=output, stderr=subprocess.STDOUT, pass_fds=[lock], check=False)
        if ran.returncode != 0:
            lines = log.read_text(errors="replace").splitlines()
            errors = [line for line in lines if line.lower().startswith(("error", "  × "))] or lines or ["no reason given"]
            return f"pip failed (is there a network?): {errors[0].strip()} (complete log: {log})"
    if not list(KERNEL.parent.glob("_kernel*.so")):
        print("the kernel of consumer_coord.columns was not compiled (no C compiler or no Python.h): decoding will be slower")
    # Compile the files like pip. Files that are not valid in this version of Python stay uncompiled.
    subprocess.run([str(python), "-m", "compileall", "-qq", "-j", "0", str(directory / "lib")], check=False)
    return None


def installer(python: Path) -> list[str]:
    """Return the command that installs packages: uv, which takes a third of pip's time, or pip if uv is not to be had.

    uv unpacks PySpark again for each environment and keeps every copy, 2.3 GB each, so it gets a cache for this run only.
    """
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-compile"]
    # A requirement with its hashes is one line, continued by backslashes.
    locked = LOCK.read_text().replace("\\\n", "").splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as only_uv:
        only_uv.writelines(line for line in locked if line.startswith("uv=="))
        only_uv.flush()
        ran = subprocess.run([*pip, "--require-hashes", "--requirement", only_uv.name], capture_output=True, check=False)
    if ran.returncode != 0:
        return pip
    return [str(python), "-m", "uv", "--quiet", "--no-cache", "pip", "install", "--python", str(python)]


def works(python: Path) -> bool:
    """Return whether an environment's Python starts. The Python from which the environment was made may no longer exist."""
    try:
        return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
