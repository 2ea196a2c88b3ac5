"""The page, in parts for a server, or as one file with the recording inside. The page loads nothing from other sites."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from consumer_coord.errors import ConfigurationError
from consumer_coord.watch.changes import Message
from consumer_coord.watch.recording import Meta

#: The files that the page refers to, with their media types.
PARTS = {
    "watch.css": "text/css",
    "model.js": "text/javascript",
    "draw.js": "text/javascript",
    "tables.js": "text/javascript",
    "page.js": "text/javascript",
}
_LINK = re.compile(r'<link rel="stylesheet" href="static/([a-z.]+)">')
_SCRIPT = re.compile(r'<script src="static/([a-z.]+)" defer></script>\n?')
_DATA = '<script type="application/json" id="recording"></script>'


def part(name: str) -> str:
    """Return one file of the page: ``index.html`` or one of :data:`PARTS`."""
    return files("consumer_coord.watch").joinpath("static", name).read_text(encoding="utf-8")


def render_page(meta: Meta, messages: Iterable[Message]) -> str:
    """Return one self-contained page, whose security policy allows only this project's scripts, and no requests."""
    page = part("index.html")
    styles = [part(name) for name in _LINK.findall(page)]
    scripts = [part(name) for name in _SCRIPT.findall(page)]
    policy = (
        f"default-src 'none'; style-src {_hashes(styles)}; script-src {_hashes(scripts)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = _LINK.sub("", page)
    page = _SCRIPT.sub("", page)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    head += "".join(f"<style>{style}</style>\n" for style in styles)
    page = page.replace("<title>", f"{head}<title>", 1)
    body = "".join(f"<script>{script}</script>\n" for script in scripts)
    data = embedded({"meta": meta.as_json(), "messages": list(messages)})
    return page.replace(_DATA, f'<script type="application/json" id="recording">{data}</script>\n{body}', 1)


def write_page(path: Path, meta: Meta, messages: Iterable[Message]) -> None:
    """Write the page; raise :class:`ConfigurationError` if the file cannot be written."""
    try:
        path.write_text(render_page(meta, messages), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None


def embedded(value: Any) -> str:
    """Return JSON for a script element, escaped so that no name can end the element or begin a comment."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _hashes(texts: Iterable[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
