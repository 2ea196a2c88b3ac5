"""A short run of the kernel's fuzzer under AddressSanitizer and UBSan; ``python -m tools.fuzz_kernel`` runs longer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.fuzz_kernel import build

#: Enough inputs for every branch of the decoder.
INPUTS = 20_000


@pytest.mark.slow
def test_the_kernel_survives_damaged_responses(tmp_path: Path) -> None:
    try:
        program = build(tmp_path)
        subprocess.run([str(program), "1", "0"], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler with sanitizers: {error} {getattr(error, 'stderr', '')}")
    ran = subprocess.run([str(program), "2026", str(INPUTS)], capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{INPUTS} inputs\n"
