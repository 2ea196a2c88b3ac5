"""Sphinx's settings for the site: ``make docs``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from sphinx.util import logging  # noqa: E402

import consumer_coord  # noqa: E402 - of this tree
from benchmarks import published  # noqa: E402
from tools.reference import PARTS  # noqa: E402

project = "consumer-coord"
author = "the consumer-coord maintainers"
copyright = "the consumer-coord maintainers, Apache License 2.0"
version = release = consumer_coord.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build", "img"]
source_suffix = {".md": "markdown"}
templates_path: list[str] = []

html_theme = "furo"
html_title = f"consumer-coord {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_sourcelink = False
# Two hyphens are the beginning of a flag.
smartquotes = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
# The pages are independent Markdown pages, some of them with headings that skip a level.
suppress_warnings = ["myst.header"]

toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
autodoc_default_options = {"members": True}
# Not needed to read docstrings, and large.
autodoc_mock_imports = ["pyspark", "pyarrow"]
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

#: The parts of the site, in the order of the navigation.  Pages that are not named come last.
PARTS_OF_THE_SITE = {
    "Start": ["start", "exactly-once", "design-an-assignor"],
    "Move from another client": ["confluent-kafka", "other-clients", "frameworks"],
    "Build": [
        "asyncio",
        "parallel",
        "deserializing",
        "dataframes",
        "spark",
        "spark-options",
        "spark-guarantee",
        "testing",
        "rebalance-tests",
    ],
    "Operate": ["operating", "migrating", "security", "troubleshooting", "commands", "watch"],
    "Understand": ["protocols", "assignors", "benchmarks"],
    "Reference": [
        "reference/consumers",
        "reference/assignors",
        "reference/broker",
        "reference/settings",
        "reference/commands",
        "reference/metrics",
        "reference/logs",
        "reference/errors",
        "health",
        "scaling",
        "brokers",
        "embedded-kafka",
        "simulation",
        "glossary",
        "what-is-public",
        "changelog",
    ],
    "Contributing": ["design", "how-it-is-tested", "behaviours"],
}


def contents() -> str:
    """Return the navigation of the existing pages."""
    there = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md") if "_build" not in page.parts}
    parts = {name: [page for page in pages if page in there] for name, pages in PARTS_OF_THE_SITE.items()}
    named = {page for pages in parts.values() for page in pages}
    parts["More"] = sorted(there - named - {"index"})
    trees = []
    for name, pages in parts.items():
        if pages:
            trees.append("\n".join([":::{toctree}", ":hidden:", f":caption: {name}", "", *pages, ":::"]))
    return "\n\n".join(trees)


#: A transition of a Mermaid state diagram.
_TRANSITION = re.compile(r"^\s*(\S+) --> (\S+?)(?:: (.*))?$", re.MULTILINE)


def as_table(diagram: re.Match[str]) -> str:
    """Return a state diagram as a table, because the site loads no scripts of other sites."""
    rows = ["| from | to | when |", "| --- | --- | --- |"]
    for before, after, when in _TRANSITION.findall(diagram[1]):
        states = [name.replace("[*]", "(none)") for name in (before, after)]
        rows.append(f"| {states[0]} | {states[1]} | {when} |")
    return "\n".join(rows)


def fill_in(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill in the parts that come from the code, and turn links to examples into downloads, and to other files into names."""
    text = source[0].replace("<!-- contents -->", contents())
    text = re.sub(r"<!-- from the code: ([\w ]+) -->", lambda part: PARTS[part[1]](), text)
    text = re.sub(r"```mermaid\n(.*?)```", as_table, text, flags=re.DOTALL)
    # The site includes programs as downloads; of other files it has only the names.
    text = re.sub(r"\[`([^\]`]*)`\]\((\.\./examples/[\w./]+\.\w+)\)", r"{download}`\1 <\2>`", text)
    folder = (DOCS / name).parent
    source[0] = re.sub(
        r"\[([^\]]*)\]\((\.\./[^)#]*)[^)]*\)",
        lambda link: link[0] if (folder / link[2]).resolve().is_relative_to(DOCS) else link[1],
        text,
    )


