"""Validate regular expressions of subscriptions (``SubscribedTopicRegex``), and find the topics that match.

Kafka uses RE2/J and matches whole names. Python's ``re`` has other features than RE2, and a different syntax for some features.
So this module parses an expression by RE2's rules and rewrites it for ``re``. Topic names are ASCII without line ends, and the
only result is whether a name matches, so greediness, the names of groups and most flags make no difference.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping

import attrs

from consumer_coord.broker.consumer_group.group import ResolvedRegex
from consumer_coord.broker.errors import GroupError
from consumer_coord.wire import error_codes

#: RE2's maximum number of repetitions, as in ``a{1000}``.
_MOST_REPEATS = 1_000
_ASCII = [chr(code) for code in range(128)]
_POSIX = {
    "alnum": "[0-9A-Za-z]",
    "alpha": "[A-Za-z]",
    "ascii": "[\\x00-\\x7f]",
    "blank": "[\\t ]",
    "cntrl": "[\\x00-\\x1f\\x7f]",
    "digit": "[0-9]",
    "graph": "[!-~]",
    "lower": "[a-z]",
    "print": "[ -~]",
    "punct": "[!-/:-@\\[-`{-~]",
    "space": "[\\t-\\r ]",
    "upper": "[A-Z]",
    "word": "[0-9A-Za-z_]",
    "xdigit": "[0-9A-Fa-f]",
}
_PERL = {"d": _POSIX["digit"], "s": "[\\t\\n\\f\\r ]", "w": _POSIX["word"]}
_CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANCHORS = {"A": "\\A", "z": "\\Z", "b": "\\b", "B": "\\B"}
_CATEGORY = re.compile(r"C[cfos]?|L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|Any")
_SCRIPT = re.compile(r"[A-Z][a-z]+(?:_[A-Z][a-z]+)*")
_REPEAT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])")
_NAMED = re.compile(r"\(\?P?<(\w+)>")
_OCTAL = re.compile(r"\\(0[0-7]{0,2}|[1-7][0-7]{1,2})")
_HEX = re.compile(r"\\x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))")
_PROPERTY = re.compile(r"\\([pP])(?:\{(\^?)(\w+)\}|([A-Z]))")


def compile_regex(expression: str) -> re.Pattern[str]:
    """Compile an expression for ``fullmatch``; raise :class:`~consumer_coord.broker.errors.GroupError` if RE2 refuses it."""
    try:
        return re.compile(_Reader(expression).whole())
    except (_IllegalError, re.error, OverflowError, RecursionError) as error:
        raise GroupError(
            error_codes.INVALID_REGULAR_EXPRESSION, f"{expression!r} is not a regular expression of RE2: {error}"
        ) from error


def resolve(expressions: Iterable[str], topics: Iterable[str], version: int, now_ms: int) -> Mapping[str, ResolvedRegex]:
    """Return expression -> matching topics. An illegal expression (from another broker's log) matches no topic."""
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


class _IllegalError(Exception):
    """Raised for an expression that RE2 refuses."""


@attrs.define
class _Group:
    """A group (parentheses) that is being parsed: its complete alternatives, and the parts of the current alternative."""

    ignores_case: bool
    done: list[str] = attrs.field(factory=list)
    atoms: list[str] = attrs.field(factory=list)

    def text(self) -> str:
        return "(?:" + "|".join((*self.done, "".join(self.atoms))) + ")"


class _Reader:
    """Reads an expression of RE2 from left to right, and writes it in Python's syntax."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0
        self._ignores_case = False
        self._names: set[str] = set()
        self._groups = [_Group(False)]
        #: The position after the last repetition operator, where no other repetition operator may begin.
        self._repeated_at = -1

    def whole(self) -> str:
        """Return the expression in Python's syntax."""
        while self._at < len(self._text):
            self._step(self._text[self._at])
        if len(self._groups) > 1:
            raise _IllegalError("a group is not closed")
        return self._groups[0].text()

    def _step(self, char: str) -> None:
        group = self._groups[-1]
        match char:
            case "(":
                self._open()
            case ")":
                self._close()
            case "|":
                self._at += 1
                group.done.append("".join(group.atoms))
                group.atoms = []
            case "*" | "+" | "?":
                self._at += 1
                self._repeat(char)
            case "{" if (found := _REPEAT.match(self._text, self._at)) is not None:
                self._repeat_counted(found)
            case "[":
                self._atom(self._class())
            case "\\":
                self._escape()
            case "^" | "$" | ".":
                self._at += 1
                group.atoms.append(char)
            case _:
                self._at += 1
                self._atom(re.escape(char))

    def _atom(self, text: str) -> None:
        self._groups[-1].atoms.append(f"(?i:{text})" if self._ignores_case else text)

    def _repeat(self, how: str) -> None:
        atoms = self._groups[-1].atoms
        start = self._at - len(how)
        if not atoms:
            raise _IllegalError(f"no expression precedes {how}")
        if self._repeated_at == start:
            raise _IllegalError("a repetition operator follows another repetition operator")
        if self._text[self._at : self._at + 1] == "?":
            self._at += 1  # A non-greedy repetition makes no difference here.
        self._repeated_at = self._at
        atoms[-1] = f"(?:{atoms[-1]}){how}"

    def _repeat_counted(self, found: re.Match[str]) -> None:
        self._at = found.end()
        least, most = int(found[1]), int(found[3] or found[1])
        if most < least or max(least, most) > _MOST_REPEATS:
            raise _IllegalError(f"{found[0]} is not a valid number of repetitions")
        self._repeat(found[0])

    def _open(self) -> None:
        group = _Group(self._ignores_case)
        if not self._text.startswith("(?", self._at):
            self._at += 1
        elif (named := _NAMED.match(self._text, self._at)) is not None:
            if named[1] in self._names:
                raise _IllegalError(f"two groups have the name {named[1]}")
            self._names.add(named[1])
            self._at = named.end()
        elif (flags := _FLAGS.match(self._text, self._at)) is not None and flags[0] not in ("(?)", "(?-)"):
            self._at = flags.end()
            self._ignores_case = (self._ignores_case or "i" in flags[1]) and "i" not in (flags[2] or "")
            if flags[3] == ")":
                return
        else:
            raise _IllegalError(f"{self._text[self._at : self._at + 3]} is not supported")
        self._groups.append(group)

    def _close(self) -> None:
        self._at += 1
        if len(self._groups) == 1:
            raise _IllegalError("a closing parenthesis has no opening parenthesis")
        group = self._groups.pop()
        self._ignores_case = group.ignores_case
        self._groups[-1].atoms.append(group.text())

    def _escape(self) -> None:
        char = self._text[self._at + 1 : self._at + 2]
        if char == "Q":
            end = self._text.find("\\E", self._at + 2)
            quoted = self._text[self._at + 2 : None if end < 0 else end]
            self._at = len(self._text) if end < 0 else end + 2
            for one in quoted:
                self._atom(re.escape(one))
        elif char in _ANCHORS:
            self._at += 2
            self._groups[-1].atoms.append(_ANCHORS[char])
        else:
            self._atom(_written(self._characters()))

    def _characters(self) -> set[str]:
        """Return the characters that an escape matches."""
        rest = self._text
        char = rest[self._at + 1 : self._at + 2]
        if char.lower() in _PERL:
            self._at += 2
            return _matching(_PERL[char.lower()], char.isupper())
        if (found := _PROPERTY.match(rest, self._at)) is not None:
            self._at = found.end()
            return _of_property(found[3] or found[4], (found[1] == "P") != (found[2] == "^"))
        for pattern, base in ((_OCTAL, 8), (_HEX, 16)):
            if (found := pattern.match(rest, self._at)) is not None:
                self._at = found.end()
                code = int(next(part for part in found.groups() if part is not None), base)
                if code > 0x10FFFF:
                    raise _IllegalError("the code of a character is too high")
                return {chr(code)}
        self._at += 2
        if char in _CONTROL:
            return {_CONTROL[char]}
        if not char or not char.isascii() or char.isalnum():
            raise _IllegalError(f"\\{char} is not supported")
        return {char}

    # -- classes of characters

    def _class(self) -> str:
        """Parse a character class from ``[`` to ``]``; only ASCII characters matter."""
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        found: set[str] = set()
        first = True
        while first or not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise _IllegalError("a class of characters is not closed")
            first = False
            found |= self._class_part()
        self._at += 1
        if self._ignores_case:
            found |= {one.swapcase() for one in found}
        return _written(set(_ASCII) - found if negated else found)

    def _class_part(self) -> set[str]:
        posix = re.compile(r"\[:(\^?)(\w+):\]").match(self._text, self._at)
        if posix is not None:
            if posix[2] not in _POSIX:
                raise _IllegalError(f"{posix[0]} is not supported")
            self._at = posix.end()
            return _matching(_POSIX[posix[2]], bool(posix[1]))
        low = self._class_character()
        if len(low) > 1 or not self._text.startswith("-", self._at) or self._text.startswith("-]", self._at):
            return low
        self._at += 1
        high = self._class_character()
        if len(low) != 1 or len(high) != 1 or min(low) > min(high):
            raise _IllegalError("an invalid range of characters")
        return {chr(code) for code in range(ord(min(low)), min(ord(min(high)), 127) + 1)}

    def _class_character(self) -> set[str]:
        if self._text.startswith("\\", self._at):
            return self._characters()
        self._at += 1
        if self._at > len(self._text):
            raise _IllegalError("a class of characters is not closed")
        return {self._text[self._at - 1]}


def _matching(pattern: str, negated: bool) -> set[str]:
    return {one for one in _ASCII if (re.fullmatch(pattern, one) is not None) != negated}


def _of_property(name: str, negated: bool) -> set[str]:
    """Return the ASCII characters of a Unicode category or script; only the scripts Latin and Common have such characters."""
    if _CATEGORY.fullmatch(name):
        found = {one for one in _ASCII if name == "Any" or unicodedata.category(one).startswith(name)}
    elif _SCRIPT.fullmatch(name):
        letters = _matching(_POSIX["alpha"], False)
        found = {"Latin": letters, "Common": set(_ASCII) - letters}.get(name, set())
    else:
        raise _IllegalError(f"there is no character class with the name {name}")
    return set(_ASCII) - found if negated else found


def _written(characters: set[str]) -> str:
    """Return a character class in Python's syntax."""
    if not characters:
        return "(?!)"
    return "[" + "".join(map(re.escape, sorted(characters))) + "]"
