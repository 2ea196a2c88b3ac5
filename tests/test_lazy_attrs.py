"""``consumer_coord.lazy_attrs`` against attrs: both create the same classes."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import attrs
import pytest

from consumer_coord import lazy_attrs
from consumer_coord.wire.messages.group import HeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol


def value_class(made_by: Any) -> Any:
    @made_by.frozen
    class Base:
        name: str

    @made_by.frozen
    class Value(Base):
        size: int = 3
        parts: list[int] = made_by.field(factory=list)

        def doubled(self) -> int:
            return self.size * 2

    return Value


def identity_class(made_by: Any) -> Any:
    @made_by.frozen(eq=False)
    class Options:
        first: int = 1

    return Options


def other_classes(made_by: Any) -> Any:
    """Return classes with the other options: ``mutable``, ``named``, ``ordered`` and ``secret``."""

    class Classes:
        @made_by.define
        class mutable:  # noqa: N801
            name: str
            _parts: list[int] = made_by.field(factory=list)
            sizes: list[int] = made_by.field(init=False, factory=list)
            kept: object = made_by.field(default=None, eq=False, repr=False)

        @made_by.frozen(kw_only=True)
        class named:  # noqa: N801
            size: int = 3
            name: str

            def __attrs_post_init__(self) -> None:
                if self.size < 0:
                    raise ValueError("size")

        @made_by.frozen(order=True)
        class ordered:  # noqa: N801
            first: int
            second: int

        @made_by.frozen(repr=False)
        class secret:  # noqa: N801
            value: str

    return Classes


#: Probes of :func:`other_classes`.
OTHER_PROBES: dict[str, Callable[[Any], object]] = {
    "alias": lambda c: [(one.name, one.alias, one.init, one.repr, one.eq, one.kw_only) for one in attrs.fields(c.mutable)],
    "an alias is an argument": lambda c: repr(c.mutable("a", parts=[1])).rpartition("mutable")[2],
    "a private name is not": lambda c: c.mutable("a", _parts=[1]),
    "init=False": lambda c: c.mutable("a").sizes,
    "init=False is not an argument": lambda c: c.mutable("a", sizes=[1]),
    "assignment": lambda c: setattr(c.mutable("a"), "name", "b"),
    "slots": lambda c: setattr(c.mutable("a"), "other", "b"),
    "eq=False of a field": lambda c: c.mutable("a", kept=1) == c.mutable("a", kept=2),
    "different": lambda c: c.mutable("a") == c.mutable("b"),
    "mutable values have no hash": lambda c: hash(c.mutable("a")),
    "repr": lambda c: repr(c.mutable("a")).rpartition("mutable")[2],
    "match": lambda c: (c.mutable.__match_args__, c.named.__match_args__),
    "evolve": lambda c: attrs.evolve(c.mutable("a", parts=[1]), name="b") == c.mutable("b", parts=[1]),
    "copy": lambda c: copy.copy(c.mutable("a", [1])) == c.mutable("a", [1]),
    "kw_only": lambda c: c.named("a"),
    "kw_only with a default first": lambda c: (c.named(name="a").size, c.named(name="a", size=1).size),
    "post-init": lambda c: c.named(name="a", size=-1),
    "order": lambda c: sorted([c.ordered(2, 1), c.ordered(1, 2), c.ordered(1, 1)])[0] == c.ordered(1, 1),
    "comparisons": lambda c: (c.ordered(1, 2) <= c.ordered(1, 2), c.ordered(1, 2) > c.ordered(1, 1)),
    "order of other classes": lambda c: c.ordered(1, 2) < 3,
    "no order": lambda c: c.mutable("a") < c.mutable("b"),
    "repr=False": lambda c: "hidden" in repr(c.secret("hidden")),
}


PROBES: dict[str, Callable[[Any, Any], object]] = {
    "repr": lambda v, o: repr(v("a", 4)).rpartition("Value")[2],
    "defaults": lambda v, o: (v("a").size, v("a").parts, v("a").doubled()),
    "factories are called each time": lambda v, o: v("a").parts is v("a").parts,
    "equal": lambda v, o: (v("a") == v("a"), v("a") == v("b"), v("a") == "a", v("a") != v("a", 4)),
    "hash": lambda v, o: hash(v("a", parts=())) == hash(v("a", parts=())),
    "a list has no hash": lambda v, o: hash(v("a")),
    "identity": lambda v, o: (o() == o(), hash(o()) == hash(o(2))),
    "change": lambda v, o: setattr(v("a"), "size", 4),
    "delete": lambda v, o: delattr(v("a"), "size"),
    "no such attribute": lambda v, o: setattr(v("a"), "other", 4),
    "missing argument": lambda v, o: v(),
    "unknown argument": lambda v, o: v("a", other=1),
    "copy": lambda v, o: (copy.copy(v("a", 9)) == v("a", 9), copy.deepcopy(v("a", 9)) == v("a", 9)),
    "evolve": lambda v, o: attrs.evolve(v("a", 9), size=1) == v("a", 1),
    "asdict": lambda v, o: attrs.asdict(v("a", parts=[1])),
    "fields": lambda v, o: [(one.name, one.alias, one.init, one.repr, one.kw_only) for one in attrs.fields(v)],
    "has": lambda v, o: attrs.has(v),
    "match": lambda v, o: v.__match_args__,
    "weak reference": lambda v, o: weakref.ref(v("a"))() is None,
}


@pytest.mark.parametrize("probe", PROBES)
def test_classes_behave_as_those_that_attrs_makes(probe: str) -> None:
    def seen(made_by: ModuleType) -> object:
        classes = value_class(made_by), identity_class(made_by)
        try:
            return PROBES[probe](*classes)
        except (AttributeError, TypeError) as error:
            return AttributeError if isinstance(error, AttributeError) else TypeError

    assert seen(lazy_attrs) == seen(attrs)


@pytest.mark.parametrize("probe", OTHER_PROBES)
def test_the_options_have_the_effects_that_they_have_in_attrs(probe: str) -> None:
    def seen(made_by: ModuleType) -> object:
        try:
            return OTHER_PROBES[probe](other_classes(made_by))
        except (AttributeError, TypeError, ValueError) as error:
            return next(kind for kind in (AttributeError, TypeError, ValueError) if isinstance(error, kind))

    assert seen(lazy_attrs) == seen(attrs)


@pytest.mark.parametrize("change", [lazy_attrs.evolve, lambda value, **changes: value.__replace__(**changes)])
def test_a_copy_with_changed_fields(change: Callable[..., Any]) -> None:
    """In two forms; Python 3.13's ``copy.replace`` calls ``__replace__``."""
    value = change(other_classes(lazy_attrs).mutable("a", parts=[1]), name="b")
    assert repr(value).endswith("mutable(name='b', _parts=[1], sizes=[])")


def test_a_class_with_its_own_constructor_is_refused() -> None:
    with pytest.raises(TypeError, match="Own has its own __init__: use attrs"):

        @lazy_attrs.define
        class Own:
            def __init__(self) -> None:
                """Set nothing."""


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


def test_the_consumers_do_not_import_attrs_nor_the_parts_for_columns_scram_and_retries() -> None:
    program = "import sys, consumer_coord; consumer_coord.GroupConsumer; consumer_coord.AsyncGroupConsumer; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    needless = {
        "attr",
        "tenacity",
        "tempfile",
        "difflib",
        "datetime",
        "consumer_coord.fetch",
        "consumer_coord.columns",
        "consumer_coord.net.scram",
    }
    assert not needless & set(loaded)
