"""Keep the readers of a worker process from task to task, with their connections and prefetched records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from consumer_coord.spark.range_reader import RangeReader

#: Readers that are unused for this time, in seconds, are closed.
IDLE_S = 60.0
#: Maximum number of readers in a worker process. There is one reader for each set of settings, that is, for each query.
MOST_READERS = 4


_Key = tuple[tuple[str, str], ...]
_readers: dict[_Key, RangeReader] = {}


def reader_for(config: Mapping[str, Any]) -> RangeReader:
    """Return this worker's reader for ``config``; close readers unused for :data:`IDLE_S`, and the oldest above the limit."""
    wanted = tuple(sorted((key, repr(value)) for key, value in config.items()))
    by_age = sorted((key for key in _readers if key != wanted), key=lambda key: _readers[key].used_s)
    surplus = max(0, len(by_age) - MOST_READERS + 1)
    now_s = time.monotonic()
    for index, key in enumerate(by_age):
        if index < surplus or now_s - _readers[key].used_s > IDLE_S:
            _readers.pop(key).close()
    if wanted not in _readers:
        _readers[wanted] = RangeReader(config)
    return _readers[wanted]


def close_all() -> None:
    """Close every reader of this process."""
    while _readers:
        _readers.popitem()[1].close()
