"""Arrow batches made of librdkafka's messages."""

from __future__ import annotations

import pyarrow as pa
import pytest
from confluent_kafka import Message
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from consumer_coord.spark.batches import Run, to_batch
from consumer_coord.spark.columns import source_schema
from tests.support.confluent_kafka.settings import OLDER

Headers = list[tuple[str, bytes | None]] | None


def _fetches_nothing(message: Message) -> list[tuple[str, bytes | None]]:
    raise AssertionError("librdkafka returns these headers")


def _column_of_headers(headers: list[Headers]) -> list[object]:
    schema: pa.Schema = to_arrow_schema(StructType([source_schema(True)["headers"]]), timezone="UTC")
    messages = [Message(topic="t", partition=0, offset=at, headers=each) for at, each in enumerate(headers)]
    batch = to_batch(messages, [Run("t", 0, len(messages))], schema, _fetches_nothing)
    batch.validate(full=True)
    found: list[object] = batch.column(0).to_pylist()
    return found


@pytest.mark.skipif(OLDER, reason="Python code can create messages since confluent-kafka 2.13")
@pytest.mark.parametrize(
    "headers",
    [
        [[("a", b"1"), ("b", b"2")], [("a", b"")]],
        [None, [("a", None), ("a", b"twice")], None, [("späť", b"\xff")]],
        [None] * 9,
        [[("a", b"1")]] * 17,
    ],
)
def test_headers_of_each_message_are_its_own(headers: list[Headers]) -> None:
    expected = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers]
    assert _column_of_headers(headers) == expected
