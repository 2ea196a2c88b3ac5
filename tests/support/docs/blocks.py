"""The code blocks of the documentation: finds them, and runs them as a reader would."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"^(?P<mark><!-- figures differ -->\n+)?(?P<indent> *)```(?P<language>[\w{}-]*)\n(?P<code>.*?)\n(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
#: Time in which a loop of a page must print something, in seconds.
LIMIT_S = 360


@attrs.frozen
class Block:
    """A fenced block; ``figures_differ``: its printed numbers differ in each run."""

    page: str
    line: int
    language: str
    code: str
    figures_differ: bool

    @property
    def first(self) -> str:
        """The first line, by which tests name the block."""
        return self.code.partition("\n")[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> Iterator[Path]:
    """Yield every page of the documentation."""
    yield from (page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts)


def blocks_of(page: Path) -> list[Block]:
    """Return every fenced block of a page, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        name = str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name
        found.append(Block(name, line, match["language"], match["code"], match["mark"] is not None))
    return found


class Printed:
    """``print`` for a page's programs: keeps the printed lines, and ends loops that would otherwise be endless."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._until = 0.0
        self._before = 0

    def __call__(self, *parts: Any, **keywords: Any) -> None:
        self.lines.extend(" ".join(map(str, parts)).splitlines() or [""])

    def begin(self) -> None:
        """Forget the lines of the previous block, and start the time limit."""
        self.lines.clear()
        self._until = time.monotonic() + LIMIT_S

    def nothing_printed(self) -> bool:
        """Return whether nothing was printed yet, as the condition of ``while True``; fail after ``LIMIT_S`` seconds."""
        assert time.monotonic() < self._until, "a loop of the page printed nothing"
        return not self.lines

    def until_printed(self, messages: Iterable[Any]) -> Iterator[Any]:
        """Yield from endless messages until something was printed."""
        for message in messages:
            yield message
            if self.lines:
                return

    async def also_until_printed(self, messages: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Yield from endless asynchronous messages until something was printed."""
        async for message in messages:
            yield message
            if self.lines:
                return


def sooner(code: str) -> str:
    """Return the code with fewer examples for ``check_assignor``, which has separate tests, unless it sets their number."""
    return re.sub(r"check_assignor\((\w+\(\))\)", r"check_assignor(\1, examples=20, sizes=())", code)


def as_run(code: str, bootstrap_servers: str, instead: Mapping[str, str]) -> str:
    """Return the code with its cluster replaced, and without endless loops."""
    code = sooner(code)
    for what, other in {**instead, "localhost:9092": bootstrap_servers}.items():
        code = code.replace(what, other)
    code = re.sub(r"^(\s*)for message in consumer:", r"\1for message in until_printed(consumer):", code, flags=re.MULTILINE)
    code = code.replace("async for message in consumer:", "async for message in also_until_printed(consumer):")
    return code.replace("while True:", "while nothing_printed():")


def normal(lines: list[str], *, figures_differ: bool) -> list[str]:
    """Return printed lines for a comparison: without blanks at the ends, and without figures if they differ."""
    stripped = [line.rstrip() for line in lines if line.strip()]
    return [re.sub(r"\s*\d[\d.,]*", " N", line) for line in stripped] if figures_differ else stripped


def needs_spark(block: Block) -> bool:
    """Return whether a Python block is part of a Spark program: tests/integration/spark/test_pages.py runs it."""
    return block.language == "python" and (block.page == "spark.md" or "SparkSession" in block.code)


def run_page(
    blocks: list[Block],
    bootstrap_servers: str,
    wanted: Callable[[Block], bool],
    *,
    apart: bool = False,
    module: str = "page",
    instead: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a page's Python blocks in order; a ``text`` block after a block has its expected output.  Return all names.

    Each block can use the names of earlier blocks, or with ``apart`` none of them; ``module`` is their ``__name__``.
    ``instead`` maps parts of the code to their replacements.
    """
    printed = Printed()
    given: dict[str, Any] = {"print": printed, "__name__": module}
    given |= {name: getattr(printed, name) for name in ("nothing_printed", "until_printed", "also_until_printed")}
    namespace, found = dict(given), dict(given)
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language != "python" or not wanted(block):
            continue
        if apart:
            namespace = dict(given)
        printed.begin()
        code = compile(as_run(block.code, bootstrap_servers, instead or {}), str(block), "exec")
        exec(code, namespace)  # the page's own code
        found |= namespace
        if after is not None and after.language == "text":
            output = normal(printed.lines, figures_differ=block.figures_differ)
            assert output == normal(after.code.splitlines(), figures_differ=block.figures_differ), str(block)
    return found
