"""The part of attrs that this project's clients use, with constructors that are compiled at their first call.

attrs compiles the methods of each class when the module is imported: half a millisecond per class, for about two hundred
classes of which a process constructs a few dozen. Here, comparison, ``repr`` and pickling read the table of fields, and a class
gets its constructor, which is as fast as attrs', when somebody constructs it.

Type checkers see attrs itself. The classes are attrs classes for ``attrs.evolve``, ``attrs.asdict``, ``attrs.fields`` and
``attrs.has`` (they have ``__attrs_attrs__``), but no base classes for classes that attrs makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import NOTHING as NOTHING
    from attrs import AttrsInstance as AttrsInstance
    from attrs import define as define
    from attrs import evolve as evolve
    from attrs import field as field
    from attrs import fields as fields
    from attrs import frozen as frozen
else:
    import functools
    import operator

    class _Nothing:
        """The default of a field that has none."""

        def __repr__(self):
            return "NOTHING"

        def __bool__(self):
            return False

    NOTHING = _Nothing()

    class Field:
        """One field of a class, with the attributes of ``attrs.Attribute`` that readers of ``__attrs_attrs__`` use."""

        __slots__ = ("alias", "default", "eq", "factory", "init", "kw_only", "metadata", "name", "repr")

        def __init__(self, default=NOTHING, factory=None, init=True, repr=True, eq=True, kw_only=False, metadata=None):
            self.default = default
            self.factory = factory
            self.init = init
            self.repr = repr
            self.eq = eq
            self.kw_only = kw_only
            self.metadata = metadata or {}

    def field(**attributes):
        """Define a field, as ``attrs.field`` does, with the attributes of :class:`Field`."""
        return Field(**attributes)

    def fields(cls):
        """Return the fields of a class."""
        return cls.__attrs_attrs__

    def evolve(instance, **changes):
        """Return a copy with changes, as ``attrs.evolve`` does; also of classes that attrs made."""
        for one in instance.__attrs_attrs__:
            if one.init and one.alias not in changes:
                changes[one.alias] = getattr(instance, one.name)
        return instance.__class__(**changes)

    def frozen(maybe_class=None, **options):
        """Make a class immutable, with slots, as ``attrs.frozen`` does: ``eq``, ``repr``, ``kw_only``."""
        return define(maybe_class, frozen=True, **options)

    def define(maybe_class=None, *, frozen=False, eq=True, repr=True, kw_only=False):
        """Make a class with slots, as ``attrs.define`` does: ``eq``, ``repr``, ``kw_only``."""
        if maybe_class is None:
            return functools.partial(_made, frozen=frozen, eq=eq, repr=repr, kw_only=kw_only)
        return _made(maybe_class, frozen, eq, repr, kw_only)

    def _made(cls, frozen, eq, repr, kw_only):
        body = dict(cls.__dict__)
        own = []
        for name, annotation in body.get("__annotations__", {}).items():
            if annotation.startswith(("ClassVar", "typing.ClassVar")):
                continue
            default = body.pop(name, NOTHING)
            one = default if isinstance(default, Field) else Field(default)
            one.name, one.alias, one.kw_only = name, name.lstrip("_"), kw_only or one.kw_only
            own.append(one)
        inherited = [one for base in cls.__mro__[:0:-1] for one in base.__dict__.get("__attrs_own__", ())]
        table = (*inherited, *own)
        body.pop("__dict__", None)
        body.pop("__weakref__", None)
        slots = [one.name for one in own]
        if not any("__weakref__" in base.__dict__ for base in cls.__mro__[1:]):
            slots.append("__weakref__")
        body.update(
            __slots__=tuple(slots),
            __attrs_own__=tuple(own),
            __attrs_attrs__=table,
            __match_args__=tuple(one.name for one in table if one.init and not one.kw_only),
            __getstate__=_getstate,
            __setstate__=_setstate,
        )
        if repr:
            body.setdefault("__repr__", _repr)
        if eq and "__eq__" not in body:
            body.update(__eq__=_eq, __hash__=_hash if frozen else None)
            body["__compared__"] = _values(one.name for one in table if one.eq)
        if frozen:
            body.update(__setattr__=_refuse, __delattr__=_refuse)
        made = type(cls)(cls.__name__, cls.__bases__, body)

        def first_init(self, *args, **kwargs):
            made.__init__ = _compiled_init(made, frozen)
            made.__init__(self, *args, **kwargs)

        made.__init__ = first_init
        return made

    def _compiled_init(cls, frozen):
        """Compile the constructor of a class."""
        names = {"NOTHING": NOTHING, "set_attribute": object.__setattr__}
        positional, by_name, lines = ["self"], [], []
        if frozen:
            lines.append("set_ = set_attribute.__get__(self)")
        for one in cls.__attrs_attrs__:
            value = one.alias
            if one.factory is not None:
                names[f"make_{one.name}"] = one.factory
                made = f"make_{one.name}()"
                value = f"{made} if {one.alias} is NOTHING else {one.alias}" if one.init else made
                default = "NOTHING"
            elif one.default is not NOTHING:
                default = f"default_{one.name}"
                names[default] = one.default
                value = one.alias if one.init else default
            else:
                default = None
            if one.init:
                parameter = one.alias if default is None else f"{one.alias}={default}"
                (by_name if one.kw_only else positional).append(parameter)
            lines.append(f"set_({one.name!r}, {value})" if frozen else f"self.{one.name} = {value}")
        if hasattr(cls, "__attrs_post_init__"):
            lines.append("self.__attrs_post_init__()")
        parameters = ", ".join([*positional, *(["*", *by_name] if by_name else [])])
        source = f"def __init__({parameters}):\n  " + "\n  ".join(lines or ["pass"])
        exec(compile(source, f"<constructor of {cls.__module__}.{cls.__qualname__}>", "exec"), names)
        init = names["__init__"]
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        return init

    def _values(names):
        """Return a function from an instance to the values of these fields, as a key for comparison."""
        names = tuple(names)
        return operator.attrgetter(*names) if names else _no_values

    def _no_values(instance):
        return ()

    def _eq(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self.__compared__(self) == self.__compared__(other)

    def _hash(self):
        return hash((self.__class__, self.__compared__(self)))

    def _repr(self):
        shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in self.__attrs_attrs__ if one.repr)
        return f"{self.__class__.__qualname__.rpartition('>.')[2]}({shown})"

    def _getstate(self):
        return {one.name: getattr(self, one.name) for one in self.__attrs_attrs__}

    def _setstate(self, state):
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def _refuse(self, name, value=None):
        raise AttributeError(f"{self.__class__.__qualname__} is immutable: cannot change {name!r}")
