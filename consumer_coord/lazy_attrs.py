"""The part of attrs that the client uses, but with constructors that are compiled when they are first called.

The import of attrs takes 20 ms of processor time, and attrs compiles the methods of each class when the class's module is
imported, which takes another half a millisecond per class. A consumer imports more than 150 classes, and creates instances of
few of them before its first record. In this module, comparison, ``repr`` and pickling read the table of fields instead. The
constructor of a class is compiled when it is first called, and is as fast as attrs' constructor.

Type checkers see attrs itself. The classes are attrs classes for ``attrs.evolve``, ``attrs.asdict``, ``attrs.fields`` and
``attrs.has`` (they have ``__attrs_attrs__``), but they cannot be base classes of attrs classes. Their methods cannot call
``super()`` without arguments. Validators and converters are not supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attrs import NOTHING as NOTHING
    from attrs import AttrsInstance as AttrsInstance
    from attrs import define as define
    from attrs import evolve as evolve
    from attrs import field as field
    from attrs import fields as fields
    from attrs import frozen as frozen

    def frozen_class(metaclass: type, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        """Create the class that :func:`frozen` would create from the class with these arguments."""

else:
    import functools
    import operator

    class _Nothing:
        """Marks a field that has no default."""

        def __repr__(self):
            return "NOTHING"

        def __bool__(self):
            return False

    NOTHING = _Nothing()

    class Field:
        """A field of a class, with the attributes of ``attrs.Attribute`` that readers of ``__attrs_attrs__`` use."""

        kw_only = False

        def __init__(self, default=NOTHING, factory=None, metadata=None, init=True, repr=True, eq=True):
            self.default = default
            self.factory = factory
            self.metadata = metadata or {}
            self.init = init
            self.repr = repr
            self.eq = eq

    def field(**attributes):
        """Define a field, as ``attrs.field`` does, with the attributes of :class:`Field`."""
        return Field(**attributes)

    def fields(cls):
        """Return the fields of a class."""
        return cls.__attrs_attrs__

    def evolve(instance, /, **changes):
        """Create a copy with changed fields."""
        for one in instance.__attrs_attrs__:
            if one.init and one.alias not in changes:
                changes[one.alias] = getattr(instance, one.name)
        return instance.__class__(**changes)

    def define(maybe_class=None, **options):
        """Create a class with slots, as ``attrs.define`` does, with the options of :func:`_class`."""
        if maybe_class is None:
            return functools.partial(define, **options)
        body = dict(maybe_class.__dict__, __qualname__=maybe_class.__qualname__)
        body.pop("__dict__", None)
        body.pop("__weakref__", None)
        return _class(type(maybe_class), maybe_class.__name__, maybe_class.__bases__, body, **options)

    frozen = functools.partial(define, frozen=True)

    def frozen_class(metaclass, name, bases, body):
        """Create the class that :func:`frozen` would create from the class with these arguments."""
        return _class(metaclass, name, bases, body, frozen=True)

    def _class(metaclass, name, bases, body, *, frozen=False, kw_only=False, eq=True, order=False, repr=True):
        if "__init__" in body:
            raise TypeError(f"{name} has its own __init__: use attrs instead of lazy_attrs")
        own = _fields_of(body, kw_only)
        table = (*(one for base in bases for one in getattr(base, "__attrs_attrs__", ())), *own)
        slots = [one.name for one in own]
        if not any(hasattr(base, "__weakref__") for base in bases):
            slots.append("__weakref__")
        body.update(
            __slots__=tuple(slots),
            __attrs_attrs__=table,
            __match_args__=tuple(one.name for one in table if one.init and not one.kw_only),
            __getstate__=_getstate,
            __setstate__=_setstate,
            __replace__=evolve,
        )
        if frozen:
            body.update(__setattr__=_refuse, __delattr__=_refuse)
        if repr:
            body.setdefault("__repr__", _repr)
        if eq and "__eq__" not in body:
            # Python makes a mutable class with __eq__ unhashable.
            body.update(__eq__=_eq, __compared__=_values(one.name for one in table if one.eq))
            if frozen:
                body["__hash__"] = _hash
        if order:
            body.update({f"__{name}__": _comparison(getattr(operator, name)) for name in ("lt", "le", "gt", "ge")})
        made = type.__new__(metaclass, name, bases, body)

        def first_init(self, *args, **kwargs):
            made.__init__ = _compiled_init(made, frozen)
            made.__init__(self, *args, **kwargs)

        made.__init__ = first_init
        return made

    def _fields_of(body, kw_only):
        """Remove the fields' defaults from the body of a class, and return the fields."""
        found = []
        for name, annotation in body.get("__annotations__", {}).items():
            if annotation.startswith("ClassVar"):
                continue
            default = body.pop(name, NOTHING)
            one = default if isinstance(default, Field) else Field(default)
            one.name, one.alias, one.kw_only = name, name.lstrip("_"), kw_only
            found.append(one)
        return found

    def _compiled_init(cls, frozen):
        """Compile the constructor of a class."""
        names = {"NOTHING": NOTHING, "set_attribute": object.__setattr__}
        positional, by_name, lines = ["self"], [], ["set_ = set_attribute.__get__(self)"] if frozen else ["pass"]
        for one in cls.__attrs_attrs__:
            name, value = one.name, one.alias
            parameters = by_name if one.kw_only else positional
            if one.factory is not None:
                names[f"make_{value}"] = one.factory
                made = f"make_{value}()"
                parameter, value = f"{value}=NOTHING", f"{made} if {value} is NOTHING else {value}" if one.init else made
            elif one.default is not NOTHING:
                names[f"default_{value}"] = one.default
                parameter, value = f"{value}=default_{value}", value if one.init else f"default_{value}"
            else:
                parameter = value
            if one.init:
                parameters.append(parameter)
            lines.append(f"set_({name!r}, {value})" if frozen else f"self.{name} = {value}")
        if hasattr(cls, "__attrs_post_init__"):
            lines.append("self.__attrs_post_init__()")
        parameters = [*positional, *(["*"] if by_name else []), *by_name]
        source = f"def __init__({', '.join(parameters)}):\n  " + "\n  ".join(lines)
        exec(compile(source, f"<constructor of {cls.__module__}.{cls.__qualname__}>", "exec"), names)
        init = names["__init__"]
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        return init

    def _values(names):
        """Return a function that returns the values of these fields of an instance, for comparison."""
        names = tuple(names)
        return operator.attrgetter(*names) if names else _no_values

    def _no_values(instance):
        return ()

    def _comparison(compare):
        def method(self, other):
            if other.__class__ is not self.__class__:
                return NotImplemented
            return compare(self.__compared__(self), self.__compared__(other))

        return method

    _eq = _comparison(operator.eq)

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
