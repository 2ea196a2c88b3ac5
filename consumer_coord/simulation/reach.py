"""What a simulation run reaches: events in combination with the phases of a member and the faults of that moment.

:mod:`consumer_coord.simulation.search` keeps runs that reach something new. An event is a broker's response (by its API), an
error code in a response, a rebalance callback, an exception that a call of the application raised, or the begin or end of a
fault. The phase of a member is its state in the group, and the phases of its partitions (a set). A fault belongs to the
moment from its begin until its end, or for :data:`AFTER_S` if it has no end.

Collecting only reads: it sets no timer and draws nothing, so a run has the same timeline with or without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final, Protocol

from consumer_coord.consumer.partitions import Partition, Phase
from consumer_coord.errors import MalformedMessageError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.simulation.consumer import SimulatedConsumer
from consumer_coord.simulation.loop import VirtualTimeLoop
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.apis import APIS
from consumer_coord.wire.codec import decode_response
from consumer_coord.wire.schema import Struct, fields_of

#: For how long a fault without an end counts as present, in virtual seconds.
AFTER_S: Final = 1.0
_PHASES: Final = {phase: 1 << number for number, phase in enumerate(Phase)}
_NONE: Final = (None, 0)
_FETCH: Final = 1
#: A longer response to Fetch has records, and so hardly an error.
_LONGEST_ERROR: Final = 200


class Observed(Protocol):
    """What is read of a member's process."""

    name: str
    coordinator: ConsumerCoordinator | None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""

    @property
    def consumer(self) -> SimulatedConsumer | None:
        """The consumer, once it was created."""


class Reach:
    """Collects the events of one run, each with the phase of the member and the faults of its moment."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        #: Events with the phases of the member and the faults of the moment.
        self._events: set[tuple[str, int, str, tuple[str, ...]]] = set()
        #: Kind of fault -> how many have begun and not ended; and until when one still counts that has ended, or has no end.
        self._lasting: dict[str, int] = {}
        self._until: dict[str, float] = {}
        #: The faults of the moment, and the virtual time until which they are these.
        self._present: tuple[str, ...] = ()
        self._present_until = 0.0
        #: Member -> its table of partitions, and their phases.
        self._tables: dict[str, tuple[Mapping[TopicPartition, Partition] | None, int]] = {}
        #: (API, version, response without correlation id) -> the error codes in it.
        self._errors: dict[tuple[int, int, bytes], tuple[int, ...]] = {}

    def meets(self, kind: str, members: Iterable[Observed]) -> None:
        """Record in which phases a fault finds the members that run; call this before it begins."""
        self._record_fault(f"begins {kind}", members)

    def begins(self, kind: str, *, lasts: bool) -> None:
        """Record that a fault began."""
        if lasts:
            self._lasting[kind] = self._lasting.get(kind, 0) + 1
        self._until[kind] = self._loop.moment + AFTER_S
        self._present_until = 0.0

    def ends(self, kind: str, members: Iterable[Observed]) -> None:
        """Record that a fault ended."""
        self._record_fault(f"ends {kind}", members)
        self._lasting[kind] -= 1
        self._until[kind] = self._loop.moment + AFTER_S
        self._present_until = 0.0

    def _record_fault(self, what: str, members: Iterable[Observed]) -> None:
        for member in members:
            if member.alive:
                self.happened(member, what)

    def happened(self, member: Observed, what: str) -> None:
        """Record an event of one member."""
        self._events.add((*self._phase(member), what, self._faults()))

    def answered(self, member: Observed, request: bytes, answer: bytes) -> None:
        """Record a broker's response, as the member receives it."""
        state, phases = self._phase(member)
        api_key, version = int.from_bytes(request[:2], "big"), int.from_bytes(request[2:4], "big")
        name, faults = APIS[api_key].name, self._faults()
        self._events.add((state, phases, name, faults))
        if api_key == _FETCH and len(answer) > _LONGEST_ERROR:
            return
        said = (api_key, version, answer[4:])
        codes = self._errors.get(said)
        if codes is None:
            codes = self._errors[said] = _error_codes(api_key, version, answer)
        for code in codes:
            self._events.add((state, phases, f"{name} {code}", faults))

    def _phase(self, member: Observed) -> tuple[str, int]:
        """Return the state of a member in its group, and the phases of its partitions as bits."""
        core, consumer = member.coordinator, member.consumer
        if core is None or consumer is None:
            return ("", 0)
        table = consumer.engine.table
        # The engine replaces the table as a whole.
        known, phases = self._tables.get(member.name, _NONE)
        if known is not table:
            phases = 0
            for one in table.values():
                phases |= _PHASES[one.phase]
            self._tables[member.name] = (table, phases)
        return (core.protocol.state.value, phases)

    def _faults(self) -> tuple[str, ...]:
        moment = self._loop.moment
        if moment >= self._present_until:
            self._until = {kind: until for kind, until in self._until.items() if until > moment}
            lasting = [kind for kind, count in self._lasting.items() if count]
            self._present = tuple(sorted({*lasting, *self._until}))
            self._present_until = min(self._until.values(), default=float("inf"))
        return self._present

    @property
    def features(self) -> frozenset[int]:
        """What was reached, as numbers that are the same in each process: each event with its phases, and with each fault.

        The phases of the partitions count one by one.
        """
        found: set[tuple[str, ...]] = set()
        for state, phases, what, faults in self._events:
            of_partitions = _names(phases)
            found.add((state, *of_partitions, what))
            for fault in faults:
                found.add((state, what, fault))
                found.update([(phase, what, fault) for phase in of_partitions])
        return frozenset(map(_number, found))


@cache
def _names(phases: int) -> tuple[str, ...]:
    return tuple(phase.value for phase, bit in _PHASES.items() if phases & bit)


@cache
def _number(feature: tuple[str, ...]) -> int:
    return zlib.crc32("|".join(feature).encode())


def _error_codes(api_key: int, version: int, answer: bytes) -> tuple[int, ...]:
    """Return the error codes in a response; none if it cannot be decoded, which a fault may cause."""
    response = APIS[api_key].response
    if _coded(response) == ((), (), ()):
        return ()
    try:
        message = decode_response(response, version, answer)[1]
    except MalformedMessageError:
        return ()
    return tuple(sorted(set(_codes(message)) - {0}))


def _codes(message: Struct) -> Iterator[int]:
    numbers, structs, arrays = _coded(type(message))
    for name in numbers:
        yield getattr(message, name)
    for name in structs:
        if (value := getattr(message, name)) is not None:
            yield from _codes(value)
    for name in arrays:
        for row in getattr(message, name) or ():
            yield from _codes(row)


@cache
def _coded(struct: type[Struct]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names of the error codes of a structure, and of its structures and arrays of structures that have some."""
    numbers, structs, arrays = [], [], []
    for spec in fields_of(struct):
        inside, element = spec.kind.struct, spec.kind.element
        if spec.name.endswith("error_code"):
            numbers.append(spec.name)
        elif inside is not None and _coded(inside) != ((), (), ()):
            structs.append(spec.name)
        elif element is not None and element.struct is not None and _coded(element.struct) != ((), (), ()):
            arrays.append(spec.name)
    return tuple(numbers), tuple(structs), tuple(arrays)
