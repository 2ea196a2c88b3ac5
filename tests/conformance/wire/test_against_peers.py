"""Bytes are those that kio and kafka-python write, for every message and version that they know."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from consumer_coord.wire.apis import APIS
from consumer_coord.wire.codec import decode, encode
from consumer_coord.wire.schema import INT64, FieldSpec, Struct
from tests.support.codec_peers import KafkaPythonMessage, KioMessage
from tests.support.wire.values import FEW, values_of, versions_of

_MESSAGES = [message for api in APIS.values() for message in (api.request, api.response)]
_KIO_ERROR_CODES = st.sampled_from([int(code) for code in ErrorCode])
#: Milliseconds that Python's datetime and timedelta can hold, which are kio's types.
_KIO_TIMES = st.integers(-1, 4_000_000_000_000)


#: Versions that came with Kafka 4.4, by the names of the requests.
_TOO_NEW_FOR_KIO = {"ApiVersions": 5, "DeleteGroups": 3, "StreamsGroupDescribe": 1, "TxnOffsetCommit": 6}


def _what_kio_can_say(spec: FieldSpec) -> st.SearchStrategy[Any] | None:
    if spec.name.endswith("error_code"):
        return _KIO_ERROR_CODES
    if spec.kind is INT64 and (spec.name.endswith("_ms") or spec.name == "timestamp"):
        return _KIO_TIMES
    return None


def _too_new(message: type[Struct]) -> set[int]:
    name = message.__name__.removesuffix("Request").removesuffix("Response")
    return {_TOO_NEW_FOR_KIO[name]} if name in _TOO_NEW_FOR_KIO else set()


@pytest.mark.slow
@pytest.mark.parametrize("message", _MESSAGES, ids=lambda message: message.__name__)
def test_kio_writes_the_same_bytes(message: type[Struct]) -> None:
    peers = {version: KioMessage(message, version) for version in versions_of(message) if version not in _too_new(message)}

    @FEW
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        for version, peer in peers.items():
            value = data.draw(values_of(message, version, _what_kio_can_say))
            theirs = peer.encode(peer.convert(value))
            assert encode(value, version) == theirs
            assert decode(message, version, theirs) == value

    compare()


@pytest.mark.slow
@pytest.mark.parametrize("message", _MESSAGES, ids=lambda message: message.__name__)
def test_kafka_python_writes_the_same_bytes(message: type[Struct]) -> None:
    peers = {}
    for version in versions_of(message):
        try:
            peers[version] = KafkaPythonMessage(message, version)
        except LookupError:
            continue
    if not peers:
        assert any(kind in message.__name__ for kind in ("ConsumerGroup", "ShareGroup", "StreamsGroup", "Telemetry"))
        return

    @FEW
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        for version, peer in peers.items():
            value = data.draw(values_of(message, version))
            theirs = peer.encode(peer.convert(value))
            assert encode(value, version) == theirs
            assert decode(message, version, theirs) == value

    compare()
