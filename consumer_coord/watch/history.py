"""The history that a newly opened page receives, limited in time and in size.

Old messages are merged into one message with the resulting state (:class:`State`). So a new page always gets a complete state.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

import attrs

from consumer_coord.watch.changes import UNOWNED, Message, Owners, runs

#: The maximum number of rebalances of a group that the merged message keeps.
_MOST_REBALANCES = 200


def encode(message: Message) -> str:
    """Encode a message as one line of JSON in ASCII, so that no name breaks a line."""
    return json.dumps(message, separators=(",", ":"))


_LAST = ("lag", "lag_seconds", "unknown", "behind", "unowned")


@attrs.define
class _Group:
    info: dict[str, Any] = attrs.field(factory=dict)
    members: dict[str, Any] = attrs.field(factory=dict)
    topics: dict[str, int] = attrs.field(factory=dict)
    owners: Owners = attrs.field(factory=dict)
    rebalances: dict[int, list[Any]] = attrs.field(factory=dict)
    member_lag: dict[str, int | None] = attrs.field(factory=dict)
    #: The last values of the fields in ``_LAST``; earlier values are not needed.
    last: dict[str, Any] = attrs.field(factory=dict)

    def apply(self, change: dict[str, Any]) -> None:
        self.info.update(change.get("info", {}))
        for number, member in change.get("members", {}).items():
            if member is None:
                self.members.pop(number, None)
                self.member_lag.pop(number, None)
            else:
                self.members[number] = member
        for topic, count in change.get("topics", {}).items():
            if count is None:
                self.topics.pop(topic, None)
                self.owners.pop(topic, None)
                continue
            self.topics[topic] = count
            owners = self.owners.setdefault(topic, [])
            del owners[count:]
            owners += [UNOWNED] * (count - len(owners))
        for topic, changed in change.get("owners", {}).items():
            owners = self.owners[topic]
            for first, last, owner in changed:
                owners[first : last + 1] = [owner] * (last + 1 - first)
        for row in change.get("rebalances", ()):
            self.rebalances[row[0]] = row
        while len(self.rebalances) > _MOST_REBALANCES:
            del self.rebalances[next(iter(self.rebalances))]
        self.member_lag.update(change.get("member_lag", {}))
        self.last.update({name: change[name] for name in _LAST if name in change})

    def as_change(self) -> dict[str, Any]:
        return {
            "info": self.info,
            "members": self.members,
            "topics": self.topics,
            "owners": {topic: runs((), owners) for topic, owners in self.owners.items()},
            "rebalances": list(self.rebalances.values()),
            "member_lag": self.member_lag,
            **self.last,
        }


class State:
    """The state of the groups after some messages."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._groups: dict[str, _Group] = {}
        self._trouble: str | None = None

    def apply(self, message: Message) -> None:
        """Apply the next message."""
        self.at = message["at"]
        for group_id in message.get("gone", ()):
            self._groups.pop(group_id, None)
        for group_id, change in message.get("groups", {}).items():
            self._groups.setdefault(group_id, _Group()).apply(change)
        if "trouble" in message:
            self._trouble = message["trouble"]

    def as_message(self) -> Message:
        """Return one message with the state after all applied messages."""
        message: Message = {"at": self.at, "groups": {name: group.as_change() for name, group in self._groups.items()}}
        if self._trouble is not None:
            message["trouble"] = self._trouble
        return message


class History:
    """Keeps the messages of the last ``keep_s`` seconds, but at most ``most_bytes`` of messages."""

    def __init__(self, keep_s: float = 3600.0, most_bytes: int = 32 << 20) -> None:
        self._keep_s = keep_s
        self._most_bytes = most_bytes
        self._base = State()
        self._messages: deque[tuple[Message, str]] = deque()
        self._bytes = 0

    def add(self, message: Message) -> str:
        """Keep a message; return it encoded."""
        text = encode(message)
        self._messages.append((message, text))
        self._bytes += len(text)
        while len(self._messages) > 1 and (
            self._bytes > self._most_bytes or message["at"] - self._messages[0][0]["at"] > self._keep_s
        ):
            oldest, folded = self._messages.popleft()
            self._bytes -= len(folded)
            self._base.apply(oldest)
        return text

    def texts(self) -> Iterator[str]:
        """Yield the encoded messages that bring a new page up to date, in order."""
        if self._base.at is not None:
            yield encode(self._base.as_message())
        for _, text in self._messages:
            yield text

    def messages(self) -> list[Message]:
        """Return the messages that bring a new page up to date, as values."""
        base = [] if self._base.at is None else [self._base.as_message()]
        return base + [message for message, _ in self._messages]
