"""The contents of a heartbeat of the consumer protocol, and what its response requests."""

from __future__ import annotations

import random
import uuid
from typing import Any

import attrs
import pytest

from consumer_coord.config import CoordinatorConfig
from consumer_coord.errors import (
    AuthorizationError,
    ConfigurationError,
    CoordinatorError,
    FencedError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
)
from consumer_coord.group.consumer_protocol import error_steps as answers
from consumer_coord.group.consumer_protocol import requests
from consumer_coord.group.consumer_protocol.requests import HeartbeatFields
from consumer_coord.group.error_steps import Step
from consumer_coord.wire import error_codes as codes

CONFIG = CoordinatorConfig(
    group_id="g", group_protocol="consumer", rebalance_timeout_ms=60_000, client_rack="r", group_remote_assignor="range"
)
TOPIC = uuid.UUID(int=7)
TOLD = HeartbeatFields(("a", "b"), None, ((TOPIC, (0, 1)),))


def _heartbeat(
    epoch: int,
    says: HeartbeatFields,
    told: HeartbeatFields = TOLD,
    *,
    everything: bool = False,
    version: int = 1,
    **config: Any,
) -> Any:
    return requests.heartbeat(attrs.evolve(CONFIG, **config), "m", epoch, says, told, everything=everything, version=version)


def test_joining_says_everything_and_owns_nothing() -> None:
    request = _heartbeat(0, TOLD, HeartbeatFields(), group_instance_id="i")
    assert (request.group_id, request.member_id, request.member_epoch, request.instance_id) == ("g", "m", 0, "i")
    assert (request.rack_id, request.rebalance_timeout_ms, request.server_assignor) == ("r", 60_000, "range")
    assert request.subscribed_topic_names == ("a", "b")
    assert request.topic_partitions == ()


@pytest.mark.behaviour(138)
def test_a_heartbeat_with_nothing_new_says_who_it_is_of() -> None:
    request = _heartbeat(5, TOLD)
    assert (request.member_id, request.member_epoch, request.rebalance_timeout_ms) == ("m", 5, -1)
    assert request.subscribed_topic_names is request.subscribed_topic_regex is None
    assert request.rack_id is request.server_assignor is request.topic_partitions is None


@pytest.mark.behaviour(139)
def test_only_what_changed_is_said() -> None:
    request = _heartbeat(5, HeartbeatFields(("a",), None, TOLD.owned))
    assert request.subscribed_topic_names == ("a",)
    assert request.topic_partitions is None
    request = _heartbeat(5, HeartbeatFields(TOLD.topics, None, ()))
    assert request.subscribed_topic_names is None
    assert request.topic_partitions == ()


@pytest.mark.behaviour(140)
def test_after_an_error_everything_is_said_again() -> None:
    request = _heartbeat(5, TOLD, everything=True)
    assert request.subscribed_topic_names == TOLD.topics
    assert request.rebalance_timeout_ms == 60_000
    assert [(row.topic_id, row.partitions) for row in request.topic_partitions] == [(TOPIC, (0, 1))]


@pytest.mark.behaviour(141)
def test_a_pattern_is_named_and_taken_back() -> None:
    with_pattern = HeartbeatFields((), "a.*", ())
    assert _heartbeat(0, with_pattern, HeartbeatFields()).subscribed_topic_regex == "a.*"
    assert _heartbeat(5, with_pattern, with_pattern).subscribed_topic_regex is None
    taken_back = _heartbeat(5, HeartbeatFields(("a",), None, ()), with_pattern)
    assert taken_back.subscribed_topic_regex == ""
    assert taken_back.subscribed_topic_names == ("a",)


