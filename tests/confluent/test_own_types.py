"""This package's own classes against those of the installed confluent-kafka, over random arguments and calls.

With an installed version before 2.16 the comparison is of what both have: fewer error codes, and no ``Message(...)``.
"""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord import confluent
from consumer_coord.confluent import own_deserializing, own_types, types
from consumer_coord.confluent.error_table import ERRORS
from tools.kafka_errors import installed

confluent_kafka: Any = pytest.importorskip("confluent_kafka.cimpl", reason="there is nothing to compare with")

#: An outcome: "returned" and the value, or "raised" and the type of the error.
Outcome = tuple[str, Any]
CREATABLE = hasattr(confluent_kafka.Message, "delivery_count")
needs_2_16 = pytest.mark.skipif(not CREATABLE, reason="Message of this version has fewer fields, or no constructor")


@pytest.fixture(autouse=True)
def picklable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pickles of the own classes find them where a process without confluent-kafka has them."""
    for name in ("KafkaError", "KafkaException", "Message", "TopicPartition"):
        monkeypatch.setattr(confluent, name, getattr(own_types, name))


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return "returned", call()
    except (TypeError, ValueError, AttributeError, OverflowError, NotImplementedError, SystemError) as error:
        return "raised", type(error)


def outcomes(name: str, arguments: Mapping[str, Any], facts: Callable[[Any], Any]) -> tuple[Outcome, Outcome]:
    """Return the facts about an object of both classes of a name, made of the same arguments."""

    def tried(module: Any) -> Outcome:
        return outcome(lambda: facts(getattr(module, name)(**made_for(module, arguments))))

    return tried(confluent_kafka), tried(own_types)


def made_for(module: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, with the error code in ``error`` as an error of the module's class."""
    code = arguments.get("error")
    error = {"error": module.KafkaError(code)} if isinstance(code, int) and "reason" not in arguments else {}
    return {**arguments, **error}


