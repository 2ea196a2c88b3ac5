"""The part of attrs that messages use, but with constructors that are compiled when they are first called.

attrs compiles the methods of each class when the class's module is imported. This takes half a millisecond per class, for more
than a hundred classes, of which a process uses a few dozen. In this module, comparison, ``repr`` and pickling read the table of
fields instead. The constructor of a class is compiled when it is first called, and is as fast as attrs' constructor.

Type checkers see attrs itself. The classes are attrs classes for ``attrs.evolve``, ``attrs.asdict``, ``attrs.fields`` and
``attrs.has`` (they have ``__attrs_attrs__``), but they cannot be base classes of attrs classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attrs import NOTHING as NOTHING
    from attrs import AttrsInstance as AttrsInstance
    from attrs import field as field
    from attrs import fields as fields
    from attrs import frozen as frozen

    def frozen_class(metaclass: type, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        """Create the class that :func:`frozen` would create from the class with these arguments."""

else:
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

        init = repr = eq = True
        kw_only = False

        def __init__(self, default=NOTHING, factory=None, metadata=None):
            self.default = default
            self.factory = factory
            self.metadata = metadata or {}

    def field(**attributes):
        """Define a field, as ``attrs.field`` does, with the attributes of :class:`Field`."""
        return Field(**attributes)

    def fields(cls):
        """Return the fields of a class."""
        return cls.__attrs_attrs__

    def frozen(maybe_class=None, *, eq=True):
        """Create an immutable class with slots, as ``attrs.frozen`` does."""
        if maybe_class is None:
            return lambda cls: frozen(cls, eq=eq)
        body = dict(maybe_class.__dict__)
        body.pop("__dict__", None)
        body.pop("__weakref__", None)
        return frozen_class(type(maybe_class), maybe_class.__name__, maybe_class.__bases__, body, eq=eq)

    def frozen_class(metaclass, name, bases, body, *, eq=True):
        """Create the class that :func:`frozen` would create from the class with these arguments."""
        own = []
        for field_name in body.get("__annotations__", {}):
            default = body.pop(field_name, NOTHING)
            one = default if isinstance(default, Field) else Field(default)
            one.name = one.alias = field_name
            own.append(one)
        table = (*(one for base in bases for one in getattr(base, "__attrs_attrs__", ())), *own)
        slots = [one.name for one in own]
        if not any(hasattr(base, "__weakref__") for base in bases):
            slots.append("__weakref__")
        body.update(
            __slots__=tuple(slots),
            __attrs_attrs__=table,
            __match_args__=tuple(one.name for one in table),
            __getstate__=_getstate,
            __setstate__=_setstate,
            __setattr__=_refuse,
            __delattr__=_refuse,
        )
        body.setdefault("__repr__", _repr)
        if eq and "__eq__" not in body:
            body.update(__eq__=_eq, __hash__=_hash, __compared__=_values(one.name for one in table))
        made = type.__new__(metaclass, name, bases, body)

        def first_init(self, *args, **kwargs):
            made.__init__ = _compiled_init(made)
            made.__init__(self, *args, **kwargs)

        made.__init__ = first_init
        return made

    def _compiled_init(cls):
        """Compile the constructor of a class."""
        names = {"NOTHING": NOTHING, "set_attribute": object.__setattr__}
        parameters, lines = ["self"], ["set_ = set_attribute.__get__(self)"]
        for one in cls.__attrs_attrs__:
            name = value = one.name
            if one.factory is not None:
                names[f"make_{name}"] = one.factory
                value = f"make_{name}() if {name} is NOTHING else {name}"
                parameters.append(f"{name}=NOTHING")
            elif one.default is not NOTHING:
                names[f"default_{name}"] = one.default
                parameters.append(f"{name}=default_{name}")
            else:
                parameters.append(name)
            lines.append(f"set_({name!r}, {value})")
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

    def _eq(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self.__compared__(self) == self.__compared__(other)

    def _hash(self):
        return hash((self.__class__, self.__compared__(self)))

    def _repr(self):
        shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in self.__attrs_attrs__)
        return f"{self.__class__.__qualname__.rpartition('>.')[2]}({shown})"

    def _getstate(self):
        return {one.name: getattr(self, one.name) for one in self.__attrs_attrs__}

    def _setstate(self, state):
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def _refuse(self, name, value=None):
        raise AttributeError(f"{self.__class__.__qualname__} is immutable: cannot change {name!r}")
