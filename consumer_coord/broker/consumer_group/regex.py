"""Subscriptions by regular expression (``SubscribedTopicRegex``): which are legal, and which topics they come to.

Kafka uses RE2/J and matches whole names. Python's ``re`` knows more than RE2: what RE2 refuses is refused here, too. What
both accept means the same for topic names, which are ASCII letters, digits, ``.``, ``_`` and ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from consumer_coord.broker.consumer_group.group import ResolvedRegex
from consumer_coord.broker.errors import GroupError
from consumer_coord.wire import error_codes

#: RE2 repeats nothing more often than this.
_MOST_REPEATS = 1_000

#: Constructs of ``re`` that RE2 does not have, and how they are called. Each stands behind an even number of backslashes.
_NOT_RE2 = (
    (r"\(\?(?:[=!]|<[=!])", "look-around"),
    (r"\(\?>", "an atomic group"),
    (r"\(\?P=|\(\?\(|\\[1-9]", "a reference to a group"),
    (r"\(\?#", "a comment"),
    (r"(?:[*+?]|\{\d+(?:,\d*)?\})\+", "a possessive quantifier"),
    (r"\(\?[imsU-]*[aLux]", "a flag that RE2 does not have"),
    (r"\\(?:[uUNZ]|$)", "an escape that RE2 does not have"),
)
#: Spellings of RE2 that ``re`` writes otherwise, or does not know.
_SPELLINGS = ((r"\z", r"\Z"), (r"\pL", "[A-Za-z]"), (r"\p{L}", "[A-Za-z]"), (r"\pN", "[0-9]"), (r"\p{N}", "[0-9]"))
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_BEHIND_AN_ESCAPE = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]", re.DOTALL)
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_REPEATS = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def compile_regex(expression: str) -> re.Pattern[str]:
    """The expression for ``fullmatch``; raises :class:`~consumer_coord.broker.errors.GroupError` for one that RE2 refuses."""
    plain = _QUOTED.sub(lambda quoted: re.escape(quoted[1]), expression)
    bare = _CLASS.sub("x", plain)
    for pattern, what in _NOT_RE2:
        if any(_is_live(bare, found.start()) for found in re.finditer(pattern, bare)):
            raise _invalid(expression, what)
    for found in _REPEATS.finditer(_BEHIND_AN_ESCAPE.sub("xx", bare)):
        if any(number and int(number) > _MOST_REPEATS for number in found.groups()):
            raise _invalid(expression, f"more than {_MOST_REPEATS} repetitions")
    for theirs, ours in _SPELLINGS:
        plain = plain.replace(theirs, ours)
    plain = re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", plain)
    plain = re.sub(r"\[:(\w+):\]", lambda found: _POSIX.get(found[1], found[0]), plain)
    try:
        return re.compile(plain)
    except (re.error, OverflowError, RecursionError) as error:
        raise _invalid(expression, str(error)) from error


def resolve(
    expressions: Iterable[str], topics: Iterable[str], version: int, now_ms: int
) -> Mapping[str, ResolvedRegex]:
    """Expression -> the topics that it matches; one that is not legal, as from another broker's log, matches none."""
    names = tuple(topics)
    resolved = {}
    for expression in expressions:
        try:
            matches = compile_regex(expression).fullmatch
            found = frozenset(name for name in names if matches(name))
        except GroupError:
            found = frozenset()
        resolved[expression] = ResolvedRegex(found, version, now_ms)
    return resolved


def _is_live(text: str, place: int) -> bool:
    """Whether the character at ``place`` is not escaped."""
    backslashes = len(text[:place]) - len(text[:place].rstrip("\\"))
    return backslashes % 2 == 0


def _invalid(expression: str, why: str) -> GroupError:
    return GroupError(error_codes.INVALID_REGULAR_EXPRESSION, f"{expression!r} is no regular expression of RE2: {why}")
