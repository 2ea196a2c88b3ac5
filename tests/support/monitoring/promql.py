"""A parser of the part of PromQL that ``examples/monitoring`` uses, for machines without promtool.

expression = aggregate | call | selector, each with an optional comparison to a number
aggregate  = ("sum" | "max" | "avg") "by" "(" label {"," label} ")" "(" expression ")"
call       = ("rate" | "increase") "(" selector "[" duration "]" ")"
selector   = metric [ "{" label ("=" | "!=" | "=~" | "!~") text {"," ...} "}" ]
"""

from __future__ import annotations

import re

import attrs

_TOKEN = re.compile(
    r"\s*(?:(?P<text>\"[^\"\\]*\")|(?P<duration>\d+[smhd]\b)|(?P<number>\d+(?:\.\d+)?\b)|(?P<name>[a-zA-Z_:][\w:]*)"
    r"|(?P<sign>=~|!~|!=|==|>=|<=|[(){}\[\],=<>]))"
)
_AGGREGATES = ("sum", "max", "avg")
_CALLS = ("rate", "increase")
_MATCHES = ("=", "!=", "=~", "!~")
_COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")


class PromQLError(ValueError):
    """Raised if the text is no expression of the supported part of PromQL."""


@attrs.frozen
class Expression:
    """The content of an expression.

    ``labels`` are the labels of its result, None for all; ``counted``: the metric is inside rate() or increase().
    """

    metric: str
    counted: bool
    matched: frozenset[str]
    labels: frozenset[str] | None


def parse(text: str) -> Expression:
    """Parse all of a text; raise :class:`PromQLError` at the first token that is not allowed at its place."""
    parser = _Parser(text)
    found = parser.compared()
    parser.end()
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise PromQLError(f"{text!r}: no token begins with {text[position:].strip()[:10]!r}")
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind]))
            position = match.end()

    def compared(self) -> Expression:
        found = self._operand()
        if self._next("sign") in _COMPARISONS:
            self._take("sign", _COMPARISONS)
            self._take("number")
        return found

    def end(self) -> None:
        if self._tokens:
            raise PromQLError(f"{self._text!r}: {self._tokens[0][1]!r} follows the end of the expression")

    def _operand(self) -> Expression:
        name = self._take("name")
        if name in _AGGREGATES:
            self._take("name", ("by",))
            labels = self._labels()
            self._take("sign", ("(",))
            inner = self.compared()
            self._take("sign", (")",))
            return attrs.evolve(inner, labels=labels)
        if name in _CALLS:
            self._take("sign", ("(",))
            inner = self._selector(self._take("name"))
            self._take("sign", ("[",))
            self._take("duration")
            self._take("sign", ("]",))
            self._take("sign", (")",))
            return attrs.evolve(inner, counted=True)
        return self._selector(name)

    def _labels(self) -> frozenset[str]:
        self._take("sign", ("(",))
        found = {self._take("name")}
        while self._take("sign", (",", ")")) == ",":
            found.add(self._take("name"))
        return frozenset(found)

    def _selector(self, metric: str) -> Expression:
        matched = set()
        if self._next("sign") == "{":
            self._take("sign", ("{",))
            while True:
                matched.add(self._take("name"))
                self._take("sign", _MATCHES)
                self._take("text")
                if self._take("sign", (",", "}")) == "}":
                    break
        return Expression(metric, False, frozenset(matched), None)

    def _next(self, kind: str) -> str | None:
        return self._tokens[0][1] if self._tokens and self._tokens[0][0] == kind else None

    def _take(self, kind: str, allowed: tuple[str, ...] | None = None) -> str:
        found = self._next(kind)
        if found is None or (allowed is not None and found not in allowed):
            seen = repr(self._tokens[0][1]) if self._tokens else "the end"
            raise PromQLError(f"{self._text!r}: {seen} where {' or '.join(allowed or (kind,))} is expected")
        del self._tokens[0]
        return found
