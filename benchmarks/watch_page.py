"""The page of ``consumer-coord watch`` with one large group: the time between two frames of a headless Chromium.

    python -m benchmarks.watch_page

Each second, a message with the offsets of all partitions arrives as a server-sent event. Every ten seconds, all partitions
change their owner. Without a graphics card, the browser draws with the processor, so this benchmark is slower than a user's
browser.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.table import markdown
from consumer_coord.admin.http_server import LoopServer
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.watch.changes import Message, Tracker
from consumer_coord.watch.history import History
from consumer_coord.watch.recording import Meta
from consumer_coord.watch.server import Hub, application
from consumer_coord.watch.snapshots import GroupSnapshot, MemberSnapshot
from tests.support.browser import HOW, Browser, chromium
from tests.support.watch.looks import offsets_of

_TOPICS = 10
#: Seconds of history on the page when the first case begins, and seconds of later messages.
_PAST_S, _FUTURE_S = 60, 120
#: Call ``step`` at each frame, and return the times between the frames in milliseconds.
_MEASURE = """(async (ms, step) => { const times = []; let last = null, turn = 0; const end = performance.now() + ms;
  await new Promise(done => { const frame = now => { if (last !== null) times.push(now - last); last = now;
    if (performance.now() > end) return done(); step(turn++); requestAnimationFrame(frame) }; requestAnimationFrame(frame) });
  return times })"""
_ZOOM = """turn => document.getElementById('plots').dispatchEvent(new WheelEvent('wheel',
  {deltaY: turn % 60 < 30 ? -8 : 8, ctrlKey: true, clientX: 600, clientY: 400, bubbles: true, cancelable: true}))"""
_MOVE = """turn => { const plots = document.getElementById('plots'), way = turn % 100 < 50 ? turn % 100 : 100 - turn % 100,
  send = (kind, x) => plots.dispatchEvent(
    new PointerEvent(kind, {pointerId: 1, button: 0, clientX: x, clientY: 400, bubbles: true}));
  if (turn === 0) { plots.setPointerCapture = () => {}; send('pointerdown', 400) } send('pointermove', 400 + 4 * way) }"""
_SCROLL = "turn => { document.getElementById('scroller').scrollTop = 160 * turn % 100000 }"
_POINT = """turn => document.getElementById('plots').dispatchEvent(
  new PointerEvent('pointermove', {clientX: 300 + turn % 400, clientY: 300 + turn % 200, bubbles: true}))"""
_DROP = "document.getElementById('plots').dispatchEvent(new PointerEvent('pointerup', {pointerId: 1, bubbles: true}))"
#: The preparation of each case, its step at each frame, and its duration.
_CASES = (
    ("data alone, members out of sight", "scrollTo(0, 0)", "() => {}", 12),
    ("data alone, members in sight", "document.getElementById('members').scrollIntoView()", "() => {}", 12),
    ("zoom at each frame", "scrollTo(0, 0)", _ZOOM, 6),
    ("move at each frame", "", _MOVE, 6),
    ("scroll rows that can be read", f"{_DROP}; choose('rows', 'tall')", _SCROLL, 6),
    ("point at each frame", "choose('rows', 'fit')", _POINT, 6),
    ("ordered by owner, zoom at each frame", "choose('order', 'owner')", _ZOOM, 6),
)
_CHOOSE = """window.choose = (name, value) => { const box = document.getElementById(name); box.value = value;
  box.dispatchEvent(new Event('change')) }"""


def look(members: int, partitions: int, shift: int) -> GroupSnapshot:
    """Return a group in which, for each ``shift``, other members own all partitions."""
    owned: list[dict[str, tuple[int, ...]]] = [{} for _ in range(members)]
    for topic in (f"topic-{number}" for number in range(_TOPICS)):
        for number in range(partitions // _TOPICS):
            mine = owned[(number * 7 + shift) % members]
            mine[topic] = (*mine.get(topic, ()), number)
    told = tuple(
        MemberSnapshot(f"c{number}-0123456789", f"c{number}", "/10.0.0.1", None, shift, share, tuple(share))
        for number, share in enumerate(owned)
    )
    return GroupSnapshot("shop", "Stable", "Classic", "sticky", "kafka:9092 (broker 1)", None, told)


def messages(members: int, partitions: int) -> Iterator[Message]:
    """Yield one message for each second. The first message is ``_PAST_S`` seconds old."""
    tracker, chance = Tracker(), random.Random(1)
    topics = {f"topic-{number}": partitions // _TOPICS for number in range(_TOPICS)}
    committed = {TopicPartition(topic, number): number for topic, count in topics.items() for number in range(count)}
    began = time.time() - _PAST_S
    for second in range(_PAST_S + _FUTURE_S):
        committed = {partition: offset + chance.randrange(7) for partition, offset in committed.items()}
        ends = {partition: offset + 7 + chance.randrange(50) for partition, offset in committed.items()}
        group = look(members, partitions, second // 10 * 13)
        yield tracker.take([group], {"shop": offsets_of(topics, committed, ends)}, began + second)


class Feed:
    """The page's server on a thread, which serves the history at once, and then one message each second."""

    def __init__(self, told: list[Message]) -> None:
        self._told = told
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/"
        self._begin, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()

    async def _serve(self) -> None:
        history, stop = History(3600.0), asyncio.Event()
        for message in self._told[:_PAST_S]:
            history.add(message)
        hub = Hub(Meta("kafka:9092", keep_s=3600), history)
        server = LoopServer(application(hub, loopback=True))
        serving = asyncio.ensure_future(server.run_until(stop, self._listening, hub.close))
        await asyncio.to_thread(self._begin.wait)
        for message in self._told[_PAST_S:]:
            if self._end.is_set():
                break
            hub.publish(history.add(message))
            await asyncio.sleep(1)
        stop.set()
        await serving

    def begin(self) -> None:
        """Begin to publish one message each second."""
        self._begin.set()

    def close(self) -> None:
        """End the server."""
        self._end.set()
        self._begin.set()
        self._thread.join()


def row(name: str, times: list[float]) -> list[str]:
    """Return a case's figures."""
    ordered = sorted(times)
    late = sum(1 for each in ordered if each > 33.4)
    figures = [f"{ordered[int(part * (len(ordered) - 1))]:.1f}" for part in (0.5, 0.95, 1)]
    return [name, *figures, f"{late} of {len(ordered)}"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=10_000)
    arguments = parser.parse_args(argv)
    path = chromium()
    if path is None:
        parser.error(HOW)
    feed = Feed(list(messages(arguments.members, arguments.partitions)))
    rows = []
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, Browser(path, Path(profile)) as browser:
            browser.open(feed.url)
            browser.until("document.body.dataset.drawn")
            browser.js(_CHOOSE)
            feed.begin()
            for name, before, step, seconds in _CASES:
                browser.js(before)
                rows.append(row(name, browser.js(f"{_MEASURE}({seconds * 1000}, {step})")))
            assert browser.errors == []
    finally:
        feed.close()
    print(markdown(["", "median ms", "95th percentile", "longest", "frames above 33.4"], rows))


if __name__ == "__main__":
    main()
