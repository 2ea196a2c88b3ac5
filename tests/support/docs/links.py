"""The links and the anchors of Markdown pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_CODE = re.compile(
    r"^(?P<indent> *)(```|:::).*?^(?P=indent)(```|:::)$|^    \S.*?$|<!--.*?-->|`[^`\n]*(?:\n[^`\n]*)?`",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"!?\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s]+)\)")


def prose(text: str) -> str:
    """Return a page with its code replaced by blanks, so that lines keep their numbers."""
    return _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]) if "\n" in code[0] else "x", text)


def links(text: str) -> Iterator[tuple[str, str]]:
    """Yield text and target of every link and image of a page, including those in HTML."""
    bare = prose(text)
    for link in _LINK.finditer(re.sub(r"`([^`\n]*)`", r"\1", _without_blocks(text))):
        yield link["text"], link["target"]
    for target in re.findall(r'(?:src|srcset|href)="([^"]+)"', bare):
        yield target, target


def _without_blocks(text: str) -> str:
    return re.sub(r"^( *)(```|:::).*?^\1\2$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", _without_blocks(page.read_text()), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", _LINK.sub(lambda link: link["text"], title).lower())
        found.add(plain.strip().replace(" ", "-"))
    return found
