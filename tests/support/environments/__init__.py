"""Processes with another confluent-kafka than the installed one: its successor 4.x, or none.

Each directory beside this file has a package ``confluent_kafka`` for the front of the path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from consumer_coord.confluent.types import own_because
from consumer_coord.consumer import which_plane

#: Marks a test about librdkafka that would fail without it, and not by an ImportError.
needs_librdkafka = pytest.mark.skipif(
    own_because is not None or not which_plane.BY_DEFAULT, reason="needs messages from librdkafka"
)

#: ``installed`` has no directory.
ENVIRONMENTS = ("installed", "successor", "absent")


def variables(environment: str) -> Mapping[str, str]:
    """Return the environment variables of a process in one of the :data:`ENVIRONMENTS`."""
    if environment == "installed":
        return dict(os.environ)
    path = [str(Path(__file__).parent / environment), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
