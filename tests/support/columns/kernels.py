"""A fixture that runs tests of columns with both kernels."""

from __future__ import annotations

import pytest

from consumer_coord.columns import kernel


@pytest.fixture(params=["c", "python"])
def kernel_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Decode with this kernel; skip the test if the kernel was not compiled."""
    try:
        _, module = kernel.load(request.param)
    except ImportError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(kernel, "kernel", module)
    return str(request.param)
