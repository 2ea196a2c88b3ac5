"""A pytest plugin for the tests of Quix Streams: the fixtures that start containers give the Kafka at port 9092 instead."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest

_ADDRESS = "127.0.0.1:9092"
_Kafka = namedtuple("_Kafka", ["broker_address", "internal_broker_address"])
_GIVEN = {"network": None, "kafka_container": _Kafka(_ADDRESS, _ADDRESS)}


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> object | None:
    """Set a fixture's value in place of its function; None lets pytest call the function."""
    if fixturedef.argname not in _GIVEN:
        return None
    value = _GIVEN[fixturedef.argname]
    fixturedef.cached_result = value, fixturedef.cache_key(request), None
    return value or True
