"""A cluster on disk: its topics, and their logs in Kafka's format.

    cluster.json                  cluster id, topics, producer ids; replaced as a whole
    orders-0/00000000000000000000.log   record batches, as Kafka writes them; a new file every log.segment.bytes
    orders-0/log-start-offset     the log's start offset; exists after the first deletion
    .lock                         held while a process uses the directory

Every batch is written to the operating system before its append is acknowledged. So a kill of the process loses no acknowledged
records, but a crash of the machine may lose some. A kill can only leave an incomplete last batch, which is removed at the next
start. Any other damage is reported with the name of its file, and the file stays unchanged.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from consumer_coord.broker import record_batch
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.record_batch import BatchHeader
from consumer_coord.broker.topic_settings import LogSettings
from consumer_coord.broker.topics import Topic
from consumer_coord.errors import ConfigurationError, MalformedMessageError, UnsupportedVersionError
from consumer_coord.log_text import get_logger
from consumer_coord.wire.crc32c import IS_NATIVE

logger: Final = get_logger(__name__)

_FORMAT = 1
_CLUSTER = "cluster.json"
_LOCK = ".lock"
_START = "log-start-offset"
_SEGMENT = re.compile(r"(\d{20})\.log")
_MAX_OPEN_FILES = 256


class DataDirectoryError(ConfigurationError):
    """Raised if a ``data_dir`` cannot be used; the message names the reason, and the directory is unchanged."""


@attrs.frozen
class StoredTopic:
    """A topic as stored in ``cluster.json``."""

    name: str
    id: uuid.UUID = attrs.field(converter=uuid.UUID)
    partitions: int = attrs.field(converter=int)
    replication_factor: int = attrs.field(converter=int)
    configs: Mapping[str, str]
    internal: bool


@attrs.frozen
class StoredCluster:
    """The contents of ``cluster.json``. ``deleting`` has the directories of deleted topics that are not removed yet."""

    cluster_id: str
    next_producer_id: int = attrs.field(converter=int)
    topics: tuple[StoredTopic, ...]
    deleting: tuple[str, ...]

    def to_json(self) -> str:
        """Return the JSON text."""
        return json.dumps({"format": _FORMAT, **attrs.asdict(self)}, indent=1, default=str)

    @classmethod
    def from_json(cls, text: str) -> StoredCluster:
        """Parse the JSON text.

        Raise :class:`ValueError` (or a subclass), :class:`KeyError` or :class:`TypeError` if the text is invalid.
        """
        data: dict[str, Any] = json.loads(text)
        if (found := data.pop("format")) != _FORMAT:
            raise ValueError(f"the format is {found}, but this version reads only {_FORMAT}")
        topics = tuple(StoredTopic(**topic) for topic in data.pop("topics"))
        return cls(topics=topics, deleting=tuple(data.pop("deleting")), **data)


class DataDirectory:
    """An open, locked ``data_dir``."""

    def __init__(self, path: Path, config: BrokerConfig, lock: int, stored: StoredCluster | None) -> None:
        self.stored = stored
        self.path = path
        self._config = config
        self._lock = lock
        self._files = OpenFiles()

    @classmethod
    def open(cls, path: Path, config: BrokerConfig) -> DataDirectory:
        """Open or create a directory.

        Raise :class:`DataDirectoryError` if the directory is in use, was not made by this class, or is damaged.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataDirectoryError(f"data_dir {path} cannot be used: {error}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DataDirectoryError(f"data_dir {path} is in use by another process") from error
            return cls(path, config, lock, _check(path))
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Close all files and release the lock; idempotent."""
        self._files.close()
        if self._lock != -1:
            os.close(self._lock)
            self._lock = -1

    def save(self, cluster: StoredCluster) -> None:
        """Replace ``cluster.json``, then remove the directories of deleted topics."""
        _replace(self.path / _CLUSTER, cluster.to_json())
        if cluster.deleting:
            for name in cluster.deleting:
                self._files.forget(self.path / name)
                shutil.rmtree(self.path / name, ignore_errors=True)
            cluster = attrs.evolve(cluster, deleting=())
            _replace(self.path / _CLUSTER, cluster.to_json())
        self.stored = cluster

    def new_log(self, topic: str, partition: int, settings: LogSettings) -> PartitionLog:
        """Return the log of a partition, restored from disk; raise :class:`DataDirectoryError` for a damaged log."""
        path = self.path / partition_directory(topic, partition)
        log = PartitionLog(settings, SegmentFiles(path, self._config.log_segment_bytes, self._files))
        segments = _segments(path) if path.is_dir() else []
        for position, (_, segment) in enumerate(segments):
            _restore(log, segment, last=position == len(segments) - 1)
        start = path / _START
        if start.exists():
            try:
                log.delete_before(int(start.read_text()))
            except ValueError as error:
                raise DataDirectoryError(f"{start} is damaged: {error}") from error
        elif segments:
            log.delete_before(segments[0][0])
        return log


class SegmentFiles:
    """The files of one partition; the :class:`~consumer_coord.broker.partition_log.Storage` of its log."""

    def __init__(self, path: Path, segment_bytes: int, files: OpenFiles) -> None:
        self.path = path
        self._segment_bytes = segment_bytes
        self._files = files
        self._bases: list[int] = [base for base, _ in _segments(path)] if path.is_dir() else []
        # The size of the last file. Read at the first append, because an incomplete batch may be removed from the file before
        # the first append.
        self._size = -1

    def append(self, base_offset: int, parts: Sequence[bytes | memoryview]) -> None:
        """Write one batch at the end, or to a new file if the last file is full; raise :class:`OSError` if this fails."""
        size = sum(len(part) for part in parts)
        if self._size < 0 and self._bases:
            self._size = self._file(self._bases[-1]).stat().st_size
        # An empty last file takes a batch of any size: another file of this base offset would be the same file.
        if not self._bases or (self._size and self._size + size > self._segment_bytes):
            self.path.mkdir(exist_ok=True)
            self._bases.append(base_offset)
            self._size = 0
        descriptor = self._files.get(self._file(self._bases[-1]))
        try:
            written = os.pwritev(descriptor, parts, self._size)
            if written < size:
                rest = memoryview(b"".join(parts))
                while written < size:
                    written += os.pwrite(descriptor, rest[written:], self._size + written)
        except OSError:
            # The next batch may be shorter, or go to another file. Then the next start would report the written part as damage.
            os.ftruncate(descriptor, self._size)
            raise
        self._size += size

    def trim(self, log_start_offset: int) -> None:
        """Store the log's start offset, and remove the files whose records are all before this offset."""
        if not self._bases or log_start_offset <= self._bases[0]:
            return
        _replace(self.path / _START, str(log_start_offset))
        while len(self._bases) > 1 and self._bases[1] <= log_start_offset:
            file = self._file(self._bases.pop(0))
            self._files.forget(file)
            file.unlink(missing_ok=True)

    def rewrite(self, batches: Sequence[tuple[int, Sequence[bytes | memoryview]]]) -> None:
        """Write each file again with those of its batches that are left; a kill leaves each file complete, old or new."""
        for position, base in enumerate(self._bases):
            end = self._bases[position + 1] if position + 1 < len(self._bases) else float("inf")
            parts = [part for offset, batch in batches if base <= offset < end for part in batch]
            file = self._file(base)
            self._files.forget(file)
            temporary = file.with_name(file.name + ".tmp")
            temporary.write_bytes(b"".join(parts))
            temporary.replace(file)
        self._size = -1

    def _file(self, base_offset: int) -> Path:
        return self.path / f"{base_offset:020d}.log"


class OpenFiles:
    """A limited number of open file descriptors."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path) -> int:
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            self._descriptors[path] = descriptor
            if len(self._descriptors) > _MAX_OPEN_FILES:
                os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors.move_to_end(path)
        return descriptor

    def forget(self, path: Path) -> None:
        """Close a file, or all files in a directory."""
        for known in [known for known in self._descriptors if known == path or path in known.parents]:
            os.close(self._descriptors.pop(known))

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def partition_directory(topic: str, partition: int) -> str:
    """Return the name of the directory with a partition's files."""
    return f"{topic}-{partition}"


def _check(path: Path) -> StoredCluster | None:
    """Return the stored cluster; None for a new directory. Change the directory only after all checks have passed."""
    names = sorted(entry.name for entry in path.iterdir() if entry.name != _LOCK)
    temporary = [name for name in names if name.endswith(".tmp")]
    names = [name for name in names if name not in temporary]
    if not names:
        return None
    if _CLUSTER not in names:
        raise DataDirectoryError(
            f"data_dir {path} contains {names[0]} but no {_CLUSTER}, so it is not a data directory of this broker"
        )
    try:
        stored = StoredCluster.from_json((path / _CLUSTER).read_text())
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DataDirectoryError(f"{path / _CLUSTER} is damaged: {error!r}") from error
    expected = {partition_directory(topic.name, partition) for topic in stored.topics for partition in range(topic.partitions)}
    for name in names:
        if name != _CLUSTER and name not in expected and name not in stored.deleting:
            raise DataDirectoryError(f"data_dir {path} contains {name}, which belongs to no topic in {_CLUSTER}")
    for name in names:
        if name in expected:
            _segments(path / name)
    for name in stored.deleting:
        shutil.rmtree(path / name, ignore_errors=True)
    for name in temporary:
        (path / name).unlink()
    return stored


def _segments(path: Path) -> list[tuple[int, Path]]:
    """Return (base offset, file) for the log files of a partition, in order; raise an error for any other file."""
    segments = []
    for entry in sorted(path.iterdir()):
        match = _SEGMENT.fullmatch(entry.name)
        if match is not None and entry.is_file():
            segments.append((int(match[1]), entry))
        elif entry.name != _START and not entry.name.endswith(".tmp"):
            raise DataDirectoryError(f"{entry} is not a log file")
    return segments


def _restore(log: PartitionLog, segment: Path, last: bool) -> None:
    """Read one file into a log. In the last file, remove an incomplete last batch, which a kill can leave."""
    data = segment.read_bytes()
    position = 0
    header: BatchHeader | None = None
    while position < len(data):
        if last and _is_torn(data, position):
            logger.warning("removed %d bytes of an incomplete batch from %s", len(data) - position, segment)
            os.truncate(segment, position)
            break
        try:
            header = record_batch.read_header(data, position)
            log.restore(data, header)
        except (MalformedMessageError, UnsupportedVersionError) as error:
            raise DataDirectoryError(f"{segment} is damaged at byte {position}: {error}") from error
        if IS_NATIVE and not record_batch.has_valid_crc(data, header):
            raise DataDirectoryError(f"{segment} is damaged at byte {position}: a wrong checksum")
        position += header.size
    if header is not None and not IS_NATIVE and not record_batch.has_valid_crc(data, header):
        raise DataDirectoryError(f"{segment} is damaged at byte {header.position}: a wrong checksum")


def _is_torn(data: bytes, position: int) -> bool:
    """Return whether the batch at ``position`` is incomplete."""
    remaining = len(data) - position
    if remaining < record_batch.LOG_OVERHEAD:
        return True
    size = int.from_bytes(data[position + 8 : position + 12], "big", signed=True) + record_batch.LOG_OVERHEAD
    return size > remaining


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically: a reader, or a restart, finds either the old contents or the new contents."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def stored_topics(topics: Iterable[Topic]) -> tuple[StoredTopic, ...]:
    """Return the topics of a running cluster in their stored form."""
    return tuple(
        StoredTopic(one.name, str(one.topic_id), len(one.partitions), one.replication_factor, one.configs, one.internal)
        for one in topics
    )
