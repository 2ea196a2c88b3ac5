"""The choice of the kernel, and the message when a kernel is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from consumer_coord.columns import kernel
from consumer_coord.errors import ConfigurationError


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=360,
    )


SHOW = "import consumer_coord.columns as c; print(c.KERNEL)"
WITHOUT_C = "import sys; sys.modules['consumer_coord.columns._kernel'] = None\n"


def test_the_environment_chooses_the_twin() -> None:
    assert run(SHOW, CONSUMER_COORD_KERNEL="python").stdout == "python\n"


def test_the_compiled_kernel_is_the_default() -> None:
    try:
        kernel.load("c")
    except ImportError as error:
        pytest.skip(str(error))
    assert run(SHOW, CONSUMER_COORD_KERNEL="").stdout == "c\n"
    assert run(SHOW, CONSUMER_COORD_KERNEL="c").stdout == "c\n"


def test_the_twin_decodes_where_there_is_no_compiled_kernel() -> None:
    assert run(WITHOUT_C + SHOW, CONSUMER_COORD_KERNEL="").stdout == "python\n"
    refused = run(WITHOUT_C + SHOW, CONSUMER_COORD_KERNEL="c")
    assert "CONSUMER_COORD_KERNEL is c, but the kernel was not compiled: install a wheel" in refused.stderr


def test_without_kernel_and_pyarrow_the_error_names_both() -> None:
    program = "import sys; sys.modules['pyarrow'] = None\n" + SHOW + "; c.Columns().finish().__arrow_c_stream__()"
    refused = run(program, CONSUMER_COORD_KERNEL="python")
    assert refused.stdout == "python\n"
    assert "ImportError: the columns kernel was not compiled, and the Python kernel needs pyarrow" in refused.stderr


def test_the_twin_decodes_without_numpy() -> None:
    program = """
import sys
from pathlib import Path
sys.modules["numpy"] = None
from tests.support.columns.batches import Rec, batch
from consumer_coord.columns import Columns, CompletedFetch
into = Columns(["offset", "value"])
into.append(CompletedFetch(batch([Rec(at) for at in range(100)]), topic="orders", partition=0, offset=0))
import pyarrow
print(*(rows.num_rows for rows in pyarrow.RecordBatchReader.from_stream(into.finish())))
"""
    ran = run(program, CONSUMER_COORD_KERNEL="python")
    assert ran.stdout == "100\n", ran.stderr


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="CONSUMER_COORD_KERNEL is 'rust'; set it to c or python, or unset it"):
        kernel.load("rust")


def test_a_kernel_that_was_built_by_another_python_works_here() -> None:
    """The format ``#`` means another function in the headers of Python 3.13 than before, so such a binary fails on 3.11."""
    source = "".join(path.read_text() for path in sorted(Path(kernel.__file__).parent.glob("_*.[ch]")))
    formats = re.findall(r'Py(?:Arg_Parse\w*|_BuildValue)\([^"]*"([^"]*)"', source)
    assert len(formats) > 15
    assert not [one for one in formats if "#" in one]
