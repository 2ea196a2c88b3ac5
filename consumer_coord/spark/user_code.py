"""Transport a user's code: assignors and packing functions to the planner, token callbacks to every process.

Options of a query are texts, so a text names the code:

* the name of a built-in or of an entry point (assignors only), for an installed package;
* ``module:attribute`` of a module that the planner can import: an installed package, or a file passed with ``--py-files``;
* the result of :func:`by_value`, which pickles a class or function of a notebook.
"""

from __future__ import annotations

import base64
import importlib
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from consumer_coord.errors import ConfigurationError
from consumer_coord.spark.packing import TaskSplitter

if TYPE_CHECKING:
    from assignors.base import Assignor

#: Prefix of the text for an object that was pickled by value.
BY_VALUE = "by-value:"

#: The only supported setting of Kafka whose value is a function.
OAUTH_CB = "oauth_cb"


def by_value(hook: Any) -> str:
    """Return a text with a class or function, as the value of ``assignor``, ``taskSplitter`` or ``kafka.oauth_cb``.

    The object is pickled by value, so the processes that run it need not import it. These processes must be able to import the
    modules that the object imports.
    """
    from pyspark import cloudpickle

    module = importlib.import_module(hook.__module__) if getattr(hook, "__module__", None) else None
    register = module is not None and module.__name__ != "__main__"
    if register:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled = cloudpickle.dumps(hook)
    finally:
        if register:
            cloudpickle.unregister_pickle_by_value(module)
    return BY_VALUE + base64.b64encode(zlib.compress(pickled)).decode("ascii")


def load_assignors(names: str, *, allow_eager_assignor: bool) -> tuple[Assignor, ...]:
    """Return the assignors that the option ``assignor`` names; raise :class:`~consumer_coord.errors.ConfigurationError`."""
    # Imported here, because the workers of executors do not need assignors, and start faster without this module.
    from assignors.base import RebalanceProtocol
    from consumer_coord import assignor_loading

    wanted = tuple(name.strip() for name in names.split(",") if name.strip())
    if not wanted:
        raise ConfigurationError(f"assignor={names!r} names no assignor")
    found = []
    for name in wanted:
        try:
            assignor = assignor_loading.as_assignor(
                _unpickle(name) if name.startswith(BY_VALUE) else assignor_loading.load(name)
            )
        except ConfigurationError as error:
            shown = "a class passed by value" if name.startswith(BY_VALUE) else repr(name)
            raise ConfigurationError(f"option assignor, {shown}: {error}") from error
        found.append(assignor)
    if assignor_loading.common_protocol(found) is RebalanceProtocol.EAGER and not allow_eager_assignor:
        raise ConfigurationError(
            f"assignor={', '.join(assignor.name for assignor in found)} is eager: each rebalance would block the whole group"
            " until this query's batch is finished; use cooperative-sticky, or accept that with allowEagerAssignor=true"
        )
    return tuple(found)


def load_task_splitter(name: str | None) -> TaskSplitter | None:
    """Return the user's packing function, None for the built-in rule; raise ``ConfigurationError`` if it cannot be loaded."""
    if name is None:
        return None
    task_splitter: TaskSplitter = _load_function("taskSplitter", name, "function of ranges and packing")
    return task_splitter


def with_callbacks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return Kafka's settings. The text of ``oauth_cb`` is replaced by the function that the text names.

    Each process loads the function from the text. Raise ``ConfigurationError`` if that fails.
    """
    found = dict(settings)
    if isinstance(found.get(OAUTH_CB), str):
        found[OAUTH_CB] = _load_function(f"kafka.{OAUTH_CB}", found[OAUTH_CB], "function that takes sasl.oauthbearer.config")
    return found


def _load_function(option: str, name: str, shape: str) -> Any:
    if name.startswith(BY_VALUE):
        found = _unpickle(name)
    else:
        module, separator, attribute = name.partition(":")
        if not separator:
            raise ConfigurationError(f"{option}={name!r} must be module:function, or the text that by_value() returns")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            reason = error if isinstance(error, (ImportError, AttributeError)) else repr(error)
            raise ConfigurationError(f"{option}={name!r} cannot be loaded: {reason}") from error
    if not callable(found):
        raise ConfigurationError(f"option {option} names an object of type {type(found).__name__}, which is not a {shape}")
    return found


def _unpickle(text: str) -> Any:
    from pyspark import cloudpickle

    try:
        return cloudpickle.loads(zlib.decompress(base64.b64decode(text.removeprefix(BY_VALUE), validate=True)))
    except Exception as error:
        raise ConfigurationError(f"an object passed by value cannot be loaded here: {error!r}") from error
