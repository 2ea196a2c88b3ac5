"""A log level at which the search for secrets sees every line."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def log_everything(caplog: pytest.LogCaptureFixture) -> None:
    """Capture debug lines, too, so that they are searched for secrets."""
    caplog.set_level(logging.DEBUG)
