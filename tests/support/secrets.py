"""A plugin that searches the output of all tests for their secrets: log lines, exceptions and ``repr`` must not show them."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Generator, Iterator

import pytest

#: secret -> its description.
_made_up: dict[str, str] = {}


def made_up(what: str) -> str:
    """Return a password, key or token for a test, which must never appear in any output."""
    value = f"{what}-{secrets.token_hex(12)}"
    keep_secret(value, what)
    return value


def keep_secret(value: str, what: str) -> None:
    """Watch for a secret that was made in another way, such as a token or a private key."""
    _made_up[value] = what


def _spellings(value: str) -> Iterator[str]:
    yield value
    yield base64.b64encode(value.encode()).decode().rstrip("=")
    yield repr(value)[1:-1]


def found_in(text: str) -> list[str]:
    """Return the descriptions of the secrets that occur in ``text``."""
    return [what for value, what in _made_up.items() if any(spelling in text for spelling in _spellings(value))]


class SecretWatch:
    """A plugin that fails a test whose output, log or exception shows a secret, and a run with a secret in a test's name."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Raise UsageError for a secret in a test's name, on which the workers of a run would not agree either."""
        for item in items:
            if found := found_in(item.nodeid):
                raise pytest.UsageError(f"{item.nodeid.partition('[')[0]} has a secret in its name, the {found[0]}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Search the report of each phase of a test."""
        report = yield
        printed = {name: content for name, content in report.sections if not name.startswith("secret")}
        printed["the failure as pytest reports it"] = report.longreprtext
        for where, text in printed.items():
            for what in found_in(text):
                report.outcome = "failed"
                # Do not show the printed secret again.
                report.longrepr = f"{item.nodeid} printed a secret, the {what}, in: {where}"
                report.sections = []
                return report
        return report
