"""Rows of decoded responses next to messages that confluent-kafka's own consumer read from the same log."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import confluent_kafka
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.columns import CompletedFetch, kernel
from consumer_coord.columns.decode_messages import Messages, kept_chunks
from consumer_coord.consumer import message_type as production
from tests.support.columns.batches import APPEND_TIME, CODECS, Rec, batch
from tests.support.columns.old_messages import OFFSETS, every_kind
from tests.support.consumer.embedded import DEADLINE_S, change_log
from tests.support.waiting import eventually

#: Records that a program may meet, but seldom does.
ODD = (
    Rec(0, None, None),
    Rec(1, b"", b""),
    Rec(2, b"\xff\xfe", b"\0"),
    Rec(3, b"k", b"v", ((b"a", None), (b"a", b""), (b"b", b"\0x"), (b"a", b"again"))),
    Rec(4, b"k", b"v", ((b"", b"no name"), (b"end\0behind", b"1"), ("größe €".encode(), b"2"))),
    Rec(5, timestamp_delta=-1_700_000_000_001),  # -1: no timestamp
    Rec(6, timestamp_delta=-1_700_000_000_000),
    Rec(7, timestamp_delta=-1_700_000_000_005),
    Rec(8, None, b"v" * 20_000, ((b"h", b"x" * 300),)),
    Rec(9, b"k" * 20_000, None),
)
PUBLIC = [name for name in dir(Message) if not name.startswith("_")]
GETTERS = [name for name in PUBLIC if not name.startswith("set_")]
SETTERS = [name for name in PUBLIC if name.startswith("set_")]


def drawn(count: int) -> list[Rec]:
    """Return records drawn at random, the same in every run."""
    chance = random.Random(7)

    def some(most: int) -> bytes | None:
        return None if chance.random() < 0.2 else chance.randbytes(chance.randrange(most))

    return [
        Rec(
            at,
            some(9),
            some(300),
            tuple((chance.choice([b"a", b"b", b"trace-id"]), some(9)) for _ in range(chance.choice([0, 0, 0, 1, 3]))),
            chance.randrange(-(10**6), 10**6),
        )
        for at in range(count)
    ]


@attrs.frozen
class Log:
    """The bytes of a log, and its messages as confluent-kafka read them several times."""

    records: bytes = attrs.field(repr=False)
    first: Sequence[Any] = attrs.field(repr=False)
    second: Sequence[Any] = attrs.field(repr=False)
    #: Kernel -> messages for a test that changes them, and the same messages as rows.
    changed: Mapping[str, Sequence[Any]] = attrs.field(repr=False)
    rows: dict[str, Sequence[Any]] = attrs.field(factory=dict, repr=False)


@pytest.fixture(scope="module")
def log() -> Iterator[Log]:
    parts = [batch(ODD), batch(ODD[:4], flags=APPEND_TIME, max_timestamp=1_600_000_000_000)]
    parts += [batch(drawn(40), codec=codec) for codec in CODECS]
    count = len(ODD) + 4 + 40 * len(CODECS)
    found: list[bytes] = []

    def write(log: PartitionLog) -> None:
        for epoch, part in enumerate(parts):
            log.append(part, epoch)
        found.append(bytes(log.read(0, 1 << 30, True)))

    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        change_log(kafka, write)
        changed = {name: read(kafka, count) for name in ("c", "python")}
        yield Log(found[0], read(kafka, count), read(kafka, count), changed)


def read(kafka: EmbeddedKafka, count: int) -> list[Any]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    found: list[Any] = []
    eventually(
        lambda: len(found) >= count,
        f"{count} messages",
        within_s=DEADLINE_S,
        step=lambda: found.extend(consumer.consume(count, 0.1)),
    )
    consumer.close()
    return found


def test_old_formats_are_read_as_librdkafka_reads_them(created: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    if confluent_kafka.libversion()[1] < 0x02100000:
        pytest.skip("librdkafka 2.8 reads no message of the log that this test makes up; 2.16 does")

    def read_old(self: PartitionLog, offset: int, *_: Any, **options: Any) -> bytes:
        return every_kind() if offset < OFFSETS[-1] else b""

    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        change_log(kafka, lambda log: log.append(batch([Rec(at) for at in range(OFFSETS[-1] + 1)]), 0))
        monkeypatch.setattr(PartitionLog, "read", read_old)
        monkeypatch.setattr(PartitionLog, "available", lambda *_, **options: len(every_kind()))
        reals = read(kafka, len(OFFSETS))
    rows = rows_of(created, every_kind())
    assert [one.offset() for one in reals] == OFFSETS
    for row, real in zip(rows, reals, strict=True):
        assert seen(row) == seen(real)


def rebuild(*fields: Any) -> Any:
    """Create a message with the kernel of the running test; pickle finds this function by its name."""
    return CREATE["now"](*fields)


CREATE: dict[str, Callable[..., Any]] = {"now": production.rebuild}


@pytest.fixture(params=["c", "python"])
def created(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Messages:
    """Messages of one kernel."""
    return messages_of(request.param, monkeypatch)


def messages_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Messages:
    try:
        _, module = kernel.load(name)
    except ImportError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(kernel, "kernel", module)
    if name not in TYPES:
        TYPES[name] = Messages(Message, rebuild)
    monkeypatch.setitem(CREATE, "now", TYPES[name].create)
    return TYPES[name]


#: A class of messages lives as long as the process.
TYPES: dict[str, Messages] = {}


def rows_of(created: Messages, records: bytes, **options: Any) -> list[Any]:
    """Read all messages, some at once and some alone."""
    fetch = CompletedFetch(records, topic="orders", partition=0, offset=0, **options)
    kept, found = kept_chunks(), []
    while not fetch.exhausted:
        rows = created.decode(fetch, kept, max_bytes=10_000)
        found += rows.take(3)
        while len(rows):
            found.append(rows.take_one())
        assert rows.take_one() is None
    return found


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns or raises, in a form that can be compared."""
    try:
        result = call()
    except Exception as error:  # noqa: BLE001  # the error is the result
        return type(error), str(error)
    return type(result), result


