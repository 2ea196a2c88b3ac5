"""A fast way to decode long arrays whose elements have the same layout, such as arrays of partitions.

Partitions of a topic usually differ only in numbers: each has the same number of replicas, and empty metadata. So this module
reads the lengths inside the first element, and compares them with the bytes at the same places in all other elements, one byte
position at a time (``data[at:end:size]``). If all bytes are equal, every element has the size of the first element (by
induction), and one ``iter_unpack`` reads all elements. Otherwise the decoder reads the elements one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.wire.compiled_source import Source
from consumer_coord.wire.schema import BYTES, RECORDS, STRING, UUID, FieldSpec, Kind, Struct, fields_of

#: Minimum number of elements, because for shorter arrays the comparison takes longer than decoding one by one.
FEWEST = 16
_MOST_SHAPES = 64
_LONGEST_INNER_ARRAY = 16

#: The lengths of all fields of variable length, in order; None for a null field.
_Shape = tuple[int | None, ...]


@attrs.frozen
class _Length:
    """A length inside an element. ``gap`` is the number of bytes between the data of the previous length and this length."""

    gap: int
    width: int
    item_size: int


def is_eligible(struct_class: type[Struct], version: int) -> bool:
    """Return whether a structure has only numbers, strings, bytes and arrays of numbers, with at least one number."""
    kinds = [spec.kind for spec in _on_the_wire(struct_class, version)]
    return any(kind.format for kind in kinds) and all(
        kind.format or _is_text(kind) or _inner_format(kind) is not None for kind in kinds
    )


class AlikeElements:
    """Decodes arrays of one structure in one version, if all elements have the same layout."""

    def __init__(
        self, struct_class: type[Struct], twin: type[Any], version: int, flexible: bool, make_uuid: Callable[[bytes], Any]
    ) -> None:
        self._struct = struct_class
        self._twin = twin
        self._version = version
        self._flexible = flexible
        self._make_uuid = make_uuid
        self._fields = _on_the_wire(struct_class, version)
        self._lengths, self._tail = self._layout()
        self._builders: dict[_Shape, Callable[[bytes], tuple[Any, ...]]] = {}

    def __call__(self, data: bytes, position: int, count: int) -> tuple[tuple[Any, ...], int] | None:
        """Return the elements and the position after the array; None if the elements' layouts differ or bytes are missing."""
        shape: list[int | None] = []
        columns: list[int] = []
        at = position
        for length in self._lengths:
            at += length.gap
            columns += range(at, at + length.width)
            value = int.from_bytes(data[at : at + length.width], "big", signed=not self._flexible)
            if self._flexible:
                value -= 1
            if value > (_LONGEST_INNER_ARRAY if length.item_size else 0):
                return None
            shape.append(None if value < 0 else value)
            at += length.width + max(0, value) * length.item_size
        at += self._tail
        if self._flexible:
            columns.append(at - 1)
            if data[at - 1 : at] != b"\0":
                return None
        size = at - position
        end = position + count * size
        if end > len(data):
            return None
        for column in columns:
            values = data[column:end:size]
            if values.count(values[:1]) != count:
                return None
        build = self._builder(tuple(shape))
        return None if build is None else (build(data[position:end]), end)

    def _layout(self) -> tuple[list[_Length], int]:
        """Return the lengths in an element, and the number of bytes after the data of the last length, with the tag buffer."""
        lengths = []
        gap = 0
        for spec in self._fields:
            if spec.kind.format:
                gap += struct.calcsize(">" + spec.kind.format)
                continue
            inner = _inner_format(spec.kind)
            item_size = struct.calcsize(">" + inner) if inner else 0
            width = 1 if self._flexible else 2 if spec.kind is STRING else 4
            lengths.append(_Length(gap, width, item_size))
            gap = 0
        return lengths, gap + (1 if self._flexible else 0)

    def _builder(self, shape: _Shape) -> Callable[[bytes], tuple[Any, ...]] | None:
        """Return a function that creates elements of this shape; None if a null is not allowed or there are too many shapes."""
        known = self._builders.get(shape)
        if known is not None or len(self._builders) >= _MOST_SHAPES:
            return known
        with_length = [spec for spec in self._fields if not spec.kind.format]
        nulls = [spec for spec, length in zip(with_length, shape, strict=True) if length is None]
        if not all(self._version in spec.nullable for spec in nulls):
            return None
        build = self._builders[shape] = self._compile(shape)
        return build

    def _compile(self, shape: _Shape) -> Callable[[bytes], tuple[Any, ...]]:
        source = Source()
        name = self._struct.__name__
        source.names.update(Twin=self._twin, Real=self._struct, make_uuid=self._make_uuid)
        formats, variables, assignments = [], [], []
        remaining = iter(shape)
        for spec in fields_of(self._struct):
            if self._version not in spec.versions or spec.tag is not None:
                value = source.constant(spec.default)
            elif spec.kind.format:
                value = spec.name
                formats.append(spec.kind.format)
                variables.append(value)
                if spec.kind is UUID:
                    value = f"make_uuid({value})"
            else:
                length = next(remaining)
                formats.append(f"{1 if self._flexible else 2 if spec.kind is STRING else 4}x")
                value = "None" if length is None else {STRING: "''", BYTES: "b''", RECORDS: "b''"}.get(spec.kind, "()")
                if length:
                    items = [f"{spec.name}_{i}" for i in range(length)]
                    variables += items
                    formats.append(f"{length}{_inner_format(spec.kind)}")
                    value = f"({', '.join(items)},)"
            assignments.append(f"item.{spec.name} = {value}")
        layout = struct.Struct(">" + "".join(formats) + ("x" if self._flexible else ""))
        source.names["iter_unpack"] = layout.iter_unpack
        with source.block("def build(raw):"):
            source.line("items = []")
            with source.block(f"for {', '.join(variables)}, in iter_unpack(raw):"):
                source.line("item = Twin()")
                for assignment in assignments:
                    source.line(assignment)
                source.line("item.__class__ = Real")
                source.line("items.append(item)")
            source.line("return tuple(items)")
        return source.compile("build", f"<decoder of {name} v{self._version}, all of shape {shape}>")


def _on_the_wire(struct_class: type[Struct], version: int) -> list[FieldSpec]:
    return [spec for spec in fields_of(struct_class) if version in spec.versions and spec.tag is None]


def _is_text(kind: Kind[Any]) -> bool:
    return kind in (STRING, BYTES, RECORDS)


def _inner_format(kind: Kind[Any]) -> str | None:
    """Return the :mod:`struct` character of the elements of an array of numbers; None for any other type."""
    if kind.element is None or kind.element is UUID:
        return None
    return kind.element.format or None
