"""Reuse memory for received bytes, because allocating a new page takes longer than filling it."""

from __future__ import annotations

import threading

#: The smallest buffer, in bytes.
_SMALLEST_BYTES = 64 * 1024
#: Maximum number of buffers, whether in use or not, that are kept to be used again.
_MOST_BUFFERS = 64


class Buffers:
    """Buffers, each of which is reused when its last memoryview has been deleted; thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        """Keep at most ``most_bytes`` of unused memory."""
        self._most_bytes = most_bytes
        self._buffers: list[bytearray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """Return a writable view of ``size`` bytes, which may contain old data.

        The memory is reused when this view and all views created from this view have been deleted.
        """
        with self._lock:
            found: bytearray | None = None
            kept, unused = [], 0
            for buffer in self._buffers:
                if not _is_unused(buffer):
                    kept.append(buffer)
                elif found is None and size <= len(buffer):
                    found = buffer
                elif unused + len(buffer) <= self._most_bytes:
                    unused += len(buffer)
                    kept.append(buffer)
            if found is None:
                # At most a quarter more than asked for, so that the next response, which is of about this size, fits as well.
                step = max(_SMALLEST_BYTES, 1 << size.bit_length() >> 3)
                found = bytearray(-(-size // step) * step)
            self._buffers = [*kept[1 - _MOST_BUFFERS :], found]
            return memoryview(found)[:size]


def _is_unused(buffer: bytearray) -> bool:
    """Return whether no view of a buffer exists. Python lets a bytearray change its size only without views."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
