"""The site builds without a warning, and its reference agrees with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.command_table import COMMANDS
from consumer_coord.config import parse
from consumer_coord.group.metrics import NAMES
from consumer_coord.setting_names import LIBRDKAFKA
from consumer_coord.settings import SETTINGS, Integer, Plane
from consumer_coord.wire import error_codes
from tests.support.browser import Browser
from tests.support.docs.blocks import DOCS, ROOT
from tools import draw_benchmarks, draw_rebalance, reference


def test_a_setting_is_passed_to_librdkafka_exactly_if_its_plane_is_both() -> None:
    """Two settings are exceptions: librdkafka gets another value of them."""
    examples = {
        "bootstrap.servers": "h:1",
        "group.id": "g",
        "group.protocol": "classic",
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "range",
        "group.remote.assignor": "uniform",
    }
    for name, row in SETTINGS.items():
        value = examples.get(name, str(max(row.kind.low, 7_000)) if isinstance(row.kind, Integer) else "true")
        given = {"bootstrap.servers": "h:1", "group.id": "g", "retry.backoff.max.ms": 10_000, name: value}
        if name == "group.remote.assignor":
            given["group.protocol"] = "consumer"
        if name == "heartbeat.interval.ms":
            given["session.timeout.ms"] = 50_000
        passed = parse(given).librdkafka
        assert (passed.get(name) == value and name in LIBRDKAFKA) == (row.plane is Plane.BOTH), name


def test_the_settings_have_the_defaults_and_planes_of_the_code() -> None:
    told = {one.name: (one.default, one.bounds, one.plane) for one in reference.setting_list()}
    assert told["session.timeout.ms"] == ("`45000`", "1 to 3600000", "control")
    assert told["group.id"] == ("", "", "both")
    assert "### `bootstrap.servers`\n\n*no default; plane: both*" in reference.settings()
    assert told["client.rack"] == ("none", "", "both")
    assert told["reconnect.backoff.max.ms"] == ("`500`", "0 to 3600000", "both")
    assert told["group.protocol"] == ("`classic`", "", "control")
    assert told["group.remote.assignor"] == ("none", "", "control")
    assert told["group.lease.enable"] == ("`true`", "", "control")
    assert told["partition.assignment.strategy"] == ("`range,cooperative-sticky`", "", "control")
    assert "### `session.timeout.ms`\n\n*default `45000`; 1 to 3600000; plane: control*" in reference.settings()


def test_every_metric_is_documented() -> None:
    assert {cells[0].strip("`") for cells in table(reference.metrics())} == set(NAMES)


def test_no_metric_is_described_by_its_name_alone() -> None:
    for name, _, meaning in table(reference.metrics()):
        assert set(re.findall(r"\w+", meaning.lower())) - set(re.findall(r"\w+", name)), name
        assert meaning.endswith("."), name


def test_every_code_with_advice_says_what_to_do() -> None:
    for cells in table(reference.error_code_table()):
        assert cells[1] == f"`{error_codes.error_name(int(cells[0]))}`"
        assert len(cells[4]) > 10


def test_every_command_has_its_flags() -> None:
    told = reference.commands()
    for name in COMMANDS:
        assert f"### {name}\n" in told
    assert "`--max-lag N`" in told
    assert "`--first-seed S`" in told


def test_log_lines_are_found() -> None:
    found = {(line.level, line.text) for line in reference.logged()}
    assert ("info", "rejoin: %s") in found
    assert ("warning", "LeaveGroup was answered with %s") in found


def table(text: str) -> list[list[str]]:
    """Return the rows of a Markdown table."""
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines()[2:]]


@pytest.mark.parametrize("name", ["cooperative", "eager"])
def test_the_pictures_of_a_rebalance_are_drawn_by_the_tool(name: str) -> None:
    steps = {"cooperative": draw_rebalance.COOPERATIVE, "eager": draw_rebalance.EAGER}[name]
    assert (DOCS / "img" / f"rebalance-{name}.svg").read_text() == draw_rebalance.draw(steps)


def test_the_charts_of_the_benchmarks_show_their_tables() -> None:
    drawn = dict(draw_benchmarks.charts(draw_benchmarks.PAGE.read_text()))
    assert drawn.keys() == draw_benchmarks.CHARTS.keys()
    for name, chart in drawn.items():
        text = (DOCS / "img" / f"benchmarks-{name}.svg").read_text()
        assert text == draw_benchmarks.draw(chart), "run: python -m tools.draw_benchmarks"


class Links(HTMLParser):
    """Collects the targets of a page's links and images, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.targets += [target for name in ("href", "src") if (target := given.get(name)) is not None]
        if (anchor := given.get("id")) is not None:
            self.anchors.add(anchor)


#: What a page shows if a part of it was generated without its value: a regular expression over the page's HTML.
LEFT_OVER = (
    r"NOTHING",
    r"%\(default\)s",
    r"\u2013[a-z]",
    r"<td><p><code[^>]*><span class=\"pre\">%s</span></code></p></td>",
    r"from the code:",
    r"<p>\| ",
    r"generic container for associating",
)


