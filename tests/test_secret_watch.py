"""The search for secrets finds each secret that a test prints, in every kind of output."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.support.secrets import found_in, keep_secret, made_up

CONFTEST = """
from tests.support.secrets import SecretWatch

def pytest_configure(config):
    config.pluginmanager.register(SecretWatch())
"""
TESTS = """
import logging, os, sys
from tests.support.secrets import keep_secret

SECRET = os.environ["INNER_SECRET"]
keep_secret(SECRET, "inner password")

def test_output(): print(SECRET)
def test_error_output(): print(SECRET, file=sys.stderr)
def test_log(): logging.getLogger("any").warning("with %r", SECRET)
def test_exception(): raise ValueError(SECRET)
def test_assertion(): assert SECRET == "something else"
def test_nothing(): print(len(SECRET))
"""
IN_A_NAME = """
import os, pytest
from tests.support.secrets import keep_secret

SECRET = os.environ["INNER_SECRET"]
keep_secret(SECRET, "inner password")

@pytest.mark.parametrize("value", [SECRET])
def test_name(value): pass
"""


@pytest.mark.slow
def test_a_test_that_shows_a_secret_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = made_up("inner password")
    monkeypatch.setenv("INNER_SECRET", secret)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    ran = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    # The output is in the reports of the call and of the following teardown.
    ran.assert_outcomes(passed=1, failed=5, errors=3)
    text = ran.stdout.str() + ran.stderr.str()
    assert text.count("printed a secret, the inner password") >= 5
    assert secret not in text


@pytest.mark.slow
def test_a_secret_in_the_name_of_a_test_ends_the_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = made_up("inner password")
    monkeypatch.setenv("INNER_SECRET", secret)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(IN_A_NAME)
    ran = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    text = ran.stdout.str() + ran.stderr.str()
    assert "test_name has a secret in its name, the inner password" in text
    assert secret not in text


def test_other_spellings_are_found_too() -> None:
    password = made_up("spelled password")
    encoded = base64.b64encode(password.encode()).decode()
    assert found_in(f"auth={encoded}") == ["spelled password"]
    keep_secret("with\nline break", "key")
    assert found_in(repr(b"with\nline break")) == ["key"]
