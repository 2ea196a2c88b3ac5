"""A log that hides nothing from the search for secrets."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def log_everything(caplog: pytest.LogCaptureFixture) -> None:
    """Debug lines too are searched for secrets."""
    caplog.set_level(logging.DEBUG)
