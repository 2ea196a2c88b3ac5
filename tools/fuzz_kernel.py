"""Fuzz the columns kernel under AddressSanitizer and UBSan: ``python -m tools.fuzz_kernel --inputs 10000000 --seed 1``.

Runs with the same seed read the same inputs. The first violation ends the run with the sanitizer's report.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-std=c11", "-g", "-O2", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function")


def build(directory: Path) -> Path:
    """Compile the fuzzer into a directory; raise ``CalledProcessError``, or ``FileNotFoundError`` without a compiler."""
    program = directory / "fuzz_kernel"
    command = [os.environ.get("CC", "cc"), *FLAGS, *WARNINGS, str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return program


def main() -> int:
    """Compile and run the fuzzer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        try:
            program = build(Path(directory))
        except FileNotFoundError as error:
            print(f"no C compiler was found: {error.filename}. Set CC", file=sys.stderr)
            return 1
        except subprocess.CalledProcessError as error:
            print(error.stderr, file=sys.stderr)
            return 1
        return subprocess.run([str(program), str(arguments.seed), str(arguments.inputs)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
