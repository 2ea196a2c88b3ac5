"""Benchmark of the columns kernel: nanoseconds of CPU per record, from the bytes of a Fetch response to Arrow arrays.

``python -m benchmarks.decode --megabytes 4 --rounds 40``

A row is one kind of record, batch and codec. The columns split the time: ``CRC-32C`` and ``decompress`` are these steps alone,
``decode`` is decoding into all columns without these steps, ``value`` is decoding into key, value and offset only, and ``all``
is everything. The keys have 8 bytes. Each number is the minimum over the rounds of the process's processor time, because other
processes on the machine disturb this time least. ``CONSUMER_COORD_KERNEL=python`` measures the Python twin of the kernel.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence

import cramjam
import pyarrow as pa

from benchmarks.table import markdown, number
from consumer_coord.columns import COLUMNS, KERNEL, Columns, CompletedFetch
from consumer_coord.columns.decompress import decompress
from consumer_coord.columns.kernel import kernel

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
#: Kind of batch -> number of records in a batch, by the size of a record in bytes.
BATCHES: dict[str, Callable[[int], int]] = {
    "16 KB": lambda size: max(1, 16384 // (size + 20)),
    "10,000 records": lambda size: 10_000,
    "1 record": lambda size: 1,
}
#: Size of a block in the snappy format of Java's producer, in bytes.
_BLOCK = 32 * 1024


def _varint(value: int) -> bytes:
    raw = value << 1 ^ value >> 63
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _compressed(codec: str, data: bytes) -> bytes:
    if codec == "none":
        return data
    if codec != "snappy":
        return bytes(getattr(cramjam, codec).compress(data))
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + _BLOCK])) for at in range(0, len(data), _BLOCK)]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(one)) + one for one in blocks)


def response(size: int, in_batch: int, codec: str, megabytes: float, headers: int) -> tuple[bytes, int]:
    """Return batches that have about ``megabytes`` before compression, and the number of records in them.

    Values compress to about a third, like JSON.
    """
    chance = random.Random(1)
    words = [chance.randbytes(4).hex().encode() for _ in range(64)]
    values = []
    for _ in range(97):
        text = b"".join(chance.choices(words, k=size // 8 + 1)) + chance.randbytes(size // 4).hex().encode()
        values.append(text[-size:])
    counted = _varint(headers) + b"".join(_varint(7) + b"header%d" % i + _varint(5) + b"value" for i in range(headers))
    batches: list[bytes] = []
    base = made = 0
    while made < megabytes * 1e6 or not batches:
        body = bytearray()
        for delta in range(in_batch):
            value = values[(base + delta) % len(values)]
            rest = b"\0" + _varint(delta) + _varint(delta) + _varint(8) + b"%08d" % (base + delta)
            rest += _varint(len(value)) + value + counted
            body += _varint(len(rest)) + rest
        made += len(body)
        covered = struct.pack(
            ">hiqqqhii", CODECS[codec], in_batch - 1, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, in_batch
        )
        covered += _compressed(codec, bytes(body))
        batches.append(struct.pack(">qiibI", base, len(covered) + 9, 0, 2, kernel.crc32c(covered)) + covered)
        base += in_batch
    return b"".join(batches), base


def _cpu_ns(work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time_ns()
        work()
        best = min(best, time.process_time_ns() - start)
    return best


def measure(data: bytes, records: int, rounds: int) -> Iterator[float]:
    """Yield nanoseconds per record of CRC-32C, decompression, decoding, decoding key, value and offset only, and everything."""

    def fetched(check_crcs: bool = False) -> CompletedFetch:
        return CompletedFetch(data, topic="orders", partition=1, offset=0, check_crcs=check_crcs)

    def read(columns: Sequence[str], check_crcs: bool) -> None:
        into, fetch = Columns(columns), fetched(check_crcs)
        while not fetch.exhausted:
            into.append(fetch)
        if len(into.finish()) != records:
            raise RuntimeError("records are missing")

    few = ["key", "value", "offset"]
    listing = _cpu_ns(fetched, rounds)
    crc = _cpu_ns(lambda: fetched(check_crcs=True), rounds) - listing
    every, some = _cpu_ns(lambda: read(COLUMNS, False), rounds), _cpu_ns(lambda: read(few, False), rounds)
    both = _cpu_ns(lambda: read(COLUMNS, True), rounds)
    decompression = _decompression(data, rounds)
    yield from (one / records for one in (crc, decompression, every - decompression, some - decompression, both))


def _decompression(data: bytes, rounds: int) -> float:
    batches = kernel.Batches(data, 0, b"", False, False)
    payloads = batches.compressed(1 << 62)
    if not payloads:
        return 0.0
    view = memoryview(data)
    buffer = decompress(view, payloads, most=1 << 62, limit=1 << 30, buffer=bytearray()).buffer
    return _cpu_ns(lambda: decompress(view, payloads, most=1 << 62, limit=1 << 30, buffer=buffer), rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=2, help="size of a response before compression")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args(arguments)
    rows = []
    kinds = [(size, name, codec, 0) for size in (100, 1000) for name in BATCHES for codec in CODECS]
    for size, name, codec, headers in [*kinds, (100, "16 KB", "none", 3), (100, "10,000 records", "none", 3)]:
        data, records = response(size, BATCHES[name](size), codec, options.megabytes, headers)
        found = list(measure(data, records, options.rounds))
        label = f"{size} B, batches of {name}, {codec}" + (f", {headers} headers" if headers else "")
        rows.append([label, *map(number, found), number(1000 / found[-1])])
        print(rows[-1], flush=True)
    print(f"\nkernel: {KERNEL}; pyarrow {pa.__version__}; ns of CPU per record\n")
    print(markdown(["records", "CRC-32C", "decompress", "decode", "value", "all", "million records/CPU s"], rows))


if __name__ == "__main__":
    main()
