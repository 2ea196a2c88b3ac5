"""The arguments of confluent-kafka's calls, with confluent-kafka's checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, TypeAlias, TypedDict

from consumer_coord.config import refuse_other_spellings
from consumer_coord.confluent.kafka_exceptions import drop_in_exceptions, to_kafka_exception
from consumer_coord.confluent.types import TopicPartition as NativePartition
from consumer_coord.errors import ConfigurationError
from consumer_coord.settings import as_boolean
from consumer_coord.topic_partition import TopicPartition

#: Names of topics. With a general sequence type, ``subscribe("orders")`` would pass the type checker, because a string is a
#: sequence.
Topics: TypeAlias = list[str] | tuple[str, ...] | Set[str]
#: Keywords of the constructor that are not settings.
_KEYWORDS = ("logger",)
_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb", "oauth_cb")


def constructor_arguments(
    config: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (settings, keywords for librdkafka's handle); settings are given as a dictionary, as keywords, or as both."""
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"expected configuration dict, not {type(config).__name__}; give topics to subscribe()")
    if config is None and not keywords:
        raise TypeError("expected configuration dict")
    settings = {**(config or {}), **keywords}
    # librdkafka accepts None for settings whose value is a string; only this setting has a default that is not empty.
    if settings.get("partition.assignment.strategy", "") is None:
        del settings["partition.assignment.strategy"]
    for name in _CALLBACKS:
        if name in settings and not callable(settings[name]):
            raise TypeError(f"expected {name} property as a callable function")
    if not callable(settings.get("on_commit", callable)):
        raise to_kafka_exception(ConfigurationError("on_commit expects a callable"))
    with drop_in_exceptions():
        refuse_other_spellings(settings)
    handed_over = {name: settings.pop(name) for name in _KEYWORDS if name in settings}
    if "group.id" not in settings:
        raise ValueError("Failed to create consumer: group.id must be set")
    return settings, handed_over


def flag(settings: dict[str, Any], name: str, *, default: bool) -> bool:
    """Return a boolean setting, or ``default`` if it is not given; raise ConfigurationError if it is not a boolean."""
    return as_boolean(name, settings[name]) if name in settings else default


def checked_rows(rows: Any) -> list[Any]:
    """Return ``rows`` if it is a list of TopicPartition (of confluent-kafka or this package); else raise TypeError."""
    if not isinstance(rows, list):
        raise TypeError(f"requires list of TopicPartition, not {rows!r}")
    for row in rows:
        if not isinstance(row, (NativePartition, TopicPartition)):
            raise TypeError(f"expected TopicPartition of confluent_kafka or consumer_coord, not {row!r}")
    return rows


def are_names(topics: object) -> bool:
    """Return whether an object is a collection of strings, and not itself a string; for callers without a type checker."""
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        return False
    return all(isinstance(topic, str) for topic in topics)


def subscription_arguments(topics: Topics, **callbacks: Callable[..., object] | None) -> list[str]:
    """Return the topics; raise TypeError if they are not a collection of strings, or if a callback is not callable.

    confluent-kafka accepts only lists. But it subscribes to ``str(element)`` if an element is not a string, although no topic
    has such a name.
    """
    if not are_names(topics):
        raise TypeError(f"expected list of topic unicode strings, not {topics!r}")
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise TypeError(f"{name} expects a callable")
    return list(topics)


#: The former names of keyword arguments that confluent-kafka still accepts. Python's syntax does not allow a parameter
#: ``async``.
FormerKeywords = TypedDict("FormerKeywords", {"async": bool}, total=False)


def check_timeout(timeout: Any) -> None:
    """Raise TypeError for a time limit that is neither None nor a number of seconds."""
    if timeout is not None and not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout takes a number of seconds, or None, not {timeout!r}")


def commit_keywords(asynchronous: bool, deprecated: Mapping[str, object]) -> bool:
    """Return the value of the former argument ``async`` if it is given, otherwise ``asynchronous``."""
    for name in deprecated:
        if name != "async":
            raise TypeError(f"commit() got an unexpected keyword argument {name!r}")
    return bool(deprecated.get("async", asynchronous))
