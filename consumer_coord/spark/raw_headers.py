"""Headers with keys that are not UTF-8, which librdkafka's Python client cannot return: fetched and decoded here.

One record is fetched again, so this is for the few records that need it.  As in Java, bytes that are no UTF-8 become U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import attrs
import pyarrow as pa

from consumer_coord.config import parse
from consumer_coord.errors import MalformedMessageError, RetriableError
from consumer_coord.retry import Deadline, retrying
from consumer_coord.runtime.background import Runtime
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.log import FetchPartition, FetchRequest, FetchTopic

Headers: TypeAlias = list[tuple[str, bytes | None]]

#: Bytes before the records of a batch, and where in them its fields are (record format 2).
_BATCH_HEADER = 61
_LENGTH_AT, _MAGIC_AT, _ATTRIBUTES_AT, _COUNT_AT = 8, 16, 21, 57
_CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
#: How Java begins snappy data that it cuts into chunks.
_XERIAL = b"\x82SNAPPY\x00"
_FETCH_BYTES = 1 << 20


def fetch_headers(settings: Mapping[str, Any], partition: TopicPartition, offset: int, timeout_ms: float) -> Headers:
    """Return the headers of one record.

    ``settings``: those of the worker's consumer, callbacks included.  Raises ``RetriableError`` when the partition's leader
    does not answer in time, and ``MalformedMessageError`` when it has no such record.
    """
    runtime = Runtime.shared()
    client = parse(settings).client

    async def fetch() -> bytes:
        deadline = Deadline.after(timeout_ms)
        cluster = runtime.clusters.acquire(client)
        watch = cluster.watch(frozenset({partition.topic}), lambda _: None)
        try:
            async for attempt in retrying(cluster.backoff, deadline, what="Fetch"):
                with attempt:
                    topic = (await cluster.refresh(deadline)).topics.get(partition.topic)
                    leader = None if topic is None else cluster.metadata.brokers.get(topic.leaders[partition.partition])
                    if topic is None or leader is None:
                        raise RetriableError(f"{partition} has no leader now")
                    rows = [
                        FetchPartition(partition=partition.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
                    ]
                    request = FetchRequest(
                        max_wait_ms=500,
                        min_bytes=1,
                        isolation_level=0,
                        session_id=0,
                        topics=[FetchTopic(topic=partition.topic, topic_id=topic.id, partitions=rows)],
                    )
                    answer = await cluster.request(leader, request, timeout_ms=client.request_timeout_ms)
                    row = answer.responses[0].partitions[0]
                    if row.error_code != codes.NONE:
                        raise RetriableError(f"{partition}: {codes.error_name(row.error_code)}", code=row.error_code)
                    return bytes(row.records or b"")
        finally:
            cluster.unwatch(watch)
            await runtime.clusters.release(client)
        raise AssertionError("retrying ends by return or raise")

    data = runtime.call(fetch, timeout_ms=timeout_ms)
    for found, headers in _records(data):
        if found == offset:
            return headers
    raise MalformedMessageError(f"{partition}: the broker returned no record at offset {offset}")


def _records(data: bytes) -> Iterator[tuple[int, Headers]]:
    """Offsets and headers of the records in whole batches; the last batch of a response may be cut off."""
    at = 0
    while at + _BATCH_HEADER <= len(data):
        base = int.from_bytes(data[at : at + 8], "big", signed=True)
        end = at + _LENGTH_AT + 4 + int.from_bytes(data[at + _LENGTH_AT : at + _LENGTH_AT + 4], "big", signed=True)
        if data[at + _MAGIC_AT] != 2 or end < at + _BATCH_HEADER:
            raise MalformedMessageError("a record batch that is not of format 2")
        if end > len(data):
            return
        codec = int.from_bytes(data[at + _ATTRIBUTES_AT : at + _ATTRIBUTES_AT + 2], "big") & 7
        count = int.from_bytes(data[at + _COUNT_AT : at + _COUNT_AT + 4], "big", signed=True)
        body = _Bytes(unpacked(data[at + _BATCH_HEADER : end], codec))
        for _ in range(count):
            yield body.record(base)
        at = end


@attrs.define
class _Bytes:
    """Uncompressed records, read from the front; each read is checked against the end."""

    data: bytes
    at: int = 0

    def record(self, base_offset: int) -> tuple[int, Headers]:
        """Take one record."""
        end = self.varint() + self.at
        self.take(1)  # attributes
        self.varint()  # timestamp
        offset = base_offset + self.varint()
        self.part()  # key
        self.part()  # value
        headers = [((self.part() or b"").decode("utf-8", "replace"), self.part()) for _ in range(self.varint())]
        if self.at != end:
            raise MalformedMessageError("a record whose length is wrong")
        return offset, headers

    def part(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise MalformedMessageError("a record that reaches beyond its batch")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
            if shift > 63:
                raise MalformedMessageError("a varint that does not end")


def unpacked(body: bytes, codec: int) -> bytes:
    """Return the records of a batch, uncompressed; ``codec`` is the number in its attributes."""
    if not codec:
        return body
    name = _CODECS.get(codec)
    if name is None:
        raise MalformedMessageError(f"a record batch of the unknown codec {codec}")
    try:
        if name != "snappy":
            return bytes(pa.CompressedInputStream(pa.BufferReader(body), name).read())
        if not body.startswith(_XERIAL):
            return _snappy(body)
        chunks = []
        at = 16
        while at < len(body):
            size = int.from_bytes(body[at : at + 4], "big")
            chunks.append(_snappy(body[at + 4 : at + 4 + size]))
            at += 4 + size
        return b"".join(chunks)
    except (OSError, pa.ArrowInvalid) as error:
        raise MalformedMessageError(f"a damaged {name} batch: {error}") from error


def _snappy(body: bytes) -> bytes:
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return bytes(pa.decompress(body, size, "snappy", asbytes=True))
