"""Which patterns the broker can resolve itself (``subscribed_topic_regex``, RE2/J), so that it means the same by them.  Pure.

Python's ``re`` and RE2/J agree on literals, ``.``, classes, groups, alternatives, repeats and anchors, and on names of
topics, which are ASCII.  What goes beyond that (look-around, back references, flags, possessive and atomic parts) is
resolved here, and the broker is told of the names.
"""

from __future__ import annotations

import re

#: RE2 repeats nothing more often than this.
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

#: Kafka's own topics: the broker's patterns match them like others.
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")


def for_broker(pattern: re.Pattern[str], *, exclude_internal: bool) -> str | None:
    """The pattern as the broker resolves it, None when it has to be resolved here.

    ``exclude_internal``: topics of Kafka's own are not wanted (``exclude.internal.topics``), so a pattern that matches one of
    them stays here.
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
