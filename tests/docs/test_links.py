"""The relative links of pages lead somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.docs.blocks import ROOT, pages
from tests.support.docs.links import anchors, links

PAGES = sorted([*ROOT.glob("*.md"), *pages(), *(ROOT / "benchmarks").glob("*.md")])


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_relative_links_of_a_page_lead_somewhere(page: Path) -> None:
    dead = []
    for text, target in links(page.read_text()):
        if target.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
        assert text, f"the link to {target} has no text, so GitHub shows no link"
    assert dead == []


def test_the_check_finds_anchors_and_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# The first\n\n## Your `own` test, now\n\n[a `b`](c.md#d) ![e](f.svg)\n<img src="g.png">\n```\n[h](i)\n# j\n```\n'
    )
    assert anchors(page) == {"the-first", "your-own-test-now"}
    assert list(links(page.read_text())) == [("a b", "c.md#d"), ("e", "f.svg"), ("g.png", "g.png")]