def optional(**kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return dictionaries with some of these arguments."""
    return st.fixed_dictionaries({}, optional=kinds)


TEXTS = st.one_of(st.text(max_size=5), st.sampled_from(["orders", "näme", "a\0b", "\ud800", ""]))
NUMBERS = st.one_of(
    st.integers(-5, 5), st.integers(-(2**70), 2**70), st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, True])
)
WRONG: st.SearchStrategy[Any] = st.sampled_from([None, b"bytes", 1.5, [], "text"])
CODES = st.one_of(st.sampled_from(sorted(ERRORS)), st.integers(-1000, 1000))


# -- errors ---------------------------------------------------------------------------------------------------------------


def test_every_code_of_the_installed_version_is_in_the_table() -> None:
    theirs = installed()
    if max(theirs) == max(ERRORS):
        assert theirs == ERRORS
    else:
        # Texts change between versions, names and codes do not.
        assert {code: name for code, (name, _) in theirs.items()}.items() <= {
            code: row[0] for code, row in ERRORS.items()
        }.items()


def test_the_codes_are_attributes_of_the_class() -> None:
    codes = {name: getattr(own_types.KafkaError, name) for name, _ in ERRORS.values()}
    assert codes == {name: code for code, (name, _) in ERRORS.items()}


def error_facts(error: Any) -> Any:
    again = [pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)]
    for one in again:
        assert type(one) is type(error)
    return [
        (one.code(), one.name(), one.str(), one.fatal(), one.retriable(), one.txn_requires_abort(), repr(one), str(one))
        for one in (error, *again)
    ]


FLAGS = st.one_of(st.booleans(), st.integers(-2, 2**40), WRONG)


@needs_2_16
@given(optional(error=st.one_of(CODES, NUMBERS, WRONG), reason=st.one_of(TEXTS, WRONG), fatal=FLAGS, retriable=FLAGS))
def test_errors_are_alike(arguments: dict[str, Any]) -> None:
    theirs, ours = outcomes("KafkaError", {"reason": None, **arguments}, error_facts)
    assert ours == theirs


@given(CODES, CODES)
def test_errors_compare_alike(one: int, other: int) -> None:
    def facts(module: Any) -> Any:
        left, right = module.KafkaError(one), module.KafkaError(other)
        compared = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
        hashed = None if one == -1 else hash(left)  # confluent-kafka's raises SystemError
        return [(compare(left, right), compare(left, other), compare(other, left)) for compare in compared], hashed

    assert facts(own_types) == facts(confluent_kafka)


@pytest.mark.parametrize("other", ["text", None, 1.5, own_types.KafkaException()])
def test_an_error_is_unequal_to_what_is_no_number(other: Any) -> None:
    """confluent-kafka's comparison leaves an exception behind that a later statement raises."""
    error = own_types.KafkaError(3)
    assert error != other
    with pytest.raises(TypeError):
        operator.lt(error, other)


@pytest.mark.parametrize("arguments", [(), ("text",), (3, "a")])
def test_an_exception_has_the_arguments_that_it_was_given(arguments: tuple[object, ...]) -> None:
    ours, theirs = own_types.KafkaException(*arguments), confluent_kafka.KafkaException(*arguments)
    assert (ours.args, str(ours), repr(ours)) == (theirs.args, str(theirs), repr(theirs))
    assert pickle.loads(pickle.dumps(ours)).args == ours.args


# -- partitions -----------------------------------------------------------------------------------------------------------


PARTITION = ("topic", "partition", "offset", "metadata", "leader_epoch", "error")


def partition_facts(one: Any) -> Any:
    # confluent-kafka's hash is a SystemError for this one.
    hashed = None if (one.topic, one.partition) == ("", -1) else hash(one)
    return [getattr(one, name) for name in PARTITION], hashed, repr(one), str(one)


ROWS = optional(
    topic=st.one_of(TEXTS, WRONG),
    partition=st.one_of(NUMBERS, WRONG),
    offset=st.one_of(NUMBERS, WRONG),
    metadata=st.one_of(TEXTS, WRONG),
    leader_epoch=st.one_of(NUMBERS, WRONG),
)


@given(ROWS)
def test_partitions_are_alike(arguments: dict[str, Any]) -> None:
    theirs, ours = outcomes("TopicPartition", arguments, partition_facts)
    assert ours == theirs


@given(*[st.sampled_from(["a", "b", "é", "\U00010000", "\uffff"]), st.integers(-1, 2)] * 2)
def test_partitions_compare_alike(topic: str, partition: int, other_topic: str, other: int) -> None:
    def facts(module: Any) -> Any:
        left, right = module.TopicPartition(topic, partition, 1), module.TopicPartition(other_topic, other, 2)
        compared = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
        return [(compare(left, right), outcome(lambda: compare(left, 1))) for compare in compared]  # noqa: B023

    assert facts(own_types) == facts(confluent_kafka)


@pytest.mark.filterwarnings("ignore:Truncation of value to int:RuntimeWarning")
@given(st.sampled_from([*PARTITION, "other"]), st.one_of(NUMBERS, WRONG))
def test_attributes_of_partitions_are_set_alike(name: str, value: object) -> None:
    def facts(one: Any) -> Any:
        how, _ = ended = outcome(lambda: setattr(one, name, value))
        # A number that confluent-kafka refuses becomes -1.
        return ended, outcome(lambda: delattr(one, "other")), repr(one) if how == "returned" else None

    theirs, ours = outcomes("TopicPartition", {"topic": "a", "partition": 1, "offset": 2}, facts)
    assert ours == theirs


def test_a_partition_can_be_pickled_and_copied() -> None:
    """confluent-kafka's cannot."""
    one = own_types.TopicPartition("orders", 1, 2, "text", 3)
    for again in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert partition_facts(again) == partition_facts(one)


# -- messages -------------------------------------------------------------------------------------------------------------

BYTES = st.one_of(st.none(), st.binary(max_size=5))
HEADERS = st.one_of(st.none(), st.lists(st.tuples(st.sampled_from(["a", "é", ""]), BYTES), max_size=3))
MESSAGES = optional(
    topic=st.one_of(TEXTS, st.none()),
    partition=st.one_of(NUMBERS, WRONG),
    offset=st.one_of(NUMBERS, WRONG),
    key=st.one_of(BYTES, TEXTS),
    value=st.one_of(BYTES, st.integers()),
    headers=HEADERS,
    error=st.one_of(st.none(), CODES),
    timestamp=st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(-5, 2**40)), st.just([1, 2]), st.just((1,))),
    latency=st.one_of(st.floats(-2, 1e6), st.sampled_from([b"", "text", None])),
    leader_epoch=st.one_of(NUMBERS, WRONG),
    delivery_count=st.one_of(st.integers(-(2**17), 2**17), WRONG),
)
#: A method that replaces a field, and what it gets.
REPLACED = st.lists(
    st.tuples(st.sampled_from(["topic", "key", "value", "headers", "error"]), st.one_of(BYTES, TEXTS, st.integers())),
    max_size=3,
)


def message_facts(message: Any) -> Any:
    getters = [name for name in dir(message) if not name.startswith(("_", "set_"))]
    _, reduced = message.__reduce__()
    return (
        {name: comparable(getattr(message, name)()) for name in getters},
        outcome(lambda: len(message)),
        outcome(lambda: bool(message)),
        [comparable(one) for one in reduced],
        outcome(lambda: hash(message)),
        outcome(lambda: message < message),
        outcome(lambda: message.nothing),
        outcome(lambda: setattr(message, "nothing", 1)),
    )