def left_over(html: str) -> list[str]:
    """Return the marks of generated parts that have no value; pages of source code may contain anything."""
    article = html.partition("<article")[2].partition("</article>")[0]
    return [found for mark in LEFT_OVER for found in re.findall(mark, article)] if "<h1>Source code" not in html else []


def test_a_missing_value_is_found_on_a_page() -> None:
    for html in (
        "default <code>NOTHING</code>",
        "(%(default)s)",
        "\u2013export",
        '<td><p><code class="docutils"><span class="pre">%s</span></code></p></td>',
        "<p>| a row | behind an empty line |</p>",
    ):
        assert left_over(f"<article>{html}</article>"), html
    assert left_over("<article><p>5 \u2013 6</p> <code>rejoin: %s</code></article>") == []


def methods(kind: type[object]) -> set[str]:
    """Return the anchors of a consumer's public methods, also of those that it inherits within this package."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("consumer_coord.")]
    return {f"consumer_coord.{kind.__name__}.{name}" for base in own for name in vars(base) if not name.startswith("_")}


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_all_its_links_lead_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-d", str(tmp_path / "trees")]
    ran = subprocess.run([*command, str(DOCS), str(tmp_path / "html")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    site = tmp_path / "html"
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert {page.name for page in pages} >= {"index.html", "start.html", "search.html", "settings.html"}
    broken, outside = [], set()
    for page, links in pages.items():
        for target in links.targets:
            if re.match(r"[a-z]+:", target):
                outside.add(target.partition("#")[0])
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name.partition("?")[0]).resolve() if name else page
            if not file.exists() or (anchor and file in pages and anchor not in pages[file].anchors):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert not broken
    assert "log-no-broker-could-be-reached-for-s" in pages[site / "troubleshooting.html"].anchors
    shown = pages[site / "reference" / "consumers.html"].anchors
    assert not [name for kind in (GroupConsumer, AsyncGroupConsumer) for name in methods(kind) if name not in shown]
    marks = [f"{page.relative_to(site)}: {mark}" for page in pages for mark in left_over(page.read_text())]
    assert not marks
    # The site needs no file from elsewhere: it can be read without a network.
    assert not [target for target in outside if target.endswith((".js", ".css", ".woff2", ".svg", ".png"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, without the pages that take longest."""
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "-D",
        "extensions=myst_parser,sphinx_copybutton",
        "-d",
        str(out / "trees"),
    ]
    ran = subprocess.run([*command, str(DOCS), str(out / "html")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return out / "html"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 1300, 420])
def test_no_code_of_the_site_is_cut(width: int, site: Path, browser: Browser) -> None:
    browser.resize(width, 900)
    cut = """[...document.querySelectorAll('article pre')].filter(block => block.scrollWidth > block.clientWidth)
      .map(block => block.innerText.slice(0, 60))"""
    for page in ("start", "design-an-assignor", "commands", "operating", "testing"):
        browser.open((site / f"{page}.html").as_uri())
        browser.until("document.readyState === 'complete' && document.querySelectorAll('article pre').length > 0")
        assert browser.js(cut) == [], page


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("page", ["assignors", "protocols", "watch"])
def test_pictures_are_dark_on_a_dark_page(page: str, site: Path, browser: Browser, tmp_path: Path) -> None:
    """Compare pixels of the screen: a picture is as bright as the page around it."""
    for dark in (False, True):
        browser.resize(1300, 900, dark=dark)
        browser.open((site / f"{page}.html").as_uri())
        browser.until("document.readyState === 'complete' && document.querySelector('article img').complete")
        browser.js("document.querySelector('article img').scrollIntoView({block: 'center', behavior: 'instant'})")
        corner = browser.js("(({left, top}) => [left, top])(document.querySelector('article img').getBoundingClientRect())")
        assert (brightness(browser, corner[0] + 12, corner[1] + 12) < 128) == dark


def brightness(browser: Browser, x: float, y: float) -> int:
    """Return the mean of red, green and blue at a point of the window, 0 to 255."""
    shot = browser.call("Page.captureScreenshot", format="png")
    picture = f"data:image/png;base64,{shot['data']}"
    decoded = f"""(async () => {{ const image = new Image(); image.src = '{picture}'; await image.decode();
      const pen = document.createElement('canvas').getContext('2d'); pen.drawImage(image, {-round(x)}, {-round(y)});
      const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data; return (red + green + blue) / 3 }})()"""
    return int(browser.js(decoded))


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [1300, 420])
def test_no_table_of_sentences_is_wider_than_its_page(width: int, site: Path, browser: Browser) -> None:
    browser.resize(width, 900)
    cut = """[...document.querySelectorAll('.table-wrapper:has(> .stacked)')].filter(one => one.scrollWidth > one.clientWidth)
      .map(one => one.innerText.slice(0, 60))"""
    for page in ("embedded-kafka", "troubleshooting", "spark-guarantee", "asyncio"):
        browser.open((site / f"{page}.html").as_uri())
        browser.until("document.readyState === 'complete' && document.querySelectorAll('.stacked').length > 0")
        assert browser.js(cut) == [], page
    title = "getComputedStyle(document.querySelector('.stacked td[data-title]'), '::before').content"
    assert (browser.js(title) == "none") == (width == 1300)
