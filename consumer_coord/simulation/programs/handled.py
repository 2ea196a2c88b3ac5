"""Which records were handled, by which process, and which were committed: what is lost, and what is repeated, and why."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from consumer_coord.broker.record_batch import Record
from consumer_coord.process.dead_letters import Origin
from consumer_coord.simulation.producer import Headers
from consumer_coord.topic_partition import TopicPartition

Key = tuple[TopicPartition, int]

#: The beginnings of the headers of letters.
_LETTER: Final = "dead-letter."
_RETRY: Final = "retry."


@attrs.frozen
class LostRecord:
    """A record that the group will not read again, and that nobody has handled."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    #: Who committed past it, and when, in seconds of virtual time.
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset} {self.value!r}: {self.reason}"

    __repr__ = __str__


@attrs.frozen
class RepeatedRecord:
    """A record that was handled more than once."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    times: int
    #: Why its last repetition happened.
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset} {self.value!r}: {self.times} times, {self.reason}"

    __repr__ = __str__


@attrs.define(eq=False)
class Handling:
    """One call of the handler for one record that has returned, in seconds of virtual time."""

    process: str
    began_s: float
    ended_s: float


@attrs.frozen
class Commit:
    """A commit that a coordinator has accepted. ``offset`` is the next one to read."""

    at_s: float
    group: str
    offset: int
    process: str


@attrs.frozen
class Trouble:
    """Something that happened to a process, or to the brokers (``process`` is None). ``to_s`` is None if it lasts."""

    process: str | None
    what: str
    since_s: float
    to_s: float | None


class KilledError(BaseException):
    """Ends the code of a process that is killed inside a function that does not await."""


class HandledRecords:
    """What one run knows of its records."""

    def __init__(self, clock: Callable[[], float], event: Callable[[str, str], str | None]) -> None:
        """``event`` receives ("handles" or "has handled", process), and returns the kind of the fault that strikes next."""
        self._clock = clock
        self._event = event
        self.handlings: dict[Key, list[Handling]] = {}
        #: Partition -> its commits, in order.
        self.commits: dict[TopicPartition, list[Commit]] = {}
        self.troubles: list[Trouble] = []
        #: The calls that have not returned: number -> the process and the records.
        self.running: dict[int, tuple[str | None, Sequence[tuple[Key, Key]]]] = {}
        self._calls = itertools.count(1)
        #: Records that a dead letter names, and those that were handled from a retry topic.
        self.letters: set[Key] = set()

    # -- what happens -------------------------------------------------------------------------------------------------

    def observed(self, function: Callable[..., Any], process: Callable[[], str | None]) -> Callable[..., Any]:
        """Return ``function`` with an account of what it has handled. ``process`` returns who calls it."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def handle(*args: Any, **kwargs: Any) -> Any:
                who = process()
                with self._call(keys_of(args, kwargs, function), who):
                    if self._strikes("handles", who):
                        # A process that stands still goes on here later; a killed one does not.
                        await asyncio.sleep(0)
                    result = await function(*args, **kwargs)
                if self._strikes("has handled", who):
                    await asyncio.sleep(0)
                return result

            return handle

        @functools.wraps(function)
        def handle_now(*args: Any, **kwargs: Any) -> Any:
            who = process()
            with self._call(keys_of(args, kwargs, function), who):
                if self._strikes("handles", who) == "kill":
                    raise KilledError
                result = function(*args, **kwargs)
            if self._strikes("has handled", who) == "kill":
                raise KilledError
            return result

        return handle_now

    def _strikes(self, moment: str, process: str | None) -> str | None:
        return None if process is None else self._event(moment, process)

    @contextlib.contextmanager
    def _call(self, keys: Sequence[tuple[Key, Key]], process: str | None) -> Iterator[None]:
        number, began_s = next(self._calls), self._clock()
        self.running[number] = (process, keys)
        try:
            yield
        finally:
            del self.running[number]
        for key, origin in keys if process is not None else ():
            if origin != key:
                # The record of a retry topic: that of its first topic is handled, too.
                self.letters.add(origin)
            self.handlings.setdefault(key, []).append(Handling(str(process), began_s, self._clock()))

    def produced(self, headers: Headers) -> bool:
        """Remember the record that a dead letter names; return whether this is a letter of a retry topic instead."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        told = {name.removeprefix(_LETTER): value for name, value in pairs if name.startswith(_LETTER) and value is not None}
        if told.keys() >= {"topic", "partition", "offset"}:
            self.letters.add((TopicPartition(_text(told["topic"]), int(told["partition"])), int(told["offset"])))
        return not told and any(name.startswith(_RETRY) for name, _ in pairs)

    # -- what is known ------------------------------------------------------------------------------------------------

    def committed(self, partition: TopicPartition) -> Commit | None:
        """Return the commit that went furthest."""
        return max(self.commits.get(partition, ()), key=lambda one: one.offset, default=None)

    def lost(self, records: Mapping[TopicPartition, Sequence[Record]]) -> list[LostRecord]:
        """Return what is committed and was never handled."""
        return [
            LostRecord(
                partition.topic,
                partition.partition,
                record.offset,
                record.key,
                record.value,
                self._passed(partition, record.offset),
            )
            for partition, held in records.items()
            if (last := self.committed(partition)) is not None
            for record in held
            if record.offset < last.offset and not {(partition, record.offset)} & (self.handlings.keys() | self.letters)
        ]

    def _passed(self, partition: TopicPartition, offset: int) -> str:
        first = next(one for one in self.commits[partition] if one.offset > offset)
        after = [
            f"{one.process} {one.what} at {one.since_s:.3f} s"
            for one in self.troubles
            if one.process == first.process and one.since_s >= first.at_s
        ]
        return f"{first.process} committed {first.offset} at {first.at_s:.3f} s" + (f"; {after[0]}" if after else "")

    def repeated(self, records: Mapping[TopicPartition, Sequence[Record]]) -> list[RepeatedRecord]:
        """Return what was handled more than once."""
        found = []
        for (partition, offset), handlings in sorted(self.handlings.items()):
            if len(handlings) > 1:
                record = next((one for one in records.get(partition, ()) if one.offset == offset), None)
                key, value = (None, None) if record is None else (record.key, record.value)
                reason = self._why(partition, offset, *handlings[-2:])
                found.append(RepeatedRecord(partition.topic, partition.partition, offset, key, value, len(handlings), reason))
        return found

    def _why(self, partition: TopicPartition, offset: int, first: Handling, again: Handling) -> str:
        """Return why a record was handled again after it had been handled."""
        passed = [one for one in self.commits.get(partition, ()) if one.offset > offset and one.at_s < again.began_s]
        if passed:
            one = passed[-1]
            return f"although {one.process} had committed {one.offset} at {one.at_s:.3f} s: {again.process} went back"
        between = [
            one
            for one in self.troubles
            if one.process in (None, first.process)
            and one.since_s <= again.began_s
            and (one.to_s is None or one.to_s >= first.began_s)
        ]
        own = [one for one in between if one.process is not None] or between
        if own:
            trouble = own[-1]
            who = trouble.process or "the cluster"
            return f"{who} {trouble.what} at {trouble.since_s:.3f} s, before a commit of {offset + 1}"
        if first.process == again.process:
            return f"{first.process} read it again at {again.began_s:.3f} s without a commit in between"
        return (
            f"a rebalance gave the partition to {again.process} before {first.process} committed {offset + 1}"
            f" (handled until {first.ended_s:.3f} s, again from {again.began_s:.3f} s)"
        )


def keys_of(args: Sequence[Any], kwargs: Mapping[str, Any], function: Any) -> list[tuple[Key, Key]]:
    """Return the records in the arguments of a handler: messages, aiokafka's records, and lists of them.

    With each, where it was before its first failure, if it is in a retry topic.
    """
    found: list[tuple[Key, Key]] = []
    for argument in (*args, *kwargs.values()):
        for one in argument if isinstance(argument, (list, tuple)) else (argument,):
            found += _keys_of_one(one)
    if not found:
        raise TypeError(
            f"no argument of {getattr(function, '__qualname__', function)} is a message or a list of messages: let handled="
            " name the function that receives the message"
        )
    return found


def _keys_of_one(one: Any) -> Iterator[tuple[Key, Key]]:
    topic, partition, offset = (getattr(one, name, None) for name in ("topic", "partition", "offset"))
    if callable(topic) and callable(partition) and callable(offset):
        key = TopicPartition(topic(), partition()), offset()
        origin = Origin.of(one, retried=callable(getattr(one, "headers", None)))
        yield key, (origin.partition, origin.offset)
    elif isinstance(topic, str) and isinstance(partition, int) and isinstance(offset, int):
        key = TopicPartition(topic, partition), offset
        yield key, key


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
