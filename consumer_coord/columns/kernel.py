"""Choose the kernel that decodes: ``_kernel.c`` if it was compiled, otherwise its Python twin.

``CONSUMER_COORD_KERNEL=c`` or ``=python`` selects a kernel; ``c`` raises ``ImportError`` if the kernel was not compiled.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from consumer_coord.errors import ConfigurationError

KernelName: TypeAlias = Literal["c", "python"]

SWITCH = "CONSUMER_COORD_KERNEL"


def load(name: str | None) -> tuple[KernelName, Any]:
    """Return (name, module) of the kernel ``name``; without a name, of the fastest available kernel."""
    if name not in (None, "", "c", "python"):
        raise ConfigurationError(f"{SWITCH} is {name!r}; set it to c or python, or unset it")
    if name != "python":
        try:
            compiled = importlib.import_module("consumer_coord.columns._kernel")
        except ImportError as error:
            if name == "c":
                raise ImportError(
                    f"{SWITCH} is c, but the kernel was not compiled: install a wheel, or install a C compiler and then"
                    " reinstall this package"
                ) from error
        else:
            return "c", compiled

    from consumer_coord.columns import python_columns

    return "python", python_columns


if TYPE_CHECKING:
    KERNEL: KernelName
    from consumer_coord.columns import python_columns

    kernel = python_columns  # Both kernels have the same interface.
else:
    KERNEL, kernel = load(os.environ.get(SWITCH))
