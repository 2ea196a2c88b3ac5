r"""Make text from outside safe for a terminal and a log.

Group ids, member ids, client ids, hosts, topics and error messages come from other clients and from brokers. These texts may
contain an escape sequence, a line break or a mark that changes the direction of writing, and could imitate a row of a table or
a line of a log. Unprintable characters (Unicode's categories "Other" and "Separator", except the space) are shown as in Python
and JSON: ``\n``, ``\x1b``, ``\u202e``.
"""

from __future__ import annotations

import codecs
import io
import logging
import re
from collections.abc import Mapping
from typing import Any

_NOT_ASCII_PRINTABLE = r"[^\x20-\x7e]"
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """Return ``text`` as one line, with every unprintable character escaped."""
    if text.isprintable():
        return text
    return re.sub(_NOT_ASCII_PRINTABLE, lambda match: match[0] if match[0].isprintable() else _escape(match[0]), text)


def _escape(character: str) -> str:
    number = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """Return ``value`` as a JSON document. Every unprintable character is escaped, even where JSON does not require this."""
    import json

    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return re.sub(_NOT_ASCII_PRINTABLE, lambda match: _escape_json(match[0]), text)


def _escape_json(character: str) -> str:
    import json

    # Line breaks between values belong to the document. json.dumps has already escaped line breaks inside strings.
    if character == "\n" or character.isprintable():
        return character
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def escape_unencodable(stream: object) -> None:
    """Escape the characters that are missing in the encoding of a text stream, in tables and JSON: ``\u2713``."""
    if isinstance(stream, io.TextIOWrapper):
        codecs.register_error("consumer_coord.escape", _escape_encoded)
        stream.reconfigure(errors="consumer_coord.escape")


def _escape_encoded(error: UnicodeError) -> tuple[str, int]:
    import json

    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


class _Escape(logging.Filter):
    """A filter that escapes the arguments of a log record; the format text comes from this library."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the arguments; return True for every record."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        elif isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        return True


def _shown(value: object) -> object:
    if value is None or isinstance(value, (int, float)):
        return value
    text = str(value)
    return value if text.isprintable() else printable(text)


_ESCAPE = _Escape()


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, which escapes unprintable characters in the arguments of log messages."""
    logger = logging.getLogger(name)
    logger.addFilter(_ESCAPE)
    return logger
