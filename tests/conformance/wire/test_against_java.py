"""Bytes and refusals are those of Kafka's own Java classes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer_coord.errors import UnsupportedVersionError
from consumer_coord.wire.apis import APIS
from consumer_coord.wire.codec import decode, encode
from consumer_coord.wire.embedded_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from consumer_coord.wire.schema import Struct, fields_of
from tests.support.java import JavaProgram
from tests.support.line_process import LineProcess
from tests.support.wire.as_json import message_as_json, without_structures_of_other_versions
from tests.support.wire.values import FEW, values_of, versions_of

pytestmark = pytest.mark.kafka

_MESSAGES = [message for api in APIS.values() for message in (api.request, api.response)]


class Oracle:
    """Asks Kafka's classes."""

    def __init__(self, process: LineProcess) -> None:
        self._process = process

    def ask(self, questions: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """One answer per question; all are sent before the first is read."""
        for question in questions:
            self._process.send(json.dumps(question))
        return [self._process.receive() for _ in questions]


@pytest.fixture(scope="module")
def oracle(kafka_libs: Path) -> Iterator[Oracle]:
    with JavaProgram(kafka_libs, "WireOracle").start() as process:
        yield Oracle(process)


@pytest.mark.parametrize("message", _MESSAGES, ids=lambda message: message.__name__)
def test_every_message_in_every_version(oracle: Oracle, message: type[Struct]) -> None:
    @FEW
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        values = [(version, data.draw(values_of(message, version))) for version in versions_of(message)]
        bodies = [encode(value, version) for version, value in values]
        answers = oracle.ask([_question(value, version) for version, value in values])
        for (version, value), body, answer in zip(values, bodies, answers, strict=True):
            assert body.hex() == answer, (version, value)
            assert decode(message, version, bytes.fromhex(answer)) == value

    compare()


@pytest.mark.parametrize("message", _MESSAGES, ids=lambda message: message.__name__)
def test_what_a_version_cannot_say_is_refused_by_both_or_by_none(oracle: Oracle, message: type[Struct]) -> None:
    """Every message is drawn for one version and encoded in another, so that fields are set that it does not have."""
    versions = versions_of(message)

    @FEW
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        drawn = data.draw(values_of(message, data.draw(st.sampled_from(versions))))
        values = [without_structures_of_other_versions(drawn, version) for version in versions]
        answers = oracle.ask([_question(value, v) for value, v in zip(values, versions, strict=True)])
        for version, value, answer in zip(versions, values, answers, strict=True):
            try:
                body = encode(value, version).hex()
            except UnsupportedVersionError:
                assert answer in ("unsupported", "refused"), (version, value)
            else:
                assert body == answer, (version, value)

    compare()


@pytest.mark.parametrize("message", _MESSAGES, ids=lambda message: message.__name__)
def test_defaults_are_kafkas(oracle: Oracle, message: type[Struct]) -> None:
    versions = versions_of(message)
    answers = oracle.ask([{"defaults": message.__name__, "version": version} for version in versions])
    for version, answer in zip(versions, answers, strict=True):
        theirs = json.loads(answer)
        ours = message_as_json(message(), version)
        untagged = [spec for spec in fields_of(message) if version in spec.versions and spec.tag is None]
        assert len(theirs) == len(untagged)
        assert {name: ours[name] for name in theirs} == theirs


_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)
_PARTITIONS = st.dictionaries(_NAMES, st.lists(st.integers(0, 2**31 - 1), max_size=4, unique=True).map(tuple), max_size=4)
_USER_DATA = st.none() | st.binary(max_size=5)


@settings(FEW, max_examples=40)
@given(
    subscription=st.builds(
        Subscription,
        topics=st.lists(_NAMES, max_size=4).map(tuple),
        user_data=_USER_DATA,
        owned_partitions=_PARTITIONS,
        generation_id=st.integers(-1, 2**31 - 1),
        rack_id=st.none() | _NAMES,
    ),
    assignment=st.builds(Assignment, partitions=_PARTITIONS, user_data=_USER_DATA),
)
def _compare_membership(oracle: Oracle, subscription: Subscription, assignment: Assignment) -> None:
    versions = (0, 1, 2, 3, 4)
    as_json = {
        "topics": list(subscription.topics),
        "user_data": _base64(subscription.user_data),
        "owned": _pairs(subscription.owned_partitions),
        "generation": subscription.generation_id,
        "rack": subscription.rack_id,
    }
    answers = oracle.ask([{"subscription": as_json, "version": version} for version in versions])
    assert answers == [encode_subscription(subscription, version).hex() for version in versions]
    decoded = decode_subscription(bytes.fromhex(answers[-1]))
    assert sorted(decoded.topics) == sorted(subscription.topics)
    assert decoded.owned_partitions == {t: tuple(sorted(p)) for t, p in subscription.owned_partitions.items() if p}
    assert (decoded.user_data, decoded.generation_id, decoded.rack_id) == (
        subscription.user_data,
        subscription.generation_id,
        subscription.rack_id,
    )
    as_json = {"partitions": _pairs(assignment.partitions), "user_data": _base64(assignment.user_data)}
    answers = oracle.ask([{"assignment": as_json, "version": version} for version in versions])
    assert answers == [encode_assignment(assignment, version).hex() for version in versions]
    given_something = {topic: partitions for topic, partitions in assignment.partitions.items() if partitions}
    assert decode_assignment(bytes.fromhex(answers[0])) == Assignment(given_something, assignment.user_data)


def test_the_consumer_protocol(oracle: Oracle) -> None:
    _compare_membership(oracle)


def _question(value: Struct, version: int) -> Mapping[str, Any]:
    return {"message": type(value).__name__, "version": version, "value": message_as_json(value, version)}


def _pairs(partitions: Mapping[str, Sequence[int]]) -> list[tuple[str, int]]:
    return [(topic, number) for topic, numbers in partitions.items() for number in numbers]


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
