"""Take a picture of every page of the built site: ``python -m tools.shoot_site [--to DIRECTORY] [PAGE ...]``.

Each page is taken wide (1,300 px) and narrow (420 px), light and dark. The pictures come in sheets, in which a page is cut into
columns, so that many pages can be looked at together. What a program can see is printed: text that is wider than the window,
text of low contrast, images that are missing, and errors of the page. Requires Chromium; run ``make docs`` first.
"""

from __future__ import annotations

import argparse
import functools
import html
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs

from tests.support.browser import HOW, Browser, chromium

ROOT = Path(__file__).parents[1]
#: Pages that Sphinx makes for itself: the index of names, the search, and the source code.
_LEFT_OUT = ("genindex", "search", "py-modindex", "_modules")
#: WCAG 2.2, criterion 1.4.3, for text of normal size.
_LEAST_CONTRAST = 4.5
_SHEET_WIDTH, _SHEET_HEIGHT, _GAP = 1500, 1500, 8
#: Returns the problems of a page as strings.
_PROBLEMS = """
(() => {
  const found = [], wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide)
    found.push(`the page is ${document.documentElement.scrollWidth} px wide`);
  for (const image of document.images)
    if (image.complete && !image.naturalWidth) found.push(`no image ${image.src}`);
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.5) return colour;
    }
    return [255, 255, 255];
  };
  const seen = new Set(), body = document.querySelector("article") || document.body;
  const walker = document.createTreeWalker(body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    if (style.visibility === "hidden" || style.opacity === "0") continue;
    const [one, two] = [light(rgb(style.color)), light(behind(node))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (two + 0.05), kind = style.color + behind(node);
    if (contrast < LEAST && !seen.has(kind)) {
      seen.add(kind);
      found.push(`contrast ${contrast.toFixed(1)} of "${text.slice(0, 40)}" (${node.tagName} ${node.className})`);
    }
    const box = node.getBoundingClientRect(), scrolls = node.closest(".table-wrapper, pre, .highlight, .mermaid");
    if (box.right > wide + 1 && !scrolls) found.push(`"${text.slice(0, 40)}" ends at ${Math.round(box.right)} px`);
  }
  return found;
})()
""".replace("LEAST", str(_LEAST_CONTRAST))


@attrs.frozen
class Look:
    """How pages are shown; ``columns``: the number of columns of a sheet."""

    name: str
    width: int
    dark: bool
    columns: int


LOOKS = (
    Look("wide-light", 1300, dark=False, columns=3),
    Look("wide-dark", 1300, dark=True, columns=4),
    Look("narrow-light", 420, dark=False, columns=7),
    Look("narrow-dark", 420, dark=True, columns=9),
)


@attrs.frozen
class Shot:
    """A picture of a page, and its height in pixels of the page."""

    page: str
    file: Path
    height: int


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a directory on a loopback address; yield its URL."""

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            """Serve a file; Chromium asks for an icon, which the site does not have."""
            if self.path != "/favicon.ico":
                super().do_GET()
            else:
                self.send_response(204)
                self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def pages_of(site: Path) -> list[str]:
    """Return the names of the site's pages, without their ending."""
    names = (str(file.relative_to(site).with_suffix("")) for file in site.rglob("*.html"))
    return sorted(name for name in names if not name.startswith(_LEFT_OUT))


def shoot(browser: Browser, url: str, pages: Sequence[str], look: Look, to: Path) -> tuple[list[Shot], list[str]]:
    """Take a picture of each page; return the pictures, and the problems that were found."""
    shots, problems = [], []
    for page in pages:
        browser.resize(look.width, 900, dark=look.dark)
        browser.open(f"{url}/{page}.html")
        browser.until("document.readyState === 'complete'")
        told = browser.js(_PROBLEMS)
        problems += [f"{look.name} {page}: {one}" for one in [*told, *browser.errors]]
        browser.errors.clear()
        height = int(browser.js("document.documentElement.scrollHeight"))
        browser.resize(look.width, height, dark=look.dark)
        file = to / f"{page.replace('/', '-')}-{look.name}.png"
        browser.screenshot(file, whole=False)
        shots.append(Shot(page, file, height))
    return shots, problems


def sheets(shots: Sequence[Shot], look: Look) -> list[str]:
    """Return sheets as HTML: pages cut into columns, one after another."""
    width = (_SHEET_WIDTH - _GAP) / look.columns - _GAP
    scale = width / look.width
    cuts = [(shot, top) for shot in shots for top in range(0, int(shot.height * scale) + 1, _SHEET_HEIGHT)]
    found = []
    for begin in range(0, len(cuts), look.columns):
        columns = "".join(
            f'<div style="width:{width}px;height:{_SHEET_HEIGHT}px;overflow:hidden;position:relative;background:#888">'
            f'<img src="{shot.file.as_uri()}" width="{width}" style="position:absolute;top:-{top}px">'
            f'<b style="position:absolute;background:#fe8;color:#000;font:10px sans-serif">{html.escape(shot.page)}</b></div>'
            for shot, top in cuts[begin : begin + look.columns]
        )
        style = f"margin:{_GAP}px;display:flex;gap:{_GAP}px;background:#888"
        found.append(f'<!doctype html><meta charset="utf-8"><body style="{style}">{columns}')
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="tools.shoot_site", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as start or reference/settings; all by default")
    parser.add_argument("--site", type=Path, default=ROOT / "docs" / "_build" / "html")
    parser.add_argument("--to", type=Path, default=ROOT / "artifacts" / "site")
    parser.add_argument("--looks", nargs="+", choices=[look.name for look in LOOKS], default=[look.name for look in LOOKS])
    options = parser.parse_args(arguments)
    executable = chromium()
    if executable is None or not (options.site / "index.html").exists():
        print(HOW if executable is None else f"no site in {options.site}: run make docs", file=sys.stderr)
        return 1
    options.to.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    with (
        served(options.site) as url,
        tempfile.TemporaryDirectory() as directory,
        Browser(executable, Path(directory)) as browser,
    ):
        for look in (one for one in LOOKS if one.name in options.looks):
            shots, told = shoot(browser, url, options.pages or pages_of(options.site), look, options.to.resolve())
            problems += told
            page = Path(directory) / "sheet.html"
            for number, sheet in enumerate(sheets(shots, look), 1):
                page.write_text(sheet)
                browser.resize(_SHEET_WIDTH + _GAP, _SHEET_HEIGHT + 2 * _GAP)
                browser.open(page.as_uri())
                browser.until("document.readyState === 'complete'")
                browser.screenshot(options.to / f"sheet-{look.name}-{number:02}.png", whole=False)
    print("\n".join(problems) or "no problem found")
    print(f"pictures and sheets: {options.to}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
