"""The archive of Kafka's classes that the JVMs of the tests share, made once per machine.

A broker loads seven thousand classes when it starts. Parsing and checking them takes half of the processor time of the start.
A JVM that finds the classes in an archive maps them instead (class data sharing, JEP 310 and 350).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from consumer_coord.testing.jars import exclusive
from consumer_coord.testing.jvm import class_archive, java_command
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.members import Members
from tests.support.producer import Producer

_DEADLINE_S = 300


def ensure_class_archive(libs: Path) -> None:
    """Make the archive for the jars in ``libs`` (all of Kafka 4 with its clients), unless it exists.

    If that fails, for instance in a Java without class data sharing, print a line to standard error; JVMs start without it.
    """
    archive = class_archive(libs)
    if archive.exists():
        return
    with exclusive(archive.with_suffix(".lock")):
        if not archive.exists():  # a concurrent run may have made it while this one waited for the lock
            try:
                _make(libs, archive)
            except (subprocess.SubprocessError, OSError) as error:
                print(f"without an archive of Kafka's classes JVMs start slower: {error}", file=sys.stderr, flush=True)


def _make(libs: Path, archive: Path) -> None:
    print(f"archiving the classes of {libs.parent.name} (once per machine)", file=sys.stderr, flush=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{archive.name}.partial-", dir=archive.parent))
    try:
        # In a separate process, in which every JVM writes the list of its loaded classes (%p is the JVM's process id).
        environment = {**os.environ, "JDK_JAVA_OPTIONS": f"-XX:DumpLoadedClassList={staging}/%p.classes"}
        command = [sys.executable, "-m", "tests.support.class_archive", str(libs)]
        subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, timeout=_DEADLINE_S, check=True)
        names = {line for listed in staging.glob("*.classes") for line in listed.read_text().splitlines()}
        classes = staging / "all"
        classes.write_text("".join(f"{name}\n" for name in sorted(names) if not name.startswith("#")))
        made = staging / archive.name
        command = [*java_command(libs), "-Xmx512m", "-Xshare:dump", f"-XX:SharedClassListFile={classes}"]
        command += [f"-XX:SharedArchiveFile={made}", "-cp", f"{libs}/*"]
        subprocess.run(command, capture_output=True, timeout=_DEADLINE_S, check=True)
        for old in archive.parent.glob("classes-*.jsa"):
            old.unlink()
        made.rename(archive)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _use(libs: Path) -> None:
    """Start a broker, and read and commit with a Java consumer of each protocol."""
    with RealKafka(libs) as kafka, contextlib.closing(Members(lambda: libs, lambda: kafka.bootstrap_servers)) as members:
        topic = kafka.new_topic(1)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce(topic, b"value")
        producer.flush()
        for protocol in ("classic", "consumer"):
            member = members.start("java", f"group-{protocol}", [topic], config={"group.protocol": protocol})
            member.wait_for_total(1)
            member.command("commit")
            member.leave()
        kafka.stop()


if __name__ == "__main__":
    _use(Path(sys.argv[1]))
