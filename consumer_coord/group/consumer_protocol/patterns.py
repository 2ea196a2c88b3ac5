"""Find out whether the broker (``subscribed_topic_regex``, RE2/J) would resolve a pattern with the same result as Python.

Python's ``re`` and RE2/J agree on literals, ``.``, classes, groups, alternatives, repeats and anchors, and on topic names,
which are ASCII. Other patterns (look-around, back references, flags, possessive and atomic parts) are resolved by this client,
which sends the names to the broker.
"""

from __future__ import annotations

import re

#: The largest number of repeats that RE2 allows.
_MOST_REPEATS = 1_000

_PLAIN = re.compile(
    r"""
      (?P<literal> [A-Za-z0-9 _\-/:;,'"<>=!@\#%&~`] )
    | (?P<escaped> \\ [.\-_^$*+?()\[\]{}|\\/dDwWsS] )
    | (?P<anchor> [\^$] )
    | (?P<any> \. )
    | (?P<class> \[ \^? (?: [A-Za-z0-9_.:;,=@\ ] (?: - [A-Za-z0-9] )? | \\ [.\-_^$*+?()\[\]{}|\\/dDwWsS] )+ -? \] )
    | (?P<group> \( (?: \?: )? (?! \? ) )
    | (?P<close> \) )
    | (?P<or> \| )
    | (?P<repeat> (?: [*+?] | \{ (?P<least> \d{1,4} ) (?: , (?P<most> \d{0,4} ) )? \} ) \?? (?! [*+?{] ) )
    """,
    re.VERBOSE,
)

#: Kafka's internal topics, which the broker matches with a pattern like any other topic.
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")


def for_broker(pattern: re.Pattern[str], *, exclude_internal: bool) -> str | None:
    """Return the pattern for the broker, or None if this client must resolve the pattern.

    ``exclude_internal``: the subscription must exclude Kafka's internal topics (``exclude.internal.topics``). The broker would
    include them, so this client resolves a pattern that matches an internal topic.
    """
    if pattern.flags & ~re.UNICODE.value or not pattern.pattern:
        return None
    if exclude_internal and any(pattern.fullmatch(topic) for topic in INTERNAL_TOPICS):
        return None
    text, at = pattern.pattern, 0
    while at < len(text):
        part = _PLAIN.match(text, at)
        if part is None:
            return None
        numbers = [int(number) for number in (part["least"], part["most"]) if number]
        if any(number > _MOST_REPEATS for number in numbers):
            return None
        at = part.end()
    return text
