"""How every JVM of the tests is started: a small one that begins quickly, and takes Kafka's classes from an archive."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tests.support.kafka_jars import java_executable


def java_command(libs: Path) -> list[str]:
    """``java`` with the options that all programs on the jars in ``libs`` share; the class path must begin with them.

    A program's standard output is its own: what the JVM has to say about itself goes to standard error.
    """
    quick = ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xlog:disable", "-Xlog:all=warning:stderr", "-Xlog:cds*=off"]
    archive = class_archive(libs)
    if archive.exists():
        quick += [f"-XX:SharedArchiveFile={archive}"]
    return [java_executable(), *quick, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]


def class_archive(libs: Path) -> Path:
    """Where the archive of these jars' classes is, or belongs: it is good for one Java, and for jars that were not touched.

    See :func:`tests.support.class_archive.ensure_class_archive`.
    """
    java = Path(java_executable()).resolve()
    digest = hashlib.sha256(f"{java} {os.stat(java).st_mtime_ns}".encode())
    for jar in sorted(libs.glob("*.jar")):
        digest.update(f"{jar} {jar.stat().st_mtime_ns}\n".encode())
    return libs.parent / f"classes-{digest.hexdigest()[:16]}.jsa"
