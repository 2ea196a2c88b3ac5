"""Which settings let librdkafka read messages, and which are refused because only librdkafka knows them."""

from __future__ import annotations

from typing import Any

import pytest

from consumer_coord.config import parse
from consumer_coord.confluent.types import own_because
from consumer_coord.consumer import which_plane
from consumer_coord.consumer.which_plane import ONLY_LIBRDKAFKA, reads_with_librdkafka
from consumer_coord.errors import ConfigurationError

MISSING = ImportError("there is no confluent-kafka")
OTHERS = [*((name, "x") for name in ONLY_LIBRDKAFKA), ("ssl.curves.list", "P-256:X25519")]


def reads(settings: dict[str, Any]) -> bool:
    return reads_with_librdkafka(parse({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", **settings}))


@pytest.fixture(params=["installed", "missing"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(which_plane, "BY_DEFAULT", False)
    monkeypatch.setattr(which_plane, "own_because", None if request.param == "installed" else MISSING)
    return bool(request.param == "installed")


def test_this_package_reads_unless_librdkafka_is_asked_for(installed: bool) -> None:
    assert not reads({})
    assert not reads({"ssl.curves.list": "P-256", "plugin.library.paths": ""})
    assert not reads({"librdkafka.enable": False})
    assert not reads(dict.fromkeys(("error_cb", "throttle_cb", "stats_cb"), print))
    assert reads({"librdkafka.enable": True}) == installed


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_a_setting_that_only_librdkafka_knows_is_never_ignored(name: str, value: str, installed: bool) -> None:
    off = {name: value, "librdkafka.enable": False}
    if installed:
        assert reads({name: value})
    else:
        with pytest.raises(ConfigurationError, match=f"{name}={value} has an effect only in librdkafka, but there is no"):
            reads({name: value})
    with pytest.raises(ConfigurationError, match=f"{name}={value} has an effect only in librdkafka.*: remove this setting"):
        reads(off)


@pytest.mark.skipif(own_because is not None, reason="needs confluent-kafka 2.x")
@pytest.mark.usefixtures("messages_of_librdkafka")
def test_the_suite_can_choose_librdkafka() -> None:
    assert reads({})
    assert not reads({"librdkafka.enable": False})
