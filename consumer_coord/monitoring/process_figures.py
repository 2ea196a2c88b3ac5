"""What ``process`` adds to ``consumer.metrics()``, and so to Prometheus and OpenTelemetry: names and descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Name -> description. Names that end with ``-total`` never decrease during one ``process``.
FIGURES: Final[Mapping[str, str]] = {
    "process-running": "Calls of the handler that run now.",
    "process-waiting": "Records that were received and wait for a handler.",
    "process-retrying": "Records that wait for their next attempt, or in a retry topic until they are due.",
    "process-unfinished-seconds": "Seconds since the oldest unfinished record was received; 0 if there is none.",
    "process-handled-total": "Records whose handler returned.",
    "process-failed-total": "Records whose handler failed for good.",
    "process-retried-total": "Attempts after the first.",
    "process-letters-total": "Failed records that were produced to a dead-letter topic or a retry topic.",
}
