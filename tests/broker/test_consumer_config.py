"""The settings of the consumer protocol: what they may be, and that a wrong one is named."""

from __future__ import annotations

import uuid

import pytest

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.consumer_group.assignors.python import load_server_assignors
from consumer_coord.broker.consumer_group.assignors.spec import GroupSpec, MemberSpec
from consumer_coord.broker.consumer_group.assignors.uniform import UniformAssignor
from consumer_coord.errors import ConfigurationError


def test_assignors_are_kafkas_own_those_of_the_package_and_yours() -> None:
    config = BrokerConfig.from_mapping({"group.consumer.assignors": "range, sticky,assignors:LoadAssignor"})
    assert list(load_server_assignors(config.consumer_assignors)) == ["range", "sticky", "load"]
    assert list(load_server_assignors(BrokerConfig().consumer_assignors)) == ["uniform", "range"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("unifrom", "not one of uniform, range"),
        ("nowhere:Mine", "cannot be loaded"),
        ("assignors:Cluster", "not a subclass"),
        ("range,assignors:RangeAssignor", "two assignors"),
        ("", "names no assignor"),
    ],
)
def test_an_assignor_that_cannot_be_had_is_an_error(names: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem), EmbeddedKafka(config={"group.consumer.assignors": names}):
        raise AssertionError("it started")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"group.consumer.migration.policy": "sometimes"}, "one of bidirectional"),
        ({"group.consumer.heartbeat.interval.ms": 45_000}, "must be less"),
        ({"group.consumer.regex.refresh.interval.ms": 1}, "between 10000"),
        ({"group.consumer.session.timeout": 1}, "not a setting"),
    ],
)
def test_a_setting_that_makes_no_sense_is_an_error(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        BrokerConfig.from_mapping(settings)


def test_settings_are_told_as_they_were_set() -> None:
    config = BrokerConfig.from_mapping({"group.consumer.migration.policy": "UPGRADE", "group.consumer.assignors": "range"})
    told = config.to_mapping()
    assert told["group.consumer.migration.policy"] == "upgrade"
    assert told["group.consumer.assignors"] == "range"
    assert told["group.consumer.session.timeout.ms"] == "45000"
    assert told["auto.create.topics.enable"] == "true"


def test_uniform_assigns_what_its_broker_knows_of_a_topic_that_has_grown() -> None:
    orders, audit = uuid.UUID(int=1), uuid.UUID(int=2)
    members = {
        "a": MemberSpec({orders: "orders"}, {orders: frozenset({0, 1, 5})}),
        "b": MemberSpec({orders: "orders", audit: "audit"}, {audit: frozenset({0})}),
    }
    plan = UniformAssignor().assign(GroupSpec(members=members, homogeneous=False, partitions={orders: 2, audit: 1}))
    assert plan == {"a": {orders: frozenset({0, 1})}, "b": {audit: frozenset({0})}}
