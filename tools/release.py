"""Build the release files after checking that they are ready: ``make release``.

Checks: the version is the same everywhere, the changelog has a section and a date for it, the addresses that a package index
shows are set, and no change is uncommitted.
"""

from __future__ import annotations

import datetime
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
#: The links that a package index shows next to the description.
URLS = ("Homepage", "Documentation", "Repository", "Issues", "Changelog")
#: Reserved names, which lead nowhere (RFC 2606, RFC 6761).
RESERVED = ("example", "invalid", "localhost", "test", "example.com", "example.net", "example.org")


def missing(project: dict[str, Any], module_version: str, changelog: str) -> Iterator[str]:
    """Yield the problems that prevent a release, one per line. ``project`` is the table ``project`` of pyproject.toml."""
    version = project["version"]
    if module_version != version:
        yield f"consumer_coord/version.py says {module_version}, but pyproject.toml says {version}"
    heading = re.search(rf"^## \[{re.escape(version)}\] - (\S+)$", changelog, re.MULTILINE)
    if heading is None:
        yield f"CHANGELOG.md has no line '## [{version}] - YYYY-MM-DD'"
    else:
        try:
            datetime.date.fromisoformat(heading[1])
        except ValueError:
            yield f"CHANGELOG.md: {heading[1]} is not a date"
    urls = project.get("urls", {})
    for name in URLS:
        address = urlsplit(urls.get(name, ""))
        host = address.hostname or ""
        if address.scheme != "https" or not host:
            yield f"pyproject.toml has no https address for {name} in [project.urls]"
        elif any(host == one or host.endswith("." + one) for one in RESERVED):
            yield f"pyproject.toml: {host} is a reserved name ({name})"


def absolute(readme: str, repository: str, version: str) -> str:
    """Return the README with absolute links to the files and images of the tag ``v{version}`` in the repository."""
    base = repository.rstrip("/")
    relative = r"(?!https:|mailto:|#)"
    readme = re.sub(rf'\b(src|srcset)="{relative}([^"]+)"', rf'\1="{base}/raw/v{version}/\2"', readme)
    readme = re.sub(rf"(!\[[^\]]*\])\({relative}([^)]+)\)", rf"\1({base}/raw/v{version}/\2)", readme)
    return re.sub(rf"\]\({relative}([^)]+)\)", rf"]({base}/blob/v{version}/\1)", readme)


def build(urls: Mapping[str, str], version: str) -> int:
    """Build dist/ from a copy of the commit in which the README has absolute links; return the exit code of the build."""
    archive = subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as copy:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(copy, filter="data")
        readme = Path(copy) / "README.md"
        readme.write_text(absolute(readme.read_text(), urls["Repository"], version))
        return subprocess.run([sys.executable, "-m", "build", "--outdir", str(ROOT / "dist"), copy], check=False).returncode


def main() -> int:
    """Check, and then build the source distribution and the wheel into dist/."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sys.path.insert(0, str(ROOT))
    from consumer_coord.version import __version__

    found = list(missing(project, __version__, (ROOT / "CHANGELOG.md").read_text()))
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if changed.stdout:
        found.append("there are changes that are not committed")
    for line in found:
        print(f"not ready: {line}", file=sys.stderr)
    if found:
        return 1
    return build(project["urls"], __version__)


if __name__ == "__main__":
    sys.exit(main())
