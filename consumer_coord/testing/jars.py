"""Apache Kafka's jars, fetched once per machine into a cache outside the tree.

PySpark ships Apache Ivy, and Ivy, or else Maven, fetches a whole broker. So a test run needs Java, and a network only the first
time. Every jar is pinned by its SHA-256 (``hashes/*.sha256`` next to its set), the cache entry appears by one rename, and a
lock file keeps concurrent runs from fetching twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import attrs

KAFKA_VERSION = "4.4.0"
_FETCH_DEADLINE_S = 900
_JAVA_NEEDED = 17


class UnavailableError(Exception):
    """Raised if something outside the project is missing (Java, the network); the message is one line with the remedy."""


@attrs.frozen
class Coordinate:
    """A module of a Maven repository; ``transitive``: fetch its dependencies, too."""

    organisation: str
    name: str
    revision: str
    transitive: bool = True


@attrs.frozen
class JarSet:
    """Jars that are fetched and verified together; ``name`` names the cache entry and the list of hashes."""

    name: str
    coordinates: Sequence[Coordinate]
    #: The directory of the list of hashes.
    hashes: Path = Path(__file__).parent / "hashes"

    @property
    def version(self) -> str:
        """The version of the first module."""
        return self.coordinates[0].revision

    @property
    def hash_list(self) -> Path:
        """The file with the expected SHA-256 sums, in the format of ``sha256sum``."""
        return self.hashes / f"{self.name}.sha256"


#: A whole broker with its tools and the Java clients.  Kafka logs through slf4j, for which its POM names no back end.
KAFKA = JarSet(
    f"kafka-{KAFKA_VERSION}",
    (
        Coordinate("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
)

#: The version before `KAFKA`: for the matrix of brokers, and for rolling upgrades.
KAFKA_4_3 = JarSet(
    "kafka-4.3.1",
    (
        Coordinate("org.apache.kafka", "kafka_2.13", "4.3.1"),
        Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
)

#: The last version before the consumer protocol (KIP-848) was on by default; see ``older_brokers``.
KAFKA_3_9 = JarSet(
    "kafka-3.9.1",
    (
        Coordinate("org.apache.kafka", "kafka_2.13", "3.9.1"),
        Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
)

#: The brokers that run without ZooKeeper.
BROKERS = (KAFKA, KAFKA_4_3, KAFKA_3_9)


def cache_directory() -> Path:
    """Return the directory of fetched and compiled files: ``CONSUMER_COORD_CACHE``, by default ``~/.cache/consumer-coord``."""
    configured = os.environ.get("CONSUMER_COORD_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "consumer-coord"


def java_executable() -> str:
    """Return the ``java`` of ``JAVA_HOME`` or ``PATH``; raise `UnavailableError` if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java is on the PATH"
        raise UnavailableError(f"Java >= {_JAVA_NEEDED} is needed for a real Kafka broker, and {where}")
    shown = _shown_version(java)
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version.group(1)) < _JAVA_NEEDED:
        line = shown.splitlines()[0] if shown else "no version"
        raise UnavailableError(f"Java >= {_JAVA_NEEDED} is needed for a real Kafka broker; {java} says: {line}")
    return java


@functools.cache
def _shown_version(java: str) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=180, check=False).stderr


def ensure_jars(jars: JarSet = KAFKA) -> Path:
    """Return the directory with exactly the jars of ``jars``, fetched if necessary; raise `UnavailableError` if that fails."""
    libs = cache_directory() / jars.name / "libs"
    expected = _read_hashes(jars.hash_list)
    if _is_complete(libs, expected):
        return libs
    java = java_executable()
    with exclusive(cache_directory() / f"{jars.name}.lock"):
        if not _is_complete(libs, expected):  # a concurrent run may have fetched them while this one waited for the lock
            _fetch(java, jars, libs, expected)
    return libs


