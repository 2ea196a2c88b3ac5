"""Turn a message's table into the source of a Python function that encodes one version of the message.

The function appends pieces to a list that the caller joins. Every sequence of fields of fixed size, together with the length of
the next field, is packed by one ``struct.pack``. The function refuses the same values as the ``write`` method that Kafka
generates: a value other than the default in a version without that field (unless the field is ignorable), and null in a version
that does not allow it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from consumer_coord.errors import UnsupportedVersionError
from consumer_coord.wire.compiled_source import Source
from consumer_coord.wire.schema import BYTES, MAX_STRING_BYTES, RECORDS, STRING, UUID, FieldSpec, Kind, Struct, fields_of
from consumer_coord.wire.varint import ONE_BYTE, write_tagged_fields, write_uvarint

#: ``encoder(message, append)`` passes the pieces of the encoding to ``append``, in order.
Encoder = Callable[[Any, Callable[[bytes], object]], None]

#: Arrays of numbers with at most this length (for example a partition's replicas) have a separate packer for each length.
_SHORT_ARRAY = 8


def compile_encoder(struct_class: type[Struct], version: int, flexible: bool) -> Encoder:
    """Compile the encoder of one version of a structure."""
    return _EncoderSource(version, flexible).build(struct_class)


class _EncoderSource(Source):
    """The source of an encoder. ``_pending`` has the values of fixed size that one ``pack`` can encode."""

    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__()
        self._version = version
        self._flexible = flexible
        self._pending: list[tuple[str, str]] = []
        self._level = 0
        self._write = "write"
        self.names.update(
            write_uvarint=write_uvarint,
            write_tagged_fields=write_tagged_fields,
            ONE_BYTE=ONE_BYTE,
            pack=struct.pack,
            no_such_field=_no_such_field,
            not_nullable=_not_nullable,
            string_too_long=_string_too_long,
        )

    def build(self, struct_class: type[Struct]) -> Encoder:
        with self.block("def encode(message, write):"):
            self._struct(struct_class, "message")
            self._flush()
            self.line("return None")
        function: Encoder = self.compile("encode", f"<encoder of {struct_class.__name__} v{self._version}>")
        return function

    def _struct(self, struct_class: type[Struct], source: str) -> None:
        """Write the code that encodes the structure in the variable ``source``; its last fields may still be pending."""
        owner = struct_class.__name__
        tagged = []
        for spec in fields_of(struct_class):
            value = f"{source}.{spec.name}"
            if self._version not in spec.versions:
                if not spec.ignorable:
                    self._refuse_unless_default(spec, value, owner)
            elif spec.tag is not None:
                tagged.append(spec)
            else:
                self._value(spec.kind, value, f"{owner}.{spec.name}", self._nullability(spec))
        if not self._flexible:
            return
        if tagged:
            self._tags(tagged, source, owner)
        else:
            self._pending.append(("x", ""))

    def _nullability(self, spec: FieldSpec) -> bool | None:
        """Return True if null is allowed, False if it is not allowed in this version, and None if no version allows it."""
        if self._version in spec.nullable:
            return True
        return None if spec.nullable.first > spec.nullable.last else False

    def _refuse_unless_default(self, spec: FieldSpec, value: str, owner: str) -> None:
        self.line(f"if {self._is_set(spec, value)}: raise no_such_field({f'{owner}.{spec.name}'!r}, {self._version})")

    def _is_set(self, spec: FieldSpec, value: str) -> str:
        """Return the condition that a field does not have its default."""
        if spec.default is None:
            return f"{value} is not None"
        if spec.kind.element is not None:
            return f"{value} is None or len({value})"
        return f"{value} != {self.constant(spec.default)}"

    def _tags(self, tagged: list[FieldSpec], source: str, owner: str) -> None:
        self._flush()
        fields = f"tagged{self._level}"
        self.line(f"{fields} = []")
        for spec in sorted(tagged, key=lambda s: s.tag or 0):
            value = f"{source}.{spec.name}"
            if spec.kind.struct is not None and spec.default is None:
                # As in Kafka, a structure that may be null is always written.
                block = self.same_block()
            else:
                block = self.block(f"if {self._is_set(spec, value)}:")
            with block:
                self._level += 1
                outer, self._write = self._write, f"parts{self._level}.append"
                self.line(f"parts{self._level} = []")
                self._value(spec.kind, value, f"{owner}.{spec.name}", self._nullability(spec), null_struct=b"\0")
                self._flush()
                parts, self._write = f"parts{self._level}", outer
                self._level -= 1
                self.line(f"{fields}.append(({spec.tag}, b''.join({parts})))")
        self.line(f"{self._write}(write_tagged_fields({fields}))")

    def _value(self, kind: Kind[Any], value: str, name: str, nullable: bool | None, null_struct: bytes = b"\xff") -> None:
        if kind is UUID:
            self._pending.append(("16s", f"{value}.bytes"))
        elif kind.format:
            self._pending.append((kind.format, value))
        elif kind in (STRING, BYTES, RECORDS):
            encode = ".encode()" if kind is STRING else ""
            length = "len(raw) + 1" if self._flexible else "len(raw)"
            if nullable is None:
                self.line(f"raw = {value}{encode}")
                self.line(f"n = {length}")
            else:
                self.line(f"raw = {value}")
                with self.block("if raw is None:"):
                    self._null(name, nullable)
                    self.line("raw = b''")
                with self.block("else:"):
                    if encode:
                        self.line("raw = raw.encode()")
                    self.line(f"n = {length}")
            self._flush_length("h" if kind is STRING else "i", name)
            self.line(f"{self._write}(raw)")
        elif kind.struct is not None:
            self._nested_struct(kind.struct, value, nullable, null_struct)
        else:
            assert kind.element is not None
            self._array(kind.element, value, name, nullable)

    def _null(self, name: str, nullable: bool) -> None:
        if nullable:
            self.line("n = 0" if self._flexible else "n = -1")
        else:
            self.line(f"raise not_nullable({name!r}, {self._version})")

    def _nested_struct(self, struct_class: type[Struct], value: str, nullable: bool | None, null: bytes) -> None:
        self._level += 1
        inner = f"struct{self._level}"
        self.line(f"{inner} = {value}")
        if nullable:
            self._flush()
            with self.block(f"if {inner} is None:"):
                self.line(f"{self._write}({null!r})")
            with self.block("else:"):
                self._pending.append(("b", "1"))
                self._struct(struct_class, inner)
                self._flush()
        else:
            self._struct(struct_class, inner)
        self._level -= 1

    def _array(self, element: Kind[Any], value: str, name: str, nullable: bool | None) -> None:
        self._level += 1
        items, item = f"items{self._level}", f"item{self._level}"
        self.line(f"{items} = {value}")
        length = f"len({items}) + 1" if self._flexible else f"len({items})"
        if nullable is None:
            self.line(f"n = {length}")
        else:
            with self.block(f"if {items} is None:"):
                self._null(name, nullable)
                self.line(f"{items} = ()")
            with self.block("else:"):
                self.line(f"n = {length}")
        if element.format and element is not UUID:
            self._numbers(element.format, items, name)
        else:
            self._flush_length("i", name)
            with self.block(f"for {item} in {items}:"):
                if element.struct is not None:
                    self._struct(element.struct, item)
                else:
                    self._value(element, item, name, None)
                self._flush()
        self._level -= 1

    def _numbers(self, fmt: str, items: str, name: str) -> None:
        """Write the code that packs an array of numbers; a short array is packed with its length and the pending values."""
        pending = list(self._pending)
        prefix = "".join(f for f, _ in pending) + ("B" if self._flexible else "i")
        packers = f"packers_{prefix.replace('?', 'o')}_{fmt.replace('?', 'o')}"
        least = 1 if self._flexible else 0
        self.names[packers] = [
            struct.Struct(f">{prefix}{max(0, n - least)}{fmt}").pack for n in range(_SHORT_ARRAY + least + 1)
        ]
        values = "".join(f"{value}, " for f, value in pending if f != "x")
        in_range = f"n <= {_SHORT_ARRAY + least}" if self._flexible else f"0 <= n <= {_SHORT_ARRAY}"
        with self.block(f"if {in_range}:"):
            self.line(f"{self._write}({packers}[n]({values}n, *{items}))")
        with self.block("else:"):
            self._flush_length("i", name)
            self.line(f"{self._write}(pack(f'>{{len({items})}}{fmt}', *{items}))")

    def _flush_length(self, classic: str, name: str) -> None:
        """Write the code that packs the pending values together with the length in ``n``."""
        if not self._flexible:
            self._pending.append((classic, "n"))
            self._flush()
            return
        pending = list(self._pending)
        with self.block("if n < 128:"):
            self._pending.append(("B", "n"))
            self._flush()
        with self.block("else:"):
            if classic == "h":
                self.line(f"if n > {MAX_STRING_BYTES + 1}: raise string_too_long({name!r}, n - 1)")
            self._pending = pending
            self._flush()
            self.line(f"{self._write}(write_uvarint(n))")

    def _flush(self) -> None:
        if not self._pending:
            return
        fmt = "".join(f for f, _ in self._pending)
        values = ", ".join(value for f, value in self._pending if f != "x")
        self._pending = []
        if fmt == "x":
            self.line(f"{self._write}(b'\\0')")
        elif fmt == "B":
            self.line(f"{self._write}(ONE_BYTE[{values}])")
        else:
            name = "pack_" + fmt.replace("?", "o")
            self.names[name] = struct.Struct(">" + fmt).pack
            self.line(f"{self._write}({name}({values}))")


def _no_such_field(name: str, version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"version {version} has no {name}, but the field's value is not the default")


def _not_nullable(name: str, version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"{name} may not be null in version {version}")


def _string_too_long(name: str, length: int) -> ValueError:
    return ValueError(f"{name} has {length} bytes in UTF-8; Kafka allows at most {MAX_STRING_BYTES}")
