"""The vocabulary in which ``consumer_coord.wire.messages`` describes Kafka's message schemas.

A message is a class that derives from :class:`Struct`, which makes it a frozen attrs class. Each field repeats the attributes
of Kafka's JSON schema (``clients/src/main/resources/common/message``) in the same words: type, versions, nullable versions,
tag, default, ignorable. This module does not read or write bytes. :mod:`.decoder` and :mod:`.encoder` turn a table into Python
source, once for each message and version.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast, dataclass_transform, overload

from consumer_coord import lazy_attrs as attrs

T = TypeVar("T")

_SPEC = "consumer_coord.wire"

ZERO_UUID = uuid.UUID(int=0)

#: The maximum length of a string in UTF-8, in bytes; Kafka also applies this limit to compact strings.
MAX_STRING_BYTES = 0x7FFF

#: The maximum number of elements of an array; Kafka 4.4 and later have this limit.
MAX_ELEMENTS = 1_000_000


@attrs.frozen
class Versions:
    """A range of versions in Kafka's notation: ``"3"``, ``"3-7"``, ``"3+"`` or ``"none"``."""

    first: int
    last: int

    @classmethod
    @functools.cache
    def parse(cls, text: str) -> Versions:
        """Parse Kafka's notation."""
        if text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), 0x7FFF)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __iter__(self) -> Any:
        return iter(range(self.first, self.last + 1))


@attrs.frozen(eq=False)
class Kind(Generic[T]):
    """A type of Kafka's schema language.

    ``format`` is the format in :mod:`struct` of a type of fixed size. ``element`` is set for arrays, ``struct`` for structures.
    """

    name: str
    default: Any
    format: str = ""
    element: Kind[Any] | None = None
    struct: type[Struct] | None = None


BOOL: Kind[bool] = Kind("bool", False, "?")
INT8: Kind[int] = Kind("int8", 0, "b")
INT16: Kind[int] = Kind("int16", 0, "h")
UINT16: Kind[int] = Kind("uint16", 0, "H")
INT32: Kind[int] = Kind("int32", 0, "i")
INT64: Kind[int] = Kind("int64", 0, "q")
FLOAT64: Kind[float] = Kind("float64", 0.0, "d")
UUID: Kind[uuid.UUID] = Kind("uuid", ZERO_UUID, "16s")
STRING: Kind[str] = Kind("string", "")
BYTES: Kind[bytes] = Kind("bytes", b"")
RECORDS: Kind[bytes] = Kind("records", None)


def kind_of(what: Kind[T] | type[T]) -> Kind[T]:
    """Return the kind of a structure's class; return a kind unchanged."""
    if isinstance(what, Kind):
        return what
    return Kind(what.__name__, attrs.NOTHING, struct=cast("type[Struct]", what))


def array(element: Kind[T] | type[T]) -> Kind[Sequence[T]]:
    """Return the kind of an array. An array is decoded to a tuple, and any sequence can be encoded."""
    inner = kind_of(element)
    return Kind(f"[]{inner.name}", (), element=inner)


@attrs.frozen(eq=False)
class FieldSpec:
    """The attributes of one field of a :class:`Struct`, as in Kafka's JSON schema."""

    name: str
    kind: Kind[Any]
    versions: Versions
    nullable: Versions
    tag: int | None
    ignorable: bool
    default: Any


@overload
def field(
    kind: Kind[T] | type[T],
    versions: str = ...,
    *,
    default: T = ...,
    tag: int | None = ...,
    ignorable: bool = ...,
) -> T: ...


@overload
def field(
    kind: Kind[T] | type[T],
    versions: str = ...,
    *,
    nullable: str,
    default: T | None = ...,
    tag: int | None = ...,
    ignorable: bool = ...,
) -> T | None: ...


def field(
    kind: Kind[Any] | type[Any],
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: Any = attrs.NOTHING,
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    """Define one field of a table.

    ``versions`` is the range of versions that have the field; ``nullable`` is the range of versions in which the field may be
    None. A field with a ``tag`` is tagged (KIP-482) in all its versions. In a version without the field, a decoded message has
    the default, and encoding another value raises an error unless the field is ``ignorable``.
    """
    the_kind = kind_of(kind)
    if default is attrs.NOTHING:
        default = the_kind.default
    spec = (the_kind, Versions.parse(versions), Versions.parse(nullable), tag, ignorable)
    if default is attrs.NOTHING:
        assert the_kind.struct is not None
        return attrs.field(factory=the_kind.struct, metadata={_SPEC: spec})
    return attrs.field(default=default, metadata={_SPEC: spec})


def fields_of(struct: type[Struct]) -> Sequence[FieldSpec]:
    """Return the fields of a structure, in the order in which they are encoded."""
    specs = []
    for attribute in attrs.fields(cast("type[attrs.AttrsInstance]", struct)):
        kind, versions, nullable, tag, ignorable = attribute.metadata[_SPEC]
        default = attribute.default
        if default is attrs.NOTHING:
            default = kind.struct()
        specs.append(FieldSpec(attribute.name, kind, versions, nullable, tag, ignorable, default))
    return specs


@attrs.frozen
class MessageSpec:
    """The versions of a message in its table, and the flexible versions among them (KIP-482)."""

    versions: Versions
    flexible: Versions


_MESSAGES: dict[type[Struct], MessageSpec] = {}


@dataclass_transform(frozen_default=True)
class _StructType(type):
    """Makes every subclass of :class:`Struct` a frozen attrs class, and records the versions of messages."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], *, versions: str | None = None, flexible: str = "none"
    ) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, body)
        struct = attrs.frozen_class(cls, name, bases, body)
        if versions is not None:
            _MESSAGES[struct] = MessageSpec(Versions.parse(versions), Versions.parse(flexible))
        return struct


@attrs.frozen
class Struct(metaclass=_StructType):
    """Base of all messages and of the structures inside them. A message's class states its valid and flexible versions.

    This class has the slot for weak references, so that a message's class and the mutable twin class of the decoder have the
    same layout.
    """


def message_spec(struct: type[Struct]) -> MessageSpec:
    """Return the versions of a message; raise :class:`KeyError` for the class of a structure inside a message."""
    return _MESSAGES[struct]


def min_size(struct: type[Struct], version: int, flexible: bool) -> int:
    """Return the minimum size of an encoded structure, in bytes, which limits the length of an array of such structures."""
    size = 1 if flexible else 0
    for spec in fields_of(struct):
        if version in spec.versions and spec.tag is None:
            size += _min_size_of(spec.kind, version, flexible, version in spec.nullable)
    return size


def min_size_of_element(kind: Kind[Any], version: int, flexible: bool) -> int:
    """Return the minimum size of one element of an array, in bytes."""
    return _min_size_of(kind, version, flexible, False)


def _min_size_of(kind: Kind[Any], version: int, flexible: bool, nullable: bool) -> int:
    if kind.format:
        return 16 if kind is UUID else {"?": 1, "b": 1, "h": 2, "H": 2, "i": 4, "I": 4}.get(kind.format, 8)
    if kind.struct is not None:
        return 1 if nullable else min_size(kind.struct, version, flexible)
    if flexible:
        return 1
    return 2 if kind is STRING else 4
