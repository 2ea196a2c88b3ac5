"""Decompression of record batches by cramjam: gzip, snappy in Java's framing or without, lz4 frames, zstd.

All payloads of one call are decompressed into one buffer, one after the other. cramjam stops at the end of its output buffer,
so no payload can use more memory than the limit.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from consumer_coord import lazy_attrs as attrs

#: A function that decompresses its first argument into the beginning of its second argument, and returns the number of bytes.
_Into: TypeAlias = Callable[[memoryview, memoryview], int]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
#: The text of cramjam's error if its output buffer is full (Rust's text for ``ErrorKind::WriteZero``).
_OUTPUT_IS_FULL: Final = "failed to write whole buffer"
#: The first bytes of snappy-java's stream. Two version numbers follow, then blocks, each after its length.
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER_SIZE: Final = 16
_BLOCK_SIZE: Final = struct.Struct(">I")
_LEAST_ROOM: Final = 64 * 1024
#: Assumed ratio of decompressed to compressed bytes, for the first attempt.
_RATIO: Final = 4


class _DamagedError(Exception):
    """Raised if a payload is not valid for its codec."""


class _FullError(Exception):
    """Raised if the output buffer is too small."""


@attrs.frozen
class Decompressed:
    """Decompressed payloads in ``buffer``, one after the other; ``ends`` has the position of each payload's end, in bytes.

    ``problem`` is the reason why the next payload could not be decompressed, or empty.
    """

    buffer: bytearray
    ends: array[int]
    problem: str


def decompress(
    records: memoryview, payloads: Sequence[tuple[int, int, int]], *, most: int, limit: int, buffer: bytearray
) -> Decompressed:
    """Decompress payloads (codec, start, end) of ``records``: at least one, and until the output has ``most`` bytes.

    A payload that decompresses to more than ``limit`` bytes is reported in ``problem``. ``buffer`` is reused unless it is too
    small.
    """
    codecs = _codecs()
    ends = array("q")
    used = 0
    for codec, start, end in payloads:
        room = min(limit, max(_LEAST_ROOM, _RATIO * (end - start)))
        while True:
            if len(buffer) - used < room:
                larger = bytearray(max(2 * len(buffer), used + room))
                larger[:used] = memoryview(buffer)[:used]
                buffer = larger
            view = memoryview(buffer)[used : used + limit]
            try:
                used += codecs[codec](records[start:end], view)
            except _FullError:
                if len(view) == limit:
                    return Decompressed(buffer, ends, f"{CODECS[codec]}: the batch decompresses to more than {limit} bytes")
                room = min(limit, 2 * len(view))
            except _DamagedError as error:
                return Decompressed(buffer, ends, f"{CODECS[codec]}: {error}")
            else:
                break
        ends.append(used)
        if used >= most:
            break
    return Decompressed(buffer, ends, "")


@functools.cache
def _codecs() -> dict[int, _Into]:
    """Return the decompressing function for each of Kafka's codecs."""
    # Imported at the first compressed batch, because it takes 10 ms.
    import cramjam

    def snappy(data: memoryview, output: memoryview) -> int:
        if cramjam.snappy.decompress_raw_len(data) > len(output):
            raise _FullError
        return int(cramjam.snappy.decompress_raw_into(data, output))

    return {
        1: _checked(cramjam.gzip.decompress_into, cramjam.DecompressionError),
        2: _xerial(_checked(snappy, cramjam.DecompressionError)),
        3: _checked(cramjam.lz4.decompress_into, cramjam.DecompressionError),
        4: _checked(cramjam.zstd.decompress_into, cramjam.DecompressionError),
    }


def _checked(into: _Into, damaged: type[Exception]) -> _Into:
    """Return a function like ``into`` that raises the errors of this module instead of the library's error ``damaged``."""

    def decompressed(data: memoryview, output: memoryview) -> int:
        try:
            return into(data, output)
        except damaged as error:
            if str(error) == _OUTPUT_IS_FULL:
                raise _FullError from error
            raise _DamagedError(str(error)) from error

    return decompressed


def _xerial(block: _Into) -> _Into:
    """Return a function that decompresses one block with ``block``, or all blocks of snappy-java's stream."""

    def decompressed(data: memoryview, output: memoryview) -> int:
        if bytes(data[: len(_XERIAL)]) != _XERIAL:
            return block(data, output)
        at, used = _XERIAL_HEADER_SIZE, 0
        while at < len(data):
            if len(data) - at < _BLOCK_SIZE.size:
                raise _DamagedError("the stream ends inside the length of a block")
            (size,) = _BLOCK_SIZE.unpack_from(data, at)
            at += _BLOCK_SIZE.size
            if size > len(data) - at:
                raise _DamagedError("a block is longer than the stream")
            used += block(data[at : at + size], output[used:])
            at += size
        return used

    return decompressed
