"""``consumer_coord.wire.lazy_attrs`` against attrs itself: the same classes, made by both."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import attrs
import pytest

from consumer_coord.wire import lazy_attrs
from consumer_coord.wire.messages.group import HeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol


def value_class(made_by: Any) -> Any:
    @made_by.frozen
    class Value:
        KIND: ClassVar[str] = "value"
        name: str
        size: int = 3
        secret: str = made_by.field(default="s", repr=False)
        parts: list[int] = made_by.field(factory=list)
        noise: int = made_by.field(default=0, eq=False, kw_only=True)
        _hidden: int = made_by.field(default=7, init=False)

        def doubled(self) -> int:
            return self.size * 2

    return Value


def mutable_class(made_by: Any) -> Any:
    @made_by.define
    class Counter:
        _count: int
        step: int = 1

        def __attrs_post_init__(self) -> None:
            self.step *= 2

    return Counter


def keyword_class(made_by: Any) -> Any:
    @made_by.frozen(kw_only=True, eq=False)
    class Options:
        first: int = 1
        second: str

    return Options


PROBES: dict[str, Callable[[Any, Any, Any], object]] = {
    "repr": lambda v, c, o: repr(v("a", 4, noise=9)).rpartition("Value")[2],
    "defaults": lambda v, c, o: (v("a").size, v("a").parts, v("a")._hidden, v("a").doubled(), v.KIND),
    "factories are called each time": lambda v, c, o: v("a").parts is v("a").parts,
    "equal": lambda v, c, o: (v("a") == v("a", noise=5), v("a") == v("b"), v("a") == "a", v("a") != v("a", 4)),
    "hash": lambda v, c, o: hash(v("a", parts=())) == hash(v("a", parts=(), noise=1)),
    "a list has no hash": lambda v, c, o: hash(v("a")),
    "change": lambda v, c, o: setattr(v("a"), "size", 4),
    "delete": lambda v, c, o: delattr(v("a"), "size"),
    "no such attribute": lambda v, c, o: setattr(c(1), "other", 4),
    "missing argument": lambda v, c, o: v(),
    "unknown argument": lambda v, c, o: v("a", other=1),
    "keyword only": lambda v, c, o: o(1, "x"),
    "keywords": lambda v, c, o: (o(second="x").first, o(second="x") == o(second="x")),
    "not an argument": lambda v, c, o: v("a", hidden=1),
    "private name": lambda v, c, o: (c(count=4)._count, c(4, step=5).step, c(4) == c(4)),
    "mutable classes have no hash": lambda v, c, o: hash(c(1)),
    "copy": lambda v, c, o: (copy.copy(v("a", 9)) == v("a", 9), copy.deepcopy(v("a", 9)) == v("a", 9)),
    "evolve": lambda v, c, o: attrs.evolve(v("a", 9), size=1) == v("a", 1),
    "evolve of a private name": lambda v, c, o: attrs.evolve(c(1, 2), count=5)._count,
    "asdict": lambda v, c, o: attrs.asdict(v("a", parts=[1])),
    "fields": lambda v, c, o: [(one.name, one.alias, one.init, one.repr, one.kw_only) for one in attrs.fields(v)],
    "has": lambda v, c, o: attrs.has(v),
    "match": lambda v, c, o: v.__match_args__,
    "weak reference": lambda v, c, o: weakref.ref(v("a"))() is None,
}


@pytest.mark.parametrize("probe", PROBES)
def test_classes_behave_as_those_that_attrs_makes(probe: str) -> None:
    def seen(made_by: ModuleType) -> object:
        classes = (value_class(made_by), mutable_class(made_by), keyword_class(made_by))
        try:
            return PROBES[probe](*classes)
        except (AttributeError, TypeError) as error:
            return AttributeError if isinstance(error, AttributeError) else TypeError

    assert seen(lazy_attrs) == seen(attrs)


def test_evolve_takes_classes_of_both_kinds() -> None:
    assert lazy_attrs.evolve(value_class(attrs)("a", 9), size=1).size == 1
    assert lazy_attrs.evolve(value_class(lazy_attrs)("a", 9), size=1).size == 1


def test_values_can_be_pickled_before_and_after_their_first_construction_in_a_process() -> None:
    request = JoinGroupRequest("g", protocols=(JoinGroupRequestProtocol("range", b"m"),))
    data = pickle.dumps(request)
    assert pickle.loads(data) == request
    program = f"import pickle; print(repr(pickle.loads({data!r})))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == repr(request)


def test_a_constructor_is_compiled_once() -> None:
    HeartbeatRequest("g", 1, "m")
    compiled = HeartbeatRequest.__init__
    HeartbeatRequest("g", 2, "m")
    assert HeartbeatRequest.__init__ is compiled


def test_the_consumers_do_not_import_the_parts_for_columns_scram_and_retries() -> None:
    program = "import sys, consumer_coord; consumer_coord.GroupConsumer; consumer_coord.AsyncGroupConsumer; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    needless = {
        "tenacity",
        "tempfile",
        "difflib",
        "datetime",
        "consumer_coord.fetch",
        "consumer_coord.columns",
        "consumer_coord.net.scram",
    }
    assert not needless & set(loaded)