def fetch_unpinned(name: str, coordinates: Sequence[Coordinate]) -> Path:
    """Return the directory with jars without pinned hashes, for runs by hand; raise `UnavailableError` if they are missing."""
    entry = cache_directory() / f"by-hand-{name}"
    with exclusive(entry.with_name(f"{entry.name}.lock")):
        if not entry.exists():
            staging = Path(tempfile.mkdtemp(prefix=f"{entry.name}.partial-", dir=cache_directory()))
            try:
                _run_fetcher(java_executable(), JarSet(name, coordinates), staging)
                _keep_only_libs(staging)
                staging.rename(entry)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return entry / "libs"


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold a lock file; the kernel releases the lock when the process ends for any reason."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _fetch(java: str, jars: JarSet, libs: Path, expected: Mapping[str, str]) -> None:
    staging = Path(tempfile.mkdtemp(prefix=f"{jars.name}.partial-", dir=cache_directory()))
    try:
        _run_fetcher(java, jars, staging)
        problem = mismatch(staging / "libs", expected)
        if problem is not None:
            raise UnavailableError(f"the jars fetched for {jars.name} are not the pinned ones: {problem}")
        entry = libs.parent
        if entry.exists():  # incomplete or damaged: a complete entry is never fetched again
            shutil.rmtree(entry)
        _keep_only_libs(staging)
        staging.rename(entry)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _keep_only_libs(staging: Path) -> None:
    for other in staging.iterdir():
        if other.name != "libs":
            shutil.rmtree(other) if other.is_dir() else other.unlink()


def _run_fetcher(java: str, jars: JarSet, staging: Path) -> None:
    """Fetch jars into ``staging/libs``, with the Ivy of PySpark or with Maven, whichever is there."""
    ivy, maven = _ivy_jar(), shutil.which("mvn")
    if ivy is not None:
        (staging / "ivy.xml").write_text(_ivy_descriptor(jars))
        command = [java, "-Xmx256m", "-jar", str(ivy), "-ivy", f"{staging}/ivy.xml", "-cache", f"{staging}/cache"]
        command += ["-confs", "default", "-types", "jar", "bundle", "-retrieve", f"{staging}/libs/[artifact]-[revision].[ext]"]
    elif maven is not None:
        (staging / "pom.xml").write_text(_maven_project(jars))
        command = [maven, "-q", "-B", "-f", f"{staging}/pom.xml", "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={staging}/libs", "-DincludeScope=runtime"]
    else:
        raise UnavailableError(
            "nothing here fetches Kafka's jars: install PySpark (consumer-coord[spark]), which has Ivy, or Maven; or unpack"
            " Apache Kafka and pass --kafka-home DIR"
        )
    print(f"fetching {jars.name} (once per machine) into {cache_directory()}", file=sys.stderr, flush=True)
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as expired:
        raise UnavailableError(f"fetching {jars.name} took more than {_FETCH_DEADLINE_S} s: no network?") from expired
    if run.returncode != 0:
        problems = [line.strip() for line in run.stdout.splitlines() if "UNRESOLVED" in line or "ERROR" in line]
        reason = problems[0] if problems else (run.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UnavailableError(f"{jars.name} could not be fetched (is there a network?): {reason}")


def _ivy_jar() -> Path | None:
    """Return the Ivy of the installed PySpark."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        return None
    found = sorted((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))
    return found[-1] if found else None


def _maven_project(jars: JarSet) -> str:
    without = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{escape(one.organisation)}</groupId><artifactId>{escape(one.name)}</artifactId>"
        f"<version>{escape(one.revision)}</version>{'' if one.transitive else without}</dependency>"
        for one in jars.coordinates
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>consumer-coord</groupId>"
        f"<artifactId>jars</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
    )


def _ivy_descriptor(jars: JarSet) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(one.organisation)} name={quoteattr(one.name)} rev={quoteattr(one.revision)}"
        f' conf="default->default" transitive="{str(one.transitive).lower()}"/>'
        for one in jars.coordinates
    )
    return (
        '<ivy-module version="2.0"><info organisation="consumer-coord" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _read_hashes(path: Path) -> Mapping[str, str]:
    hashes = {}
    for line in path.read_text().splitlines():
        digest, name = line.split(maxsplit=1)
        hashes[name] = digest
    return hashes


def _is_complete(libs: Path, expected: Mapping[str, str]) -> bool:
    return libs.is_dir() and mismatch(libs, expected) is None


def mismatch(libs: Path, expected: Mapping[str, str]) -> str | None:
    """Return the first difference between a directory and the expected hashes, or None."""
    present = {path.name for path in libs.glob("*.jar")} if libs.is_dir() else set()
    for name in sorted(present ^ expected.keys()):
        return f"{name} is {'missing' if name in expected else 'not expected'}"
    for name, digest in expected.items():
        with (libs / name).open("rb") as jar:
            found = hashlib.file_digest(jar, "sha256").hexdigest()
        if found != digest:
            return f"{name} has SHA-256 {found}, expected {digest}"
    return None