def comparable(value: Any) -> Any:
    """Return an error's representation, because errors of two classes are not equal."""
    return repr(value) if isinstance(value, (confluent_kafka.KafkaError, own_types.KafkaError)) else value


@needs_2_16
@given(MESSAGES, REPLACED)
def test_messages_are_alike(arguments: dict[str, Any], replaced: list[tuple[str, Any]]) -> None:
    def facts(message: Any) -> Any:
        for name, value in replaced:
            getattr(message, f"set_{name}")(value)
        again = [pickle.loads(pickle.dumps(message)), copy.copy(message), copy.deepcopy(message)]
        for one in again:
            assert type(one) is type(message)
        return [message_facts(one) for one in (message, *again)]

    theirs, ours = outcomes("Message", arguments, facts)
    assert ours == theirs


SMALL = optional(
    topic=st.sampled_from(["a", None]),
    partition=st.sampled_from([0, -1]),
    offset=st.sampled_from([0, -1001]),
    key=st.sampled_from([b"", None]),
    value=st.sampled_from([b"", b"x", None]),
    headers=st.sampled_from([[], [("a", b"b")], None]),
    error=st.sampled_from([3, None]),
    timestamp=st.sampled_from([(0, 0), (1, 0), (1, 5), None]),
    latency=st.sampled_from([0.5, -1.0]),
    leader_epoch=st.sampled_from([0, -1]),
)


@needs_2_16
@given(SMALL, SMALL, st.sampled_from(["key", "value", "headers", "error", None]))
def test_messages_compare_alike(one: dict[str, Any], other: dict[str, Any], removed: str | None) -> None:
    def facts(module: Any) -> Any:
        class Row(module.Message):  # type: ignore[misc]
            pass

        left, right = module.Message(**made_for(module, one)), Row(**made_for(module, other))
        if removed is not None:
            getattr(left, f"set_{removed}")(None)
        return (
            left == right,
            left != right,
            right == left,
            left == module.Message(**made_for(module, one)),
            left == 3,
            left != 3,
        )

    assert facts(own_types) == facts(confluent_kafka)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@needs_2_16
def test_the_classes_have_the_same_names() -> None:
    for name in ("KafkaError", "TopicPartition", "Message"):
        theirs, ours = (
            {one for one in dir(getattr(module, name)) if one[:1] != "_"} for module in (confluent_kafka, own_types)
        )
        assert ours == theirs, name
    for name in ("TIMESTAMP_NOT_AVAILABLE", "TIMESTAMP_CREATE_TIME", "TIMESTAMP_LOG_APPEND_TIME"):
        assert getattr(own_types, name) == getattr(confluent_kafka, name)


@pytest.mark.parametrize("elements", [("a", 2), (1.5, 2), (1, 2**70)])
def test_a_timestamp_of_something_else_than_numbers_is_an_error(elements: tuple[Any, Any]) -> None:
    """confluent-kafka raises SystemError."""
    with pytest.raises((TypeError, OverflowError)):
        own_types.Message(timestamp=elements)


# -- deserializing --------------------------------------------------------------------------------------------------------


def test_the_errors_of_deserializing_are_alike() -> None:
    theirs: Any = pytest.importorskip("confluent_kafka.error")
    for name in ("KeyDeserializationError", "ValueDeserializationError"):
        cause = ValueError("no number")
        both = [getattr(module, name)(exception=cause, kafka_message=7) for module in (theirs, own_deserializing)]
        facts = [(str(one), one.code, one.name, one.exception, one.kafka_message) for one in both]
        assert facts[0] == facts[1]
    assert {one.__name__ for one in own_deserializing.ValueDeserializationError.__mro__} == {
        one.__name__ for one in theirs.ValueDeserializationError.__mro__ if not one.__name__.startswith("_")
    }


# -- the choice -----------------------------------------------------------------------------------------------------------


def test_with_confluent_kafka_the_exported_names_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    package: Any = pytest.importorskip("confluent_kafka")
    assert types.own_because is None
    for name in ("Message", "TopicPartition", "KafkaError", "KafkaException", "DeserializingConsumer", "OFFSET_STORED"):
        assert getattr(confluent, name) is getattr(package, name), name
    assert confluent.SerializationError is package.serialization.SerializationError


def test_every_exported_name_exists() -> None:
    assert all(hasattr(confluent, name) for name in confluent.__all__)
    assert set(confluent.__all__) <= set(dir(confluent))
    with pytest.raises(AttributeError, match="has no attribute 'Producer'"):
        confluent.Producer  # noqa: B018