def seen(message: Any) -> dict[str, Any]:
    """Return what a program can see of a message, but for its identity."""
    found = {name: outcome(getattr(message, name)) for name in GETTERS}
    hashed = outcome(lambda: hash(message))
    found["hash"] = hashed if hashed[0] is TypeError else hashed[0]
    found["len"] = outcome(lambda: len(message))
    found["bool"] = outcome(lambda: bool(message))
    found["repr"] = repr(message).partition(" at ")[0]
    return found


def test_a_row_returns_what_the_message_returns(log: Log, created: Messages) -> None:
    rows = rows_of(created, log.records)
    assert len(rows) == len(log.first)
    for row, real in zip(rows, log.first, strict=True):
        assert isinstance(row, Message)
        assert seen(row) == seen(real)


def test_a_row_returns_the_same_objects_each_time(log: Log, created: Messages) -> None:
    for row in rows_of(created, log.records):
        for name in ("value", "key", "headers"):
            assert getattr(row, name)() is getattr(row, name)()


def test_the_type_has_the_methods_and_the_documentation_of_the_installed_version(log: Log, created: Messages) -> None:
    kind = type(rows_of(created, log.records)[0])
    assert [name for name in dir(kind) if not name.startswith("_")] == PUBLIC
    assert kind.__doc__ == Message.__doc__
    assert (kind.__name__, kind.__module__) == (Message.__name__, Message.__module__)
    for name in PUBLIC:
        assert getattr(kind, name).__doc__ == getattr(Message, name).__doc__ or "deserialized" not in name


def test_wrong_arguments_get_the_same_errors(log: Log, created: Messages) -> None:
    row, real = rows_of(created, log.records)[0], log.first[0]
    for name in PUBLIC:
        calls: list[Callable[[Any], Any]] = [
            lambda message, name=name: getattr(message, name)(1, 2),  # type: ignore[misc]
            lambda message, name=name: getattr(message, name)(x=1),  # type: ignore[misc]
        ]
        if name in SETTERS:
            calls.append(lambda message, name=name: getattr(message, name)())  # type: ignore[misc]
        for call in calls:
            mine, theirs = outcome(lambda call=call: call(row)), outcome(lambda call=call: call(real))  # type: ignore[misc]
            assert mine[0] is theirs[0] is TypeError
            assert mine == theirs or is_in_python(type(row))
    for change in (lambda message: setattr(message, "x", 1), lambda message: message < message, lambda message: message[0]):
        assert outcome(lambda change=change: change(row))[0] == outcome(lambda change=change: change(real))[0]  # type: ignore[misc]


def is_in_python(kind: type) -> bool:
    """Return whether Python's own texts for wrong arguments are right, because the class has methods in Python."""
    return inspect.isfunction(kind.topic)  # type: ignore[attr-defined]


OBJECTS = st.sampled_from([None, b"", b"bytes", "text", 5, 1.5, [], [("h", b"1")], {"a": 1}, (1,)])


