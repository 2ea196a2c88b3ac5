"""The columns of the source, which are the columns of Spark's own Kafka source."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from consumer_coord.errors import ConfigurationError

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}


def source_schema(include_headers: bool) -> StructType:
    """Return all columns, as Spark's own source has them."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS.items() if include_headers or name != "headers"])


def check_schema(schema: StructType, include_headers: bool) -> None:
    """Check a user's schema.

    Columns may be missing or in another order; raise ``ConfigurationError`` for any other difference.
    """
    offered = source_schema(include_headers)
    shown = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in offered)
    if not schema.fields:
        raise ConfigurationError(f"schema() names no column: the source has {shown}")
    for field in schema.fields:
        if field.name == "headers" and not include_headers:
            raise ConfigurationError("schema(): the column headers needs the option includeHeaders=true")
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise ConfigurationError(f"schema(): the source has no column {field.name!r}; it has {shown}")
        if str(kind.simpleString()) != field.dataType.simpleString():
            raise ConfigurationError(
                f"schema(): {field.name} has type {kind.simpleString()}, not {field.dataType.simpleString()}: use the column's"
                " own type in schema(), and convert with cast() in select()"
            )
        if not field.nullable:
            raise ConfigurationError(f"schema(): {field.name} must be nullable, as in the source's schema")
