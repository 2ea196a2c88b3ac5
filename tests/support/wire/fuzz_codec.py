"""The decoders under atheris, a coverage-guided fuzzer: by hand, for any time.

In a separate environment with ``atheris``, ``hypothesis`` and this package, at the project's root::

    python -m tests.support.wire.fuzz_codec -runs=10000000 -max_len=400 [-seed=1] [corpus directory]

The first corpus has the fullest message of every table.  Findings are written to ``crash-*``: pass that file as the only
argument to repeat the failure.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # not a dependency: see above

with atheris.instrument_imports(include=["consumer_coord.wire"]):
    from consumer_coord.wire import codec

from consumer_coord.errors import MalformedMessageError
from tests.support.wire.fuzzing import TARGETS, decode_anything
from tests.support.wire.values import full_value


def write_corpus(directory: Path) -> None:
    """Write a file per table and version: the choice of the decoder, then a message; also long arrays, for the fast path."""
    for index, (message, version) in enumerate(TARGETS):
        for elements in (1, 17) if version == TARGETS[index - 1][1] + 1 else (1,):
            body = codec.encode(full_value(message, version, elements=elements), version)
            if len(body) < 4000:
                name = f"{message.__name__}-{version}-{elements}"
                (directory / name).write_bytes(index.to_bytes(2, "big") + body)


def instrument_decoders() -> None:
    """Instrument the decoders, which are made by ``exec`` and so are invisible to the import hook."""
    for message, version in TARGETS:
        try:
            codec.decode(message, version, b"")
        except MalformedMessageError:
            continue
        finally:
            atheris.instrument_func(codec._decoders[message, version])


def main() -> None:
    """Fuzz until the runs are used up or a failure is found."""
    logging.disable()
    instrument_decoders()
    with tempfile.TemporaryDirectory() as corpus:
        write_corpus(Path(corpus))
        given = sys.argv[1:]
        arguments = given if any(Path(argument).is_file() for argument in given) else [*given, corpus]
        atheris.Setup([sys.argv[0], *arguments], decode_anything)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
