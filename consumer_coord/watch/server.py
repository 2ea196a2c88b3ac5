"""The page over HTTP: its files, and the changes as server-sent events.

The module needs the extra ``web`` (starlette and uvicorn), and is imported only when a page is served.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from consumer_coord.admin.http_server import HEADERS, own_hosts_only
from consumer_coord.watch.history import History
from consumer_coord.watch.page import PARTS, part
from consumer_coord.watch.recording import Meta

#: The maximum number of queued messages for one page; if the queue is full, the page receives the whole history again.
_MOST_WAITING = 64
#: Seconds without a message after which the server sends a comment, which keeps the connection alive.
_SILENCE_S = 15.0
#: The maximum number of open pages, because each page needs a connection and a copy of its queued messages.
_MOST_PAGES = 64

_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class Hub:
    """Sends messages to every open page."""

    def __init__(self, meta: Meta, history: History, *, live: bool = True) -> None:
        self.meta = meta
        self.live = live
        self._history = history
        self._pages: set[asyncio.Queue[str | None]] = set()
        self._ended = False

    def publish(self, text: str) -> None:
        """Queue an encoded message for every page; the history must already contain the message."""
        for queue in self._pages:
            if queue.full():
                # The page is too slow, so replace its queued messages with the whole history.
                while not queue.empty():
                    queue.get_nowait()
                self._fill(queue)
            else:
                queue.put_nowait(f"data: {text}\n\n")

    def close(self) -> None:
        """End the streams to the pages, which keep their content."""
        self._ended = True
        for queue in self._pages:
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(None)

    @property
    def full(self) -> bool:
        """True if no further page may connect."""
        return len(self._pages) >= _MOST_PAGES

    async def stream(self) -> AsyncIterator[str]:
        """Yield the events for one page: ``start`` with the whole history, then one event for each message."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING)
        self._pages.add(queue)
        try:
            self._fill(queue)
            while not self._ended:
                try:
                    async with asyncio.timeout(_SILENCE_S):
                        event = await queue.get()
                except TimeoutError:
                    event = ": still here\n\n"
                if event is None:
                    break
                yield event
            yield "event: end\ndata: {}\n\n"
        finally:
            self._pages.discard(queue)

    def _fill(self, queue: asyncio.Queue[str | None]) -> None:
        about = f'"meta":{json.dumps(self.meta.as_json())},"live":{json.dumps(self.live)}'
        texts = ",".join(self._history.texts())
        queue.put_nowait(f'event: start\ndata: {{{about},"messages":[{texts}]}}\n\n')


def application(hub: Hub, *, loopback: bool) -> ASGIApp:
    """Return the application that serves the page and its events."""

    async def page(_: Request) -> Response:
        return Response(part("index.html"), media_type="text/html", headers=_HEADERS)

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PARTS:
            return PlainTextResponse("no such file", 404, headers=_HEADERS)
        return Response(part(name), media_type=PARTS[name], headers=_HEADERS)

    async def events(_: Request) -> Response:
        if hub.full:
            return PlainTextResponse("too many pages are open", 503, headers=_HEADERS)
        return StreamingResponse(hub.stream(), media_type="text/event-stream", headers={**_HEADERS, "X-Accel-Buffering": "no"})

    app = Starlette(routes=[Route("/", page), Route("/static/{name}", static), Route("/events", events)])
    return own_hosts_only(app) if loopback else app
