"""A member's subscription: topics, a pattern, or nothing. Immutable values, no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.net.metadata import Metadata

_LEGAL_TOPIC = r"[a-zA-Z0-9._-]{1,249}"


@attrs.frozen
class TopicSubscription:
    """Either named topics, in alphabetical order and without duplicates, or all topics that match ``pattern``."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    def __bool__(self) -> bool:
        return bool(self.topics) or self.pattern is not None

    def wanted(self, metadata: Metadata, *, exclude_internal: bool) -> tuple[str, ...]:
        """Return the topics to subscribe to, according to ``metadata``."""
        if self.pattern is None:
            return self.topics
        return metadata.matching(self.pattern, exclude_internal=exclude_internal)


NOTHING = TopicSubscription()


def to_topics(topics: Iterable[str]) -> TopicSubscription:
    """Return a subscription to named topics; raise :class:`ConfigurationError` for an empty or illegal name."""
    if isinstance(topics, str):
        raise ConfigurationError(f"subscribe takes a list of topics, not the string {topics!r}: write [{topics!r}]")
    names = sorted(set(topics))
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(_LEGAL_TOPIC, name) or name in (".", ".."):
            raise ConfigurationError(
                f"{name!r} cannot be a topic: a name has 1 to 249 letters, digits, '.', '_' and '-' (a pattern starts with '^')"
            )
    if not names:
        raise ConfigurationError("subscribe needs at least one topic; unsubscribe() ends a subscription")
    return TopicSubscription(topics=tuple(names))


def to_pattern(pattern: re.Pattern[str]) -> TopicSubscription:
    """Return a subscription to every topic whose whole name matches."""
    return TopicSubscription(pattern=pattern)


#: POSIX character classes, which Python's regular expressions do not support.
_POSIX_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": r"\x21-\x7e",
    "lower": "a-z",
    "print": r"\x20-\x7e",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
_POSIX_CLASS = r"\[:(" + "|".join(_POSIX_CLASSES) + r"):\]"


def librdkafka_pattern(topics: Iterable[str]) -> re.Pattern[str]:
    """Return one pattern for a list in which names that start with ``^`` are patterns, as in librdkafka.

    librdkafka's patterns match the beginning of a topic's name; plain names match only themselves.
    """
    topics = [re.sub(_POSIX_CLASS, lambda found: _POSIX_CLASSES[found[1]], topic) for topic in topics]
    parts = [f"(?:{part}).*" if part.startswith("^") else re.escape(part) for part in topics]
    try:
        return re.compile("|".join(parts))
    except re.error as error:
        raise ConfigurationError(f"one of the patterns {list(topics)!r} is not a regular expression: {error}") from error
