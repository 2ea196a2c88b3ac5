"""Processes with another confluent-kafka than the installed one: its successor 4.x, or none.

Each directory beside this file has a package ``confluent_kafka`` for the front of the path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from consumer_coord.confluent.types import own_because

T = TypeVar("T", bound=Any)


def needs_librdkafka(test: T) -> T:
    """Let a test read messages with librdkafka; skip the test without librdkafka."""
    skips = pytest.mark.skipif(own_because is not None, reason="needs messages from librdkafka")
    reads: T = pytest.mark.usefixtures("messages_of_librdkafka")(skips(test))
    return reads


#: ``installed`` has no directory.
ENVIRONMENTS = ("installed", "successor", "absent")


def variables(environment: str) -> Mapping[str, str]:
    """Return the environment variables of a process in one of the :data:`ENVIRONMENTS`."""
    if environment == "installed":
        return dict(os.environ)
    path = [str(Path(__file__).parent / environment), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
