"""Rows of kcat, a command line on librdkafka in C."""

from __future__ import annotations

import shutil
import subprocess

from consumer_coord.testing.jars import UnavailableError
from consumer_coord.testing.kafka_cluster import unique_name
from tools.strangers.rows import KCAT, expect, new_topic, row

_DEADLINE_S = 60


def version() -> str:
    """Return the version of kcat and of its librdkafka."""
    shown = _kcat("-V").partition("Version ")[2].split()
    return f"{shown[0]} (librdkafka {shown[shown.index('librdkafka') + 1]})" if "librdkafka" in shown else shown[0]


def _kcat(*arguments: str, stdin: str = "") -> str:
    """Run kcat, and return its standard output; raise AssertionError if it fails."""
    kcat = shutil.which("kcat")
    if kcat is None:
        raise UnavailableError("kcat is not on the path: apt-get install kcat")
    ran = subprocess.run([kcat, *arguments], input=stdin, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    if ran.returncode != 0:
        raise AssertionError(f"kcat {arguments[0]} ended with code {ran.returncode}: {ran.stderr.strip()[-300:]}")
    return ran.stdout


@row(KCAT, "produce, consume, metadata, offsets by time")
def produce_and_consume(servers: str) -> None:
    """Write with keys, read, list topics, and ask for the offset at a time."""
    topic = new_topic(servers, 2)
    for partition in ("0", "1"):
        _kcat("-P", "-b", servers, "-t", topic, "-p", partition, "-K:", stdin=f"k{partition}:a\nk{partition}:b\n")
    read = _kcat("-C", "-b", servers, "-t", topic, "-e", "-q", "-f", "%p %o %k %s\\n")
    expect(sorted(read.splitlines()), ["0 0 k0 a", "0 1 k0 b", "1 0 k1 a", "1 1 k1 b"], "records")
    listed = _kcat("-L", "-b", servers, "-t", topic)
    assert " 3 brokers:" in listed, listed
    assert f'topic "{topic}" with 2 partitions' in listed, listed
    expect(_kcat("-Q", "-b", servers, "-t", f"{topic}:0:-1").split()[-1], "2", "end offset")


@row(KCAT, "consume in a group")
def group(servers: str) -> None:
    """Read as a member of a group, twice: the second time from the committed offsets."""
    topic, name = new_topic(servers, 2), unique_name("kcat-group")
    for values in ("a\nb\n", "c\n"):
        _kcat("-P", "-b", servers, "-t", topic, "-p", "1", stdin=values)
        options = ("-X", "auto.offset.reset=earliest", "-q", "-e", "-f", "%s\\n")
        expect(_kcat("-b", servers, *options, "-G", name, topic), values, "records")


@row(KCAT, "produce in a transaction")
def transaction(servers: str) -> None:
    """Write all lines of the input in one transaction."""
    topic = new_topic(servers, 2)
    transactional = ("-X", f"transactional.id={unique_name('kcat-txn')}")
    _kcat("-P", "-b", servers, "-t", topic, "-p", "0", *transactional, stdin="a\nb\n")
    read = _kcat("-C", "-b", servers, "-t", topic, "-p", "0", "-e", "-q", "-X", "isolation.level=read_committed")
    expect(read, "a\nb\n", "committed records")
    # The marker is a record, too.
    expect(_kcat("-Q", "-b", servers, "-t", f"{topic}:0:-1").split()[-1], "3", "end offset")
