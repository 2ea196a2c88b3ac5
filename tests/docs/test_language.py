"""Pages, docstrings, comments and messages are plain English, and the relative links of pages lead somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.docs.blocks import DOCS, ROOT, pages
from tests.support.docs.words import anchors, findings, findings_in_python, links
from tests.test_structure import tracked_files

#: Lists with a fixed form: the numbered behaviours, and the changelog.
LISTS = {"behaviours.md", "CHANGELOG.md"}
#: Reference pages.
WITHOUT_AIM = {"behaviours.md", "changelog.md", "glossary.md", "index.md"}
PAGES = sorted([*ROOT.glob("*.md"), *pages(), *(ROOT / "benchmarks").glob("*.md")])
#: Python files whose docstrings, comments and messages are checked; those of tests are not.
PACKAGES = ("assignors", "benchmarks", "consumer_coord", "docs", "examples", "tools")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in LISTS], ids=name_of)
def test_a_page_avoids_the_words_of_the_list(page: Path) -> None:
    assert list(findings(page.read_text())) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_comments_and_messages_avoid_the_words_of_the_list(package: str) -> None:
    files = [file for file in tracked_files() if file.suffix == ".py" and file.relative_to(ROOT).parts[0] == package]
    assert files
    found = [f"{name_of(file)}, {finding}" for file in files for finding in findings_in_python(file.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", sorted({*DOCS.glob("*.md")} - {DOCS / name for name in WITHOUT_AIM}), ids=name_of)
def test_a_page_begins_with_what_its_reader_can_do(page: Path) -> None:
    assert page.read_text().split("\n\n")[1].startswith("After this page you")


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The broker tells the member.", 1),
        ("The broker `tells` the member.", 0),
        ("The member let\ngo of it.", 1),
        ("What it does.", 1),
        ("What does it do?", 0),
        ("# What it does", 0),
        ("A list:\n\n* It reads.", 1),
        ("| a | They read. |", 1),
        ("```\ntold\n```", 0),
        ("It moves no more partitions, and no more than ten.", 1),
    ],
)
def test_the_check_finds_words_in_prose_alone(text: str, found: int) -> None:
    assert len(list(findings(text))) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""The broker tells the member."""', ["docstring at line 1: 'tells'"]),
        ('def a():\n    """Return it.\n\n    It goes\n    on.\n    """', ["'goes on'", "'It'"]),
        ("a = 1\n# What is\n# told.\nb = 2  # told", ["comment at line 2: 'told'", "'What'", "comment at line 4: 'told'"]),
        ("a = 1  # it was\nb = 2  # no\nc = 3  # more", []),
        ('raise ValueError("the member was told")', ["string at line 1: 'told'"]),
        ('raise ValueError(f"{who} was "\n    f"told {what} anew")', ["'told'", "'anew'"]),
        ('what = {"It was": "told"}', []),
        ('"""Call ``tell``, or :meth:`Engine.tell`."""', []),
        ("told = 1  # noqa: told", []),
    ],
)
def test_the_check_finds_words_in_texts_of_python_alone(source: str, found: list[str]) -> None:
    findings = sorted(findings_in_python(source))
    assert len(findings) == len(found)
    assert all(any(part in finding for finding in findings) for part in found)


def test_the_check_finds_anchors_and_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# The first\n\n## Your `own` test, now\n\n[a `b`](c.md#d) ![e](f.svg)\n<img src="g.png">\n```\n[h](i)\n# j\n```\n'
    )
    assert anchors(page) == {"the-first", "your-own-test-now"}
    assert list(links(page.read_text())) == [("a b", "c.md#d"), ("e", "f.svg"), ("g.png", "g.png")]
