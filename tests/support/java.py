"""Java programs of the tests (``tests/support/programs/java``), compiled against Kafka's jars and cached by their hash."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from consumer_coord.testing.jars import KAFKA, UnavailableError, cache_directory, exclusive, java_executable
from consumer_coord.testing.jvm import java_command
from tests.support.line_process import LineProcess

SOURCES = Path(__file__).parent / "programs" / "java"
_COMPILE_DEADLINE_S = 300


@attrs.frozen
class JavaProgram:
    """A program in ``programs/java``: ``main`` is its class, ``sources`` are its files (by default ``main.java``).

    ``libs``: the directory with Kafka's jars.  The first use compiles the program into the cache outside the tree.
    """

    libs: Path
    main: str
    sources: Sequence[str] = ()
    jvm_arguments: Sequence[str] = ("-Xmx256m", "-XX:TieredStopAtLevel=1")

    def start(self, *arguments: str, also: Path | None = None) -> LineProcess:
        """Start the program, to exchange lines with it; ``also`` is a directory with more jars."""
        return LineProcess(self.command(*arguments, also=also), name=self.main)

    def run(self, *arguments: str, stdin: str = "", deadline_s: float = 120) -> str:
        """Run the program to its end and return its standard output; raise AssertionError for an exit code other than 0."""
        ran = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, timeout=deadline_s, check=False
        )
        if ran.returncode != 0:
            raise AssertionError(f"{self.main} ended with code {ran.returncode}:\n{ran.stderr[-4000:]}")
        return ran.stdout

    def command(self, *arguments: str, also: Path | None = None) -> list[str]:
        """Return the command that runs the program."""
        class_path = f"{self.libs}/*:{self.compiled()}" + (f":{also}/*" if also is not None else "")
        return [*java_command(self.libs), *self.jvm_arguments, "-cp", class_path, self.main, *arguments]

    def compiled(self) -> Path:
        """Return the directory with the classes of the program, compiled if necessary."""
        files = [SOURCES / name for name in self.sources or (f"{self.main}.java",)]
        digest = hashlib.sha256(KAFKA.hash_list.read_bytes())
        for file in files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        classes = cache_directory() / "java" / f"{self.main}-{digest.hexdigest()[:16]}"
        if classes.is_dir():
            return classes
        with exclusive(cache_directory() / "java.lock"):
            if not classes.is_dir():
                self._compile(files, classes)
        return classes

    def _compile(self, files: Sequence[Path], classes: Path) -> None:
        classes.parent.mkdir(exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix="partial-", dir=classes.parent))
        try:
            # Use the compiler in the Java that also runs the program: a javac on the path may belong to another Java.
            command = [java_executable(), "-Xmx512m", "--module", "jdk.compiler/com.sun.tools.javac.Main"]
            command += ["--release", "17", "-Xlint:all,-processing,-classfile,-options,-path", "-cp"]
            command += [":".join(map(str, sorted(self.libs.glob("*.jar")))), "-d", str(staging), *map(str, files)]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_DEADLINE_S, check=False)
            if "jdk.compiler not found" in ran.stdout + ran.stderr:
                raise UnavailableError("the Java that was found has no compiler: a JDK >= 17 is needed")
            if ran.returncode != 0:
                raise AssertionError(f"{self.main} does not compile:\n{ran.stderr}")
            staging.rename(classes)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@attrs.frozen
class ToolJars:
    """Kafka's jars, and the jars of its command line tools."""

    libs: Path
    tools: Path


def run_kafka_tool(
    jars: ToolJars, main: str, *arguments: str, stdin: str | None = None, deadline_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's own command line tools to its end; ``main`` is its class below ``org.apache.kafka.tools``."""
    jvm = [*java_command(jars.libs), "-Xmx128m", "-XX:TieredStopAtLevel=1"]
    jvm += ["-cp", f"{jars.libs}/*:{jars.tools}/*", f"org.apache.kafka.tools.{main}"]
    command = [*jvm, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=deadline_s, check=False)
