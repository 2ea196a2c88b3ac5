"""Turn a message's table into the source of a Python function that decodes one version of the message.

The source is flat: nested structures are decoded in place, and every sequence of fields of fixed size, together with the length
of the next field, is read by one ``struct.unpack_from``. Three rules make the function safe for any input:

* A slice never raises: ``data[a:b]`` ends at the end of the data, so a length cannot cost more than the input itself. The
  position advances by the claimed length. If the position is then after the end, the next read fails (``IndexError`` or
  ``struct.error``), and the function's caller checks the last position.
* A count is compared with the remaining bytes, divided by the smallest size of an element, before anything is allocated.
* There is no recursion, so the depth of nested structures is that of the table.

A decoded object is first created with a *twin* class, which has the same slots as the real class, but is not frozen. After its
fields are set, the object gets the real class. This takes a quarter of the time of a frozen class's ``__init__``.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable
from typing import Any

from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire.compiled_source import Source
from consumer_coord.wire.schema import (
    BYTES,
    MAX_ELEMENTS,
    MAX_STRING_BYTES,
    RECORDS,
    STRING,
    UUID,
    ZERO_UUID,
    FieldSpec,
    Kind,
    Struct,
    fields_of,
    min_size_of_element,
)
from consumer_coord.wire.uniform_arrays import FEWEST, AlikeElements, is_eligible
from consumer_coord.wire.varint import check_tag_count, read_uvarint, skip_tagged_fields

#: ``decoder(data, position) -> (message, position after the message)``. The caller must check this position, because it may be
#: after the end of the data.
Decoder = Callable[[Any, int], tuple[Any, int]]

#: Exceptions that a decoder may raise on malformed input, in addition to :class:`MalformedMessageError`.
LOW_LEVEL_ERRORS = (IndexError, struct.error, UnicodeDecodeError)

_TWINS: dict[type[Struct], type[Any]] = {}


#: ``decoder(data, position, take) -> (message, position after the message)``
RowsDecoder = Callable[[bytes, int, Callable[[Any], object]], tuple[Any, int]]


def compile_decoder(struct_class: type[Struct], version: int, flexible: bool, views: bool = False) -> Decoder:
    """Compile the decoder of one version of a structure.

    The decoder reads bytes. With ``views``, the decoder reads a memoryview, and decoded records are slices of the memoryview.
    """
    return _DecoderSource(version, flexible, views=views).build(struct_class)


def compile_rows_decoder(struct_class: type[Struct], version: int, flexible: bool, rows: str) -> RowsDecoder:
    """Compile a decoder that passes the elements of the array ``rows`` to ``take`` one by one, and leaves the array empty.

    So even a long message needs only the memory of one row, apart from the data that ``take`` keeps.
    """
    return _DecoderSource(version, flexible, rows).build(struct_class)


class _DecoderSource(Source):
    """The source of a decoder. ``_pending`` has the reads of fixed size that one ``unpack_from`` can do."""

    def __init__(self, version: int, flexible: bool, rows: str | None = None, views: bool = False) -> None:
        super().__init__()
        self._views = views
        self._rows = None if rows is None else f"message.{rows}"
        self._version = version
        self._flexible = flexible
        self._pending: list[tuple[str, str]] = []
        self._level = 0
        self.names.update(
            read_uvarint=read_uvarint,
            skip_tagged_fields=skip_tagged_fields,
            check_tag_count=check_tag_count,
            is_null=_is_null,
            too_many=_too_many,
            too_long=_too_long,
            string_too_long=_string_too_long,
            make_uuid=_make_uuid,
            unpack_from=struct.unpack_from,
        )

    def build(self, struct_class: type[Struct]) -> Callable[..., tuple[Any, int]]:
        with self.block("def decode(data, pos):" if self._rows is None else "def decode(data, pos, take):"):
            self.line("size = len(data)")
            self._struct(struct_class, "message")
            self.line("return message, pos")
        by_rows = "" if self._rows is None else ", row by row"
        return self.compile("decode", f"<decoder of {struct_class.__name__} v{self._version}{by_rows}>")

    def _struct(self, struct_class: type[Struct], target: str) -> None:
        """Write the code that decodes a structure into the variable ``target``."""
        twin, real = f"Twin_{struct_class.__name__}", struct_class.__name__
        self.names[twin] = _twin(struct_class)
        self.names[real] = struct_class
        self.line(f"{target} = {twin}()")
        tagged = []
        for spec in fields_of(struct_class):
            place = f"{target}.{spec.name}"
            if self._version not in spec.versions:
                self.line(f"{place} = {self.constant(spec.default)}")
            elif spec.tag is not None:
                self.line(f"{place} = {self.constant(spec.default)}")
                tagged.append(spec)
            else:
                self._value(spec.kind, place, nullable=self._version in spec.nullable)
        if self._flexible:
            self._tags(target, tagged)
        self._flush()
        self.line(f"{target}.__class__ = {real}")

    def _tags(self, target: str, tagged: list[FieldSpec]) -> None:
        self._read("B", "tags")
        self._flush()
        with self.block("if tags:"):
            if not tagged:
                self.line("pos = skip_tagged_fields(data, pos - 1)")
                return
            tags = f"tags{self._level}"
            self.line(f"{tags}, pos = read_uvarint(data, pos - 1)")
            self.line(f"check_tag_count({tags}, data, pos)")
            end = f"end{self._level}"
            with self.block(f"for _ in range({tags}):"):
                self.line("tag, pos = read_uvarint(data, pos)")
                self.line("n, pos = read_uvarint(data, pos)")
                self.line(f"{end} = pos + n")
                keyword = "if"
                for spec in tagged:
                    with self.block(f"{keyword} tag == {spec.tag}:"):
                        self._level += 1
                        self._value(spec.kind, f"{target}.{spec.name}", nullable=self._version in spec.nullable, tagged=True)
                        self._flush()
                        self._level -= 1
                    keyword = "elif"
                self.line(f"if pos > {end}: raise too_long({target}, tag, pos, {end})")
                self.line(f"pos = {end}")

    def _value(self, kind: Kind[Any], place: str, *, nullable: bool, tagged: bool = False) -> None:
        """Write the code that decodes one value into ``place``, a variable or an attribute."""
        if kind is UUID:
            self._read("16s", "raw")
            self._flush()
            self.line(f"{place} = make_uuid(raw)")
        elif kind.format:
            self._read(kind.format, place)
        elif kind in (STRING, BYTES, RECORDS):
            self._length("h" if kind is STRING else "i", place if kind is STRING else None)
            with self._null_check(place, nullable):
                self.line("start = pos")
                self.line("pos += n - 1" if self._flexible else "pos += n")
                raw = "bytes(data[start:pos])" if self._views and kind is not RECORDS else "data[start:pos]"
                self.line(f"{place} = {raw}" + (".decode()" if kind is STRING else ""))
        elif kind.struct is not None:
            self._nested_struct(kind.struct, place, nullable, tagged)
        else:
            assert kind.element is not None
            self._length("i")
            with self._null_check(place, nullable):
                self._array(kind.element, place)

    def _nested_struct(self, struct_class: type[Struct], place: str, nullable: bool, tagged: bool) -> None:
        self._level += 1
        inner = f"struct{self._level}"
        if nullable:
            self._read("b", "present")
            self._flush()
            # The first byte of a null structure is -1, or 0 in a tagged field.
            with self.block(f"if present < {int(tagged)}:"):
                self.line(f"{place} = None")
            with self.block("else:"):
                self._struct(struct_class, inner)
                self.line(f"{place} = {inner}")
        else:
            self._struct(struct_class, inner)
            self.line(f"{place} = {inner}")
        self._level -= 1

    def _array(self, element: Kind[Any], place: str) -> None:
        """Write the code that decodes an array; ``n`` is the number of elements, plus one in the flexible encoding."""
        if self._flexible:
            self.line("n -= 1")
        size = min_size_of_element(element, self._version, self._flexible)
        remaining = "size - pos" if size == 1 else f"(size - pos) // {size}"
        self.line(f"if n > {MAX_ELEMENTS} or n > {remaining}: raise too_many({place!r}, n, pos, size)")
        if element.format and element is not UUID:
            self.line(f"{place} = unpack_from(f'>{{n}}{element.format}', data, pos)")
            self.line(f"pos += n * {size}")
            return
        if element.struct is None or place == self._rows or self._views or not is_eligible(element.struct, self._version):
            self._one_by_one(element, place)
            return
        alike = f"alike_{element.struct.__name__}"
        self.names[alike] = AlikeElements(element.struct, _twin(element.struct), self._version, self._flexible, _make_uuid)
        self.line(f"found = {alike}(data, pos, n) if n >= {FEWEST} else None")
        with self.block("if found:"):
            self.line(f"{place}, pos = found")
        with self.block("else:"):
            self._one_by_one(element, place)

    def _one_by_one(self, element: Kind[Any], place: str) -> None:
        """Write the code that decodes ``n`` elements of any kind, one by one."""
        self._level += 1
        items, item = f"items{self._level}", f"item{self._level}"
        keep = "take" if place == self._rows else f"{items}.append"
        self.line(f"{items} = []")
        with self.block("for _ in range(n):"):
            if element.struct is not None:
                self._struct(element.struct, item)
            else:
                self._value(element, item, nullable=False)
                self._flush()
            self.line(f"{keep}({item})")
        self.line(f"{place} = tuple({items})")
        self._level -= 1

    def _length(self, classic: str, string: str | None = None) -> None:
        """Write the code that reads a length into ``n``.

        In the flexible encoding, ``n`` is the length plus one, or 0 for null; otherwise a negative ``n`` is null. ``string`` is
        the place of a string, whose length Kafka limits in the flexible encoding, too.
        """
        self._read("B" if self._flexible else classic, "n")
        self._flush()
        if self._flexible:
            with self.block("if n > 127:"):
                self.line("n, pos = read_uvarint(data, pos - 1)")
                if string is not None:
                    self.line(f"if n > {MAX_STRING_BYTES + 1}: raise string_too_long({string!r}, n)")

    def _null_check(self, place: str, nullable: bool) -> Any:
        null = "not n" if self._flexible else "n < 0"
        if not nullable:
            self.line(f"if {null}: raise is_null({place!r}, pos)")
            return self.same_block()
        self.line(f"if {null}: {place} = None")
        return self.block("else:")

    def _read(self, fmt: str, target: str) -> None:
        self._pending.append((fmt, target))

    def _flush(self) -> None:
        """Write one line that does all pending reads."""
        if not self._pending:
            return
        fmt = "".join(f for f, _ in self._pending)
        targets = ", ".join(target for _, target in self._pending)
        self._pending.clear()
        if fmt == "B":
            self.line(f"{targets} = data[pos]")
            self.line("pos += 1")
            return
        layout = struct.Struct(">" + fmt)
        name = "unpack_" + fmt.replace("?", "o")
        self.names[name] = layout.unpack_from
        self.line(f"{targets}{'' if ',' in targets else ','} = {name}(data, pos)")
        self.line(f"pos += {layout.size}")


def _twin(struct_class: type[Struct]) -> type[Any]:
    """Return a class that is not frozen, and whose instances can change their class to ``struct_class``."""
    twin = _TWINS.get(struct_class)
    if twin is None:
        body: dict[str, Any] = {name: getattr(object, name) for name in ("__init__", "__setattr__", "__delattr__")}
        body["__slots__"] = tuple(spec.name for spec in fields_of(struct_class))
        twin = _TWINS[struct_class] = type.__new__(type(Struct), struct_class.__name__, (Struct,), body)
    return twin


@functools.lru_cache(128)
def _make_uuid(raw: bytes) -> uuid.UUID:
    """Return a UUID; the results are cached, because responses name the same topics repeatedly."""
    return uuid.UUID(bytes=raw) if any(raw) else ZERO_UUID


def _is_null(place: str, position: int) -> MalformedMessageError:
    return MalformedMessageError(f"{_field(place)} must not be null, but is null before byte {position}")


def _too_many(place: str, count: int, position: int, size: int) -> MalformedMessageError:
    if count > MAX_ELEMENTS:
        return MalformedMessageError(f"{_field(place)} would have {count} elements; Kafka allows at most {MAX_ELEMENTS}")
    return MalformedMessageError(f"{count} elements of {_field(place)} do not fit: only {size - position} bytes are left")


def _too_long(message: object, tag: int, position: int, end: int) -> MalformedMessageError:
    return MalformedMessageError(
        f"tagged field {tag} of {type(message).__name__} ends at byte {position}, but should end at byte {end}"
    )


def _string_too_long(place: str, length: int) -> MalformedMessageError:
    return MalformedMessageError(f"{_field(place)} would have {length - 1} bytes; Kafka allows at most {MAX_STRING_BYTES}")


def _field(place: str) -> str:
    return place.rpartition(".")[2]
