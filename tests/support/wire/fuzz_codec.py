"""The decoders under atheris, a coverage-guided fuzzer: by hand, for as long as one likes.

In an environment of its own with ``atheris``, ``hypothesis`` and this package, at the project's root::

    python -m tests.support.wire.fuzz_codec -runs=10000000 -max_len=400 [-seed=1] [corpus directory]

Every table's fullest message is in the first corpus.  What it finds is written to ``crash-*``: pass that file as the only
argument to see it again.
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
    """One file per table and version, with the choice of its decoder before it; long arrays for the short cut, too."""
    for index, (message, version) in enumerate(TARGETS):
        for elements in (1, 17) if version == TARGETS[index - 1][1] + 1 else (1,):
            body = codec.encode(full_value(message, version, elements=elements), version)
            if len(body) < 4000:
                name = f"{message.__name__}-{version}-{elements}"
                (directory / name).write_bytes(index.to_bytes(2, "big") + body)


def instrument_decoders() -> None:
    """The decoders are made by ``exec``, which the import hook does not see."""
    for message, version in TARGETS:
        try:
            codec.decode(message, version, b"")
        except MalformedMessageError:
            continue
        finally:
            atheris.instrument_func(codec._decoders[message, version])


def main() -> None:
    """Fuzz until the runs are used up or something is found."""
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
