"""The page in one file and over HTTP, and its handling of names that come from clients."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from consumer_coord.admin.http_server import host_of, is_loopback
from consumer_coord.watch.history import History
from consumer_coord.watch.page import PARTS, part, render_page
from consumer_coord.watch.recording import Meta
from consumer_coord.watch.server import Hub, application

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!--"


class Tags(HTMLParser):
    """Collects the tags that a browser would find."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._in_data = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._in_data = dict(attrs).get("id") == "recording"

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False


def test_a_name_cannot_leave_the_data_of_the_page() -> None:
    message = {"at": 1.0, "groups": {HOSTILE: {"info": {"state": HOSTILE}}}}
    honest, hostile = Tags(render_page(Meta("t"), [])), Tags(render_page(Meta(HOSTILE), [message]))
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in honest.found]
    assert json.loads(hostile.data)["messages"] == [message]
    assert json.loads(hostile.data)["meta"]["title"] == HOSTILE


def test_the_page_in_one_file_names_no_other() -> None:
    tags = Tags(render_page(Meta("t"), []))
    links = [value for _, attributes in tags.found for name, value in attributes.items() if name in ("src", "href")]
    assert links == ["data:,"]


def test_the_page_makes_no_markup_of_text() -> None:
    markup = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|https?://")
    for name in (*PARTS, "index.html"):
        assert not markup.findall(part(name)), name


def test_every_part_that_the_page_names_is_there() -> None:
    named = re.findall(r'(?:href|src)="static/([^"]+)"', part("index.html"))
    assert sorted(named) == sorted(PARTS)
    for name in PARTS:
        assert len(part(name)) > 1_000


# -- over HTTP -----------------------------------------------------------------------------------------------------------


def ask(path: str, host: str = "localhost:8098", *, loopback: bool = True, hub: Hub | None = None) -> httpx.Response:
    """Send one request."""

    async def get() -> httpx.Response:
        app: Any = application(hub or Hub(Meta("t"), History()), loopback=loopback)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.get(path, headers={"host": host})

    return asyncio.run(get())


def test_the_page_and_its_parts_are_served_with_a_policy() -> None:
    for path, kind in [("/", "text/html"), *((f"/static/{name}", kind) for name, kind in PARTS.items())]:
        answer = ask(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/static/index.html", "/static/..%2Fpage.py", "/static/../../pyproject.toml", "/other"])
def test_nothing_else_is_served(path: str) -> None:
    assert ask(path).status_code == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost:8098", 200), ("127.0.0.1", 200), ("[::1]:8098", 200)),
        *(("evil.example:8098", 421), ("", 421), ("10.0.0.1", 421)),
    ],
)
def test_on_loopback_only_its_own_names_are_answered(host: str, status: int) -> None:
    assert ask("/", host).status_code == status


def test_on_another_address_any_name_is_answered() -> None:
    assert ask("/", "watch.example", loopback=False).status_code == 200


@pytest.mark.parametrize(
    ("address", "host", "loopback"),
    [
        ("127.0.0.1:80", "127.0.0.1", True),
        ("127.9.9.9", "127.9.9.9", True),
        ("[::1]:80", "::1", True),
        ("LOCALHOST:1", "LOCALHOST", True),
        ("0.0.0.0:80", "0.0.0.0", False),
        ("localhost.evil.example", "localhost.evil.example", False),
    ],
)
def test_loopback_addresses(address: str, host: str, loopback: bool) -> None:
    assert host_of(address) == host
    assert is_loopback(host) is loopback


# -- events --------------------------------------------------------------------------------------------------------------


def run(work: Callable[[Hub, History], Awaitable[None]]) -> None:
    """Run in a loop, with a hub that has a history of one message."""

    async def main() -> None:
        history = History()
        history.add({"at": 1.0})
        await work(Hub(Meta("t"), history), history)

    asyncio.run(main())


def test_a_page_gets_the_past_then_each_message_then_the_end() -> None:
    async def work(hub: Hub, history: History) -> None:
        stream = hub.stream()
        start = await anext(stream)
        assert start.startswith("event: start\ndata: ")
        told = json.loads(start.partition("data: ")[2])
        assert (told["live"], told["messages"]) == (True, [{"at": 1.0}])
        hub.publish(history.add({"at": 2.0, "gone": ["line\nbreak"]}))
        event = await anext(stream)
        assert event.endswith("\n\n")
        assert "\n" not in event.strip()
        assert json.loads(event.removeprefix("data: ")) == {"at": 2.0, "gone": ["line\nbreak"]}
        hub.close()
        assert [one async for one in stream] == ["event: end\ndata: {}\n\n"]

    run(work)


def test_a_page_that_does_not_read_restarts_instead_of_filling_the_memory() -> None:
    async def work(hub: Hub, history: History) -> None:
        stream = hub.stream()
        await anext(stream)
        for at in range(2, 1_000):
            hub.publish(history.add({"at": float(at)}))
        hub.close()
        events = [event async for event in stream]
        assert len(events) < 100

        stream = hub.stream()
        assert [event async for event in stream] == ["event: end\ndata: {}\n\n"]

    run(work)


def test_a_slow_page_is_complete_after_a_restart() -> None:
    async def work(hub: Hub, history: History) -> None:
        stream = hub.stream()
        await anext(stream)
        for at in range(2, 101):
            hub.publish(history.add({"at": float(at)}))
        seen: list[float] = []
        while not seen or seen[-1] < 100.0:
            event = await anext(stream)
            told = json.loads(event.partition("data: ")[2])
            if event.startswith("event: start"):
                seen = [message["at"] for message in told["messages"]]
            else:
                seen.append(told["at"])
        assert seen == [float(at) for at in range(1, 101)]
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator

    run(work)


def test_only_so_many_pages_at_once() -> None:
    async def work(hub: Hub, _: History) -> None:
        streams = [hub.stream() for _ in range(64)]
        for stream in streams:
            await anext(stream)
        app: Any = application(hub, loopback=True)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert (await client.get("/events")).status_code == 503
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]  # an async generator
        assert not hub.full

    run(work)
