"""Write recordings for the tests of ``consumer-coord watch``."""

from __future__ import annotations

from pathlib import Path

from consumer_coord.watch.history import encode
from consumer_coord.watch.recording import Recorder, Recording


def write_recording(path: Path, recording: Recording) -> None:
    """Write a whole recording at once."""
    with Recorder(path, recording.meta) as recorder:
        for message in recording.messages:
            recorder.write(encode(message))
