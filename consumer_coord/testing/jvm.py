"""The options of every JVM: small, quick to start, with Kafka's classes from an archive if there is one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from consumer_coord.testing.jars import java_executable


def java_command(libs: Path) -> list[str]:
    """Return ``java`` with the options that all programs on the jars in ``libs`` share; the class path must begin with them.

    Messages of the JVM itself go to standard error, because standard output belongs to the program.
    """
    quick = ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xlog:disable", "-Xlog:all=warning:stderr", "-Xlog:cds*=off"]
    archive = class_archive(libs)
    if archive.exists():
        quick += [f"-XX:SharedArchiveFile={archive}"]
    return [java_executable(), *quick, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]


def class_archive(libs: Path) -> Path:
    """Return the path of the archive of these jars' classes; it is valid for one Java, and until a jar changes.

    The tests of this project make the archive; without it, a JVM starts more slowly.
    """
    java = Path(java_executable()).resolve()
    digest = hashlib.sha256(f"{java} {os.stat(java).st_mtime_ns}".encode())
    for jar in sorted(libs.glob("*.jar")):
        digest.update(f"{jar} {jar.stat().st_mtime_ns}\n".encode())
    return libs.parent / f"classes-{digest.hexdigest()[:16]}.jsa"
