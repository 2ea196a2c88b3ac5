"""Write and read recordings: a header and then messages, each a line of JSON; ``docs/watch.md`` lists the fields."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs

from consumer_coord.errors import ConfigurationError
from consumer_coord.watch.changes import Message

FORMAT = "consumer-coord watch"
VERSION = 1


@attrs.frozen
class Table:
    """A table of figures that a page shows above the picture; all cells are strings."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@attrs.frozen
class Meta:
    """The description of a page or recording.

    ``clock`` is "wall" if times are in seconds since 1970, and "run" if times are in seconds since the start of a run. A page
    keeps the last ``keep_s`` seconds, or everything if ``keep_s`` is None. ``marks`` are pairs (time, text) that do not belong
    to a group.
    """

    title: str
    subtitle: str = ""
    clock: str = "wall"
    keep_s: float | None = None
    table: Table | None = None
    marks: tuple[tuple[float, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the description for JSON: the header of a recording, or the page."""
        return attrs.asdict(self)


@attrs.frozen
class Recording:
    """A recording in memory."""

    meta: Meta
    messages: tuple[Message, ...]


class Recorder:
    """Writes a recording line by line. Written lines remain intact if the process is killed."""

    def __init__(self, path: Path, meta: Meta) -> None:
        try:
            self._file = path.open("w", encoding="ascii")
        except OSError as error:
            raise ConfigurationError(f"--record {path}: {error.strerror}") from None
        self.write(json.dumps({"format": FORMAT, "version": VERSION, "meta": meta.as_json()}))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def write(self, text: str) -> None:
        """Write one encoded message."""
        self._file.write(text + "\n")
        self._file.flush()


def read_recording(path: Path) -> Recording:
    """Read a recording; raise :class:`ConfigurationError` if the file is not a recording.

    An incomplete last line, which a killed process leaves, is ignored.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    meta = _header(path, lines[0])
    return Recording(meta, tuple(_messages(path, lines[1:])))


def _header(path: Path, line: str) -> Meta:
    try:
        header = json.loads(line)
        if header["format"] != FORMAT:
            raise ValueError(header["format"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigurationError(f"{path} is not a recording of consumer-coord watch") from None
    if header.get("version") != VERSION:
        raise ConfigurationError(
            f"{path} is a recording of version {header.get('version')!r}, but this release reads only version {VERSION}"
        )
    try:
        meta = dict(header["meta"])
        table = meta.get("table")
        if table is not None:
            meta["table"] = Table(tuple(map(str, table["columns"])), tuple(tuple(map(str, row)) for row in table["rows"]))
        meta["marks"] = tuple((float(at), str(text)) for at, text in meta.get("marks", ()))
        return Meta(**meta)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: the header cannot be read: {error}") from None


def _messages(path: Path, lines: list[str]) -> Iterable[Message]:
    # The last item, after the last line feed, is empty or the incomplete line of a killed process.
    for number, line in enumerate(lines[:-1], 2):
        try:
            message = json.loads(line)
            good = isinstance(message, dict) and isinstance(message["at"], (int, float))
        except (ValueError, KeyError, RecursionError):
            good = False
        if not good:
            raise ConfigurationError(f"{path}: line {number} is not a message")
        yield message