@pytest.mark.parametrize("kernel_name", ["c", "python"])
@given(data=st.data())
def test_after_changes_a_row_is_what_the_message_is(log: Log, kernel_name: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patched:
        created = messages_of(kernel_name, patched)
        if kernel_name not in log.rows:
            log.rows[kernel_name] = rows_of(created, log.records)
    # The changes of earlier examples remain, in both.
    rows, reals = log.rows[kernel_name], log.changed[kernel_name]
    at = data.draw(st.integers(0, len(rows) - 1))
    row, real, other = rows[at], reals[at], log.second[at]
    for name, given_object in data.draw(st.lists(st.tuples(st.sampled_from(SETTERS), OBJECTS), max_size=4)):
        for message in (row, real):
            assert getattr(message, name)(given_object) is None
        getter = getattr(row, name.removeprefix("set_"))
        assert getter() is given_object
        assert getter() is given_object
        assert seen(row) == seen(real)
    assert (row == other) == (real == other)
    assert (other == row) == (other == real)
    if hasattr(Message, "__new__") and Message.__reduce__ is not object.__reduce__:
        assert pickle.loads(pickle.dumps(row)) == pickle.loads(pickle.dumps(real))


def test_equality_in_both_directions(log: Log, created: Messages) -> None:
    """Older versions compare identities, so two messages of one record differ there."""
    rows, again = rows_of(created, log.records), rows_of(created, log.records)
    for i, row in enumerate(rows):
        for j in {i, 0, 3, len(rows) - 1}:
            expected = log.first[i] == log.second[j]
            assert (row == log.first[j]) == (log.first[j] == row) == (row == again[j]) == expected
            assert (row != log.first[j]) == (log.first[j] != row) == (row != again[j]) != expected
        assert row == row
        assert row != 5
        assert row != row.value()


def test_one_different_field_makes_a_difference(created: Messages) -> None:
    if Message.__eq__ is object.__eq__:
        pytest.skip("this version of confluent-kafka compares identities")
    fields = ["orders", 1, 5, b"k", b"v", [("h", b"1")], None, (1, 2), 1.5, 3, None]
    changed = ["other", 2, 6, b"l", b"w", None, confluent_kafka.KafkaError(3), (1, 3), 2.5, 4, None]
    message = created.create(*fields)
    assert message == created.create(*fields)
    for at, value in enumerate(changed):
        other = created.create(*fields[:at], value, *fields[at + 1 :])
        expected = Message(*fields[:10]) == Message(*fields[:at], value, *fields[at + 1 :][: 9 - at]) if at < 10 else True
        assert (message == other) == (other == message) == expected, at


@pytest.mark.parametrize("way", ["pickle", "copy", "deepcopy"])
def test_a_copy_is_a_message_with_its_own_bytes(log: Log, created: Messages, way: str) -> None:
    ways: dict[str, Callable[[Any], Any]] = {
        "pickle": lambda one: pickle.loads(pickle.dumps(one)),
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
    }
    for row in rows_of(created, log.records):
        if way == "copy":
            row.set_value([1])
        made = ways[way](row)
        assert isinstance(made, Message)
        assert seen(made) == seen(row)
        if way != "copy":
            made.set_headers([])
            assert row.headers() != []


def test_a_header_key_that_is_not_utf_8_is_replaced_as_in_columns(created: Messages) -> None:
    """confluent-kafka raises SystemError here."""
    [row] = rows_of(created, batch([Rec(0, headers=((b"a\xff", b"1"), (b"\xed\xa0\x80", b"2")))]))
    assert row.headers() == [("a\ufffd", b"1"), ("\ufffd", b"2")]


def test_a_message_that_is_no_row(created: Messages) -> None:
    error = confluent_kafka.KafkaError(3)
    message = created.create("orders", None, None, None, b"text", None, error, (0, -1), None, None, None)
    assert isinstance(message, Message)
    assert [message.error(), message.topic(), message.value(), message.timestamp()] == [error, "orders", b"text", (0, -1)]
    assert [getattr(message, name)() for name in ("partition", "offset", "key", "headers", "latency", "leader_epoch")] == [
        None
    ] * 6
    assert message


def test_the_constructor_is_that_of_the_installed_version(log: Log, created: Messages) -> None:
    kind: Any = type(rows_of(created, log.records)[0])
    arguments = {"topic": "orders", "partition": 2, "key": b"k", "latency": 1.5, "timestamp": (1, 5)}
    made, real = outcome(lambda: kind(**arguments)), outcome(lambda: Message(**arguments))
    if made[0] is TypeError:
        assert made == real or (is_in_python(kind) and real[0] is TypeError)
    else:
        assert seen(made[1]) == seen(real[1])


def test_messages_and_what_they_refer_to_are_collected(log: Log, created: Messages) -> None:
    class Value:
        """An object that refers to its message."""

        message: Any

    watched = []
    for row in rows_of(created, log.records)[:20]:
        value = Value()
        value.message = row
        row.set_value(value)
        row.set_key(row)
        watched.append(weakref.ref(value))
    del row, value
    gc.collect()
    assert not [one for one in watched if one() is not None]


def test_what_a_method_of_the_base_stores_is_freed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows_of(messages_of("c", monkeypatch), log.records)[3]
    stored = object()
    before = sys.getrefcount(stored)
    Message.set_value(row, stored)
    assert row.value() == b"v"
    del row
    assert sys.getrefcount(stored) == before


def test_confluent_kafkas_own_consumer_refuses_a_row_without_a_crash(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows_of(messages_of("c", monkeypatch), log.records)[0]
    consumer = confluent_kafka.Consumer({"group.id": "g", "enable.auto.offset.store": False})
    for call in (consumer.store_offsets, consumer.commit):
        with pytest.raises(TypeError, match="Message"):
            call(message=row)
    consumer.close()


def test_consumers_create_messages_of_the_installed_class(log: Log) -> None:
    rows = rows_of(production.MESSAGES, log.records)
    assert all(isinstance(one, Message) for one in rows)
    assert [seen(one) for one in pickle.loads(pickle.dumps(rows))] == [seen(one) for one in rows]
