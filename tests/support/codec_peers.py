"""Our messages in the types of kio and kafka-python, the two other codecs in Python, for comparison."""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
import uuid
import warnings
from collections.abc import Callable
from typing import Any

from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i32Timedelta, i64Timedelta

from consumer_coord.wire.apis import APIS
from consumer_coord.wire.schema import FieldSpec, Kind, Struct, fields_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses a deprecated function to read its schemas
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl

_KEYS = {message: api.key for api in APIS.values() for message in (api.request, api.response)}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class KioMessage:
    """kio's class for one version of a message, with methods to convert, encode and decode.

    Raise :class:`LookupError` if kio does not know the version.
    """

    def __init__(self, message: type[Struct], version: int) -> None:
        request = message.__name__.endswith("Request")
        try:
            self.type: Any = (load_request_schema if request else load_response_schema)(_KEYS[message], version)
        except UnknownEntity as error:
            raise LookupError(message, version) from error
        self._version = version
        self._write = entity_writer(self.type)
        self._read = entity_reader(self.type)

    def convert(self, value: Struct) -> Any:
        """Return the same value in kio's types."""
        return self._struct(self.type, value)

    def encode(self, converted: Any) -> bytes:
        """Return the bytes that kio encodes."""
        buffer = io.BytesIO()
        self._write(buffer, converted)
        return buffer.getvalue()

    def decode(self, body: bytes) -> Any:
        """Return the object that kio decodes."""
        return self._read(body, 0)[0]

    def _struct(self, kio_type: Any, value: Struct) -> Any:
        specs = [spec for spec in fields_of(type(value)) if self._version in spec.versions]
        hints = typing.get_type_hints(kio_type)
        converted = {}
        # kio removes the units from the names, but keeps the order of the schema.
        for spec, theirs in zip(specs, dataclasses.fields(kio_type), strict=True):
            assert spec.name.startswith(theirs.name.rstrip("_")), (spec.name, theirs.name)
            kafka_type = theirs.metadata.get("kafka_type")
            converted[theirs.name] = self._value(spec.kind, kafka_type, hints[theirs.name], getattr(value, spec.name))
        return kio_type(**converted)

    def _value(self, kind: Kind[Any], kafka_type: str | None, hint: Any, value: Any) -> Any:
        if value is None:
            return None
        if kind.struct is not None:
            return self._struct(_class_in(hint), value)
        if kind.element is not None:
            return tuple(self._value(kind.element, kafka_type, hint, element) for element in value)
        return _CONVERSIONS.get(kafka_type or "", lambda same: same)(value)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "error_code": ErrorCode,
    "timedelta_i32": lambda ms: i32Timedelta.parse(datetime.timedelta(milliseconds=ms)),
    "timedelta_i64": lambda ms: i64Timedelta.parse(datetime.timedelta(milliseconds=ms)),
    "datetime_i64": lambda ms: None if ms == -1 else _EPOCH + datetime.timedelta(milliseconds=ms),
    "records": Records,
    "uuid": lambda value: None if value == uuid.UUID(int=0) else value,
}


def _class_in(hint: Any) -> Any:
    """Return the dataclass inside a type like ``tuple[X, ...] | None``."""
    if dataclasses.is_dataclass(hint):
        return hint
    return next((found for part in typing.get_args(hint) if (found := _class_in(part)) is not None), None)


class KafkaPythonMessage:
    """kafka-python's class for one version of a message, with methods to convert, encode and decode.

    Raise :class:`LookupError` if kafka-python does not know the message or version.
    """

    def __init__(self, message: type[Struct], version: int) -> None:
        packages = (
            kafka.protocol.admin,
            kafka.protocol.consumer,
            kafka.protocol.metadata,
            kafka.protocol.producer,
            kafka.protocol.sasl,
        )
        found = [getattr(package, message.__name__) for package in packages if hasattr(package, message.__name__)]
        if not found or version > found[0].max_version:
            raise LookupError(message, version)
        self.type: Any = found[0]
        self._version = version

    def convert(self, value: Struct) -> Any:
        """Return the same value in kafka-python's types."""
        return self._struct(self.type, value)

    def encode(self, converted: Any) -> bytes:
        """Return the bytes that kafka-python encodes."""
        body: bytes = bytes(converted.encode(version=self._version))
        return body

    def decode(self, body: bytes) -> Any:
        """Return the object that kafka-python decodes."""
        return self.type.decode(body, version=self._version)

    def _struct(self, their_type: Any, value: Struct) -> Any:
        converted = {}
        fields = their_type._struct.fields
        for spec in fields_of(type(value)):
            field = getattr(value, spec.name)
            if self._version not in spec.versions or (spec.tag is not None and field == spec.default):
                continue
            name = spec.name
            if name.endswith("_authorized_operations") and name not in fields:
                name = "authorized_operations"  # kafka-python removes the prefix
            if name == "generation_id_or_member_epoch" and name not in fields:
                name = "generation_id"  # the name before version 6 of TxnOffsetCommit
            converted[name] = self._value(fields[name], spec, field)
        return their_type(version=self._version, **converted)

    def _value(self, theirs: Any, spec: FieldSpec, value: Any) -> Any:
        if value is None:
            return None
        if spec.kind.struct is not None:
            return self._struct(theirs.data_class, value)
        if spec.kind.element is not None:
            if spec.kind.element.struct is not None:
                return [self._struct(theirs.data_class, element) for element in value]
            return list(value)
        if spec.name.endswith("authorized_operations") and theirs._type_str == "bitfield":
            return {bit for bit in range(32) if value >> bit & 1}
        return value
