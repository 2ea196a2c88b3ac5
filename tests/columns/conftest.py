"""Fixtures that run the tests of columns with both kernels."""

from __future__ import annotations

from tests.support.columns.kernels import kernel_name

__all__ = ["kernel_name"]
