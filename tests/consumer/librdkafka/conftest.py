"""The two planes of librdkafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from tests.support.consumer.data_planes import Play, play_on_caller, play_threaded


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """Without topics."""
    with EmbeddedKafka(topics={}) as running:
        yield running


@pytest.fixture(params=["on caller", "threaded"])
def play(request: pytest.FixtureRequest) -> Play:
    """Plays a story on one of the two."""
    topic = "".join(sign if sign.isalnum() else "-" for sign in request.node.name)
    play = play_on_caller if request.param == "on caller" else play_threaded
    return play(request.getfixturevalue("kafka"), topic)
