"""Take the pictures of ``consumer-coord watch`` for README.md: ``python -m tools.shoot_watch PAGE.html``.

The page is one of a live group, as ``make demo ARGS=--web`` leaves it.  It needs a Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.support.browser import HOW, Browser, chromium

TARGET = Path(__file__).parents[1] / "docs" / "img"
WIDTH, HEIGHT = 1120, 760


def main() -> int:
    """Write docs/img/watch-light.png and watch-dark.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="a self-contained page of consumer-coord watch")
    page = parser.parse_args().page.resolve()
    executable = chromium()
    if executable is None:
        print(HOW, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory, Browser(executable, Path(directory)) as browser:
        for name, dark in (("light", False), ("dark", True)):
            browser.resize(WIDTH, HEIGHT, dark=dark)
            browser.open(page.as_uri())
            browser.until("document.readyState === 'complete' && document.querySelector('canvas') !== null")
            browser.until("new Promise(seen => requestAnimationFrame(() => requestAnimationFrame(() => seen(true))))")
            browser.screenshot(TARGET / f"watch-{name}.png", whole=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