@pytest.mark.behaviour(145)
@pytest.mark.parametrize(("instance_id", "for_good", "epoch"), [(None, False, -1), ("i", False, -2), ("i", True, -1)])
def test_the_goodbye_of_a_static_member_keeps_its_place(instance_id: str | None, for_good: bool, epoch: int) -> None:
    config = attrs.evolve(CONFIG, group_instance_id=instance_id)
    request = requests.goodbye(config, "m", for_good=for_good)
    assert (request.member_epoch, request.instance_id) == (epoch, instance_id)


@pytest.mark.behaviour(142)
def test_member_ids_are_random_and_come_from_the_environment() -> None:
    first = requests.new_member_id(random.Random(1).getrandbits)
    assert first == requests.new_member_id(random.Random(1).getrandbits)
    assert first != requests.new_member_id(random.Random(2).getrandbits)
    assert uuid.UUID(first).version == 4


@pytest.mark.behaviour(143)
@pytest.mark.parametrize(
    ("code", "joins", "step"),
    [
        (codes.NONE, False, Step.CONTINUE),
        (codes.NOT_COORDINATOR, False, Step.REDISCOVER),
        (codes.COORDINATOR_NOT_AVAILABLE, True, Step.REDISCOVER),
        (codes.COORDINATOR_LOAD_IN_PROGRESS, True, Step.BACK_OFF),
        (codes.UNRELEASED_INSTANCE_ID, True, Step.BACK_OFF),
        (codes.FENCED_MEMBER_EPOCH, False, Step.LOSE_GENERATION),
        (codes.UNKNOWN_MEMBER_ID, False, Step.LOSE_GENERATION),
        (codes.GROUP_ID_NOT_FOUND, False, Step.LOSE_GENERATION),
        (codes.GROUP_ID_NOT_FOUND, True, Step.FAIL),
        (codes.FENCED_INSTANCE_ID, False, Step.FAIL),
        (codes.UNSUPPORTED_ASSIGNOR, True, Step.FAIL),
        (codes.INVALID_REGULAR_EXPRESSION, True, Step.FAIL),
        (codes.GROUP_MAX_SIZE_REACHED, True, Step.FAIL),
        (codes.GROUP_AUTHORIZATION_FAILED, False, Step.FAIL),
        (codes.TOPIC_AUTHORIZATION_FAILED, False, Step.FAIL),
        (codes.UNSUPPORTED_VERSION, True, Step.FAIL),
        (codes.INVALID_REQUEST, False, Step.FAIL),
        (codes.UNKNOWN_SERVER_ERROR, True, Step.BACK_OFF),
        (codes.NETWORK_EXCEPTION, False, Step.BACK_OFF),
    ],
)
def test_the_reaction_to_each_error_code(code: int, joins: bool, step: Step) -> None:
    assert answers.step_for(code, joins=joins) is step


@pytest.mark.behaviour(144)
@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (codes.UNSUPPORTED_ASSIGNOR, ConfigurationError, "group.remote.assignor"),
        (codes.INVALID_REGULAR_EXPRESSION, ConfigurationError, "RE2/J"),
        (codes.GROUP_MAX_SIZE_REACHED, GroupMaxSizeReachedError, "group.consumer.max.size"),
        (codes.GROUP_ID_NOT_FOUND, InconsistentGroupProtocolError, "group.consumer.migration.policy"),
        (codes.UNSUPPORTED_VERSION, InconsistentGroupProtocolError, "group.version=1"),
        (codes.TOPIC_AUTHORIZATION_FAILED, AuthorizationError, "DESCRIBE"),
        (codes.GROUP_AUTHORIZATION_FAILED, AuthorizationError, "READ on the group"),
        (codes.FENCED_INSTANCE_ID, FencedError, "group.instance.id"),
    ],
)
def test_an_error_says_what_to_do_and_what_the_broker_said(code: int, kind: type[CoordinatorError], says: str) -> None:
    error = answers.fatal(code, group_id="g", detail="because")
    assert isinstance(error, kind)
    assert error.code == code
    for part in ("'g'", codes.error_name(code), says, "because"):
        assert part in str(error)
