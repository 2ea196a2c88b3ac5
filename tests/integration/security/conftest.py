"""One secured broker for all tests of security, and a log that hides nothing from the search for secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.secured import SecuredKafka
from tests.support.security.logs import log_everything

__all__ = ["log_everything", "secured"]


@pytest.fixture(scope="package")
def secured(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A broker with TLS and SASL listeners, and ACLs."""
    made = SecuredKafka(kafka_libs, tmp_path_factory.mktemp("secured"))
    with made.kafka:
        yield made
