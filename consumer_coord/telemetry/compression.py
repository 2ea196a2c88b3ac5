"""Compression of pushed metrics, with the types that this installation has."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

NONE: Final = 0
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4


def _codecs() -> Mapping[int, Callable[[bytes], bytes]]:
    """Return Kafka's compression type -> the function that compresses."""
    # The same input gives the same bytes.
    found: dict[int, Callable[[bytes], bytes]] = {_GZIP: lambda data: gzip.compress(data, 6, mtime=0)}
    try:
        import cramjam
    except ImportError:
        return found
    found[_LZ4] = lambda data: bytes(cramjam.lz4.compress(data))
    found[_ZSTD] = lambda data: bytes(cramjam.zstd.compress(data))
    return found


def choose(accepted: Sequence[int], refused: Collection[int] = ()) -> int:
    """Return the first accepted type that this installation has; no compression, which every broker takes, without any."""
    known = _codecs()
    return next((one for one in accepted if one in known and one not in refused), NONE)


def compress(kind: int, data: bytes) -> bytes:
    """Compress with a type that :func:`choose` returned."""
    return data if kind == NONE else _codecs()[kind](data)