def breakable(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let long names break after a dot or an underscore, or before a capital, and not only anywhere in a word.

    The style sheet allows these breaks in cells of tables and in headings.
    """

    def parts(name: re.Match[str]) -> str:
        return re.sub(r"([._](?=\w)|[a-z](?=[A-Z]))", r"\1<wbr>", name[0])

    if "body" in context:
        context["body"] = re.sub(r'(?<=<span class="pre">)[^<]+', parts, context["body"])
        context["body"] = re.sub(
            r"(?<=<h[1-4]>)[^<]+", lambda title: re.sub(r"([._](?=\w))", r"\1<wbr>", title[0]), context["body"]
        )
        # Names that are no code: REBALANCE_IN_PROGRESS, UnsupportedVersionException.
        context["body"] = re.sub(
            r">[^<]*(?:[A-Z]_[A-Z]|[A-Za-z]{21})[^<]*",
            lambda text: re.sub(r"(?<=[A-Z]_)(?=[A-Z])|(?<=[a-z])(?=[A-Z][a-z]{4})", "<wbr>", text[0]),
            context["body"],
        )


def linked_rows(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Give each row of the troubleshooting page an anchor, made of its log text, so that an answer can link to it."""
    if page != "troubleshooting":
        return
    taken: set[str] = set()

    def link(row: re.Match[str]) -> str:
        told = re.search(r"<code[^>]*>(.*?)</code>", row[2]) or row
        text = re.sub(r"<[^>]*>|&\w+;", "", told[1] if told is not row else row[2])
        anchor = "log-" + "-".join(re.findall(r"[a-z]+", text.lower())[:8])
        if anchor in taken:
            return row[0]
        taken.add(anchor)
        mark = f'<a class="headerlink" href="#{anchor}" title="Link to this row">¶</a>'
        return f'<tr id="{anchor}" class="row-{row[1]}"><td>{row[2].removesuffix("</p>")} {mark}</p></td>'

    context["body"] = re.sub(r'<tr class="row-(\w+)"><td>(<p>.*?</p>)\s*</td>', link, context["body"], flags=re.DOTALL)


def stacked_tables(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let tables of sentences become lists on a phone (site.css): each cell gets the title of its column."""

    def titled(table: re.Match[str]) -> str:
        cells = re.findall(r"<td[^>]*>(.*?)</td>", table[0], re.DOTALL)
        if max((len(re.sub(r"<[^>]*>", "", cell)) for cell in cells), default=0) < 30:
            return table[0]
        titles = [re.sub(r"<[^>]*>", "", title) for title in re.findall(r"<th[^>]*>(.*?)</th>", table[0], re.DOTALL)]

        def row(found: re.Match[str]) -> str:
            columns = iter(titles)
            next(columns, None)
            return found[1] + re.sub("<td", lambda _: f'<td data-title="{next(columns, "")}"', found[2])

        text = table[0].replace('class="docutils', 'class="stacked docutils', 1)
        return re.sub(r"(<tr[^>]*><td[^>]*>)(.*?</tr>)", row, text, flags=re.DOTALL)

    if "body" in context:
        context["body"] = re.sub(r"<table .*?</table>", titled, context["body"], flags=re.DOTALL)


def without_nothing(app: Sphinx, what: str, name: str, obj: object, options: object, signature: str, returns: str) -> object:
    """Write ``...`` where a default is made anew for each object: attrs has the word NOTHING there.

    Constructors of ``lazy_attrs`` are compiled when they are called, so their signature comes from the fields.
    """
    fields = getattr(obj, "__attrs_attrs__", None)
    if what == "class" and fields is not None and signature == "(*args, **kwargs)":
        types = {name: kind for base in reversed(obj.__mro__) for name, kind in getattr(base, "__annotations__", {}).items()}
        signature = f"({', '.join(argument(one, types) for one in fields if one.init)})"
    return None if signature is None else (re.sub(r"\bNOTHING\b", "...", signature), returns)


def argument(field: Any, types: Mapping[str, str]) -> str:
    """Return a field of a class as an argument of its constructor."""
    given = "..." if getattr(field, "factory", None) is not None else repr(field.default)
    told = f"{field.name.lstrip('_')}: {types[field.name]}"
    return told if given == "NOTHING" else f"{told} = {given}"


def compare_figures(app: Sphinx) -> None:
    """Warn, which fails the build, if the figures of a page are not those of the benchmarks' files of results."""
    for problem in published.outdated():
        logging.getLogger(__name__).warning(problem)


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("builder-inited", compare_figures)
    app.connect("source-read", fill_in)
    if "sphinx.ext.autodoc" in app.extensions:
        app.connect("autodoc-process-signature", without_nothing)
    app.connect("html-page-context", linked_rows)
    app.connect("html-page-context", breakable)
    app.connect("html-page-context", stacked_tables)
