"""The page in a real browser: a group rebalances, and the picture follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.watch.changes import Message, Tracker
from consumer_coord.watch.page import write_page
from consumer_coord.watch.recording import Meta
from consumer_coord.watch.snapshots import GroupSnapshot, MemberSnapshot, OffsetsSnapshot
from tests.integration.watch.test_command import Watch, poll_until_shared
from tests.support.browser import Browser
from tests.support.watch.looks import TOPIC, group, member, offsets, offsets_of, rebalancing

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: The owners of the partitions of the group that the page shows, as client ids, by the page's own model.
OWNERS = """(() => { const group = [...window.watched.model.groups.values()][0];
  return [...group.partitions()].map(([, , row]) => group.members.get(row.last)?.client ?? null).join(" ") })()"""
#: A colour of the picture: of the row of a partition, at its right edge.
COLOUR = """(number => { const picture = window.watched.picture, scale = devicePixelRatio,
  x = (picture.x(Math.min(picture.to, picture.model.now)) - 2) * scale, y = (20 + (number + .4) * picture.rowHeight) * scale;
  return [...picture.canvas.owners.getContext("2d").getImageData(x, y, 1, 1).data].join() })"""
#: The colour of a member, as a canvas has it.
MEMBERS_COLOUR = """(owner => { const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = window.watched.picture.colour(owner); pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data].join() })"""
#: Calls to what markup in a name would run, if it ran.
PLANTED = "<img src=x onerror=window.planted=1><script>window.planted=1</script>"


Show = Callable[..., None]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Show:
    """``show(messages)`` opens one self-contained page."""

    def show(messages: list[Message], meta: Meta | None = None) -> None:
        write_page(tmp_path / "page.html", meta or Meta("kafka:9092"), messages)
        browser.open((tmp_path / "page.html").as_uri())
        browser.until("document.body.dataset.drawn")

    return show


def story(*looks: GroupSnapshot, told: dict[str, OffsetsSnapshot] | None = None) -> list[Message]:
    """A look every ten seconds."""
    tracker = Tracker()
    return [tracker.take([look], told or {}, 1_000_000.0 + 10 * number) for number, look in enumerate(looks)]


def text(browser: Browser, selector: str) -> str:
    """Return the text of the element."""
    return str(browser.js(f"document.querySelector({selector!r}).innerText"))


def test_a_group_rebalances_and_the_picture_follows(browser: Browser) -> None:
    with EmbeddedKafka(topics={TOPIC: 6}) as kafka:
        watch = Watch("--bootstrap-server", kafka.bootstrap_servers, "--interval-ms", "100")
        consumers: list[Any] = []

        def join(name: str) -> None:
            settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "shop", "client.id": name}
            consumers.append(GroupConsumer({**settings, "heartbeat.interval.ms": 500}))
            consumers[-1].subscribe([TOPIC])
            poll_until_shared(consumers, 6 // len(consumers))

        try:
            browser.open(watch.url)
            browser.until("document.body.innerText.includes('There is no consumer group yet.')")
            join("ann")
            browser.until(f"{OWNERS} === 'ann ann ann ann ann ann'")
            browser.until(f"{COLOUR}(5) === {MEMBERS_COLOUR}(0)")
            join("bob")
            browser.until(f"{OWNERS} === 'ann ann ann bob bob bob'")
            # Drawn, too: another colour where another member owns, the same where nothing moved.
            browser.until(f"{COLOUR}(5) === {MEMBERS_COLOUR}(1) && {COLOUR}(0) === {MEMBERS_COLOUR}(0)")
            browser.until("document.querySelector('#rebalances').innerText.match(/bob-[0-9a-f]{6} joined/)")
            assert browser.js("document.querySelectorAll('#members tbody tr').length") == 2
            assert text(browser, "#status") == "live"

            browser.js("document.getElementById('pause').click()")
            browser.until("document.getElementById('status').innerText.startsWith('paused')")
            consumers.pop(0).close()
            poll_until_shared(consumers, 6)
            # The model changes, but the page does not.
            browser.until(f"{OWNERS} === 'bob bob bob bob bob bob'")
            assert browser.js("document.querySelectorAll('#members tbody tr').length") == 2
            browser.js("document.getElementById('pause').click()")
            browser.until("document.querySelectorAll('#members tbody tr').length === 1")
        finally:
            for one in consumers:
                one.close()
            _, err = watch.end()
    assert err == ""
    browser.until("document.getElementById('status').innerText === 'the watch has ended'")
    assert browser.errors == []
    assert {address.split("/")[2] for address in browser.requested if "://" in address} == {watch.url.split("/")[2]}


def test_names_are_shown_and_never_run(browser: Browser, show: Show) -> None:
    reordered = "\u202egnihton\u0007"
    hostile = MemberSnapshot(PLANTED, reordered, PLANTED, None, 1, {PLANTED: (0, 1)}, (PLANTED,))
    other = MemberSnapshot("b" * 5_000, PLANTED, "", PLANTED, 1, {"__proto__": (0,)}, ("__proto__",))
    looks = [
        GroupSnapshot(PLANTED, "Stable", "Classic", PLANTED, PLANTED, None, members)
        for members in ((hostile,), (hostile, other))
    ]
    messages = story(*looks)
    messages.append({"at": 1_000_030.0, "groups": {"constructor": {"info": {"error": PLANTED}}}, "trouble": PLANTED})
    show(messages, Meta(PLANTED, PLANTED))
    browser.js("[...document.querySelectorAll('nav button')].find(one => one.innerText.includes('img')).click()")
    browser.until("document.getElementById('group').innerText.includes('<img')")
    assert PLANTED in text(browser, "#group")
    assert "\\u202egnihton\\u0007" in text(browser, "#members tbody")
    assert reordered not in browser.js("document.body.innerText")
    browser.js("document.getElementById('plots').dispatchEvent(new PointerEvent('pointermove', {clientX: 600, clientY: 420}))")
    assert browser.js("[window.planted, document.images.length, document.scripts.length]") == [None, 0, 5]
    assert browser.errors == []
    # A name as long as this must not make the page wider than the window.
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")


def test_zoom_move_and_point(browser: Browser, show: Show) -> None:
    ann, bob = member("ann", "0-3"), member("bob")
    half = group(member("ann", "0-1"), member("bob", "2-3"))
    show(story(group(ann), group(ann), rebalancing(ann, bob), half, half, half))
    span = "window.watched.picture.to - window.watched.picture.from"
    assert browser.js(span) == 50
    browser.js("document.getElementById('in').click()")
    browser.until(f"{span} === 25")
    browser.js("document.getElementById('plots').focus()")
    start = browser.js("window.watched.picture.from")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowLeft")
    browser.until(f"window.watched.picture.from === {start} - 5")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="0", text="0")
    browser.until(f"{span} === 50")

    box = browser.js("(({left, top}) => [left, top])(document.getElementById('plots').getBoundingClientRect())")
    x = box[0] + browser.js("window.watched.picture.x(1000045)")
    browser.mouse("mouseMoved", x, box[1] + 20 + 2.5 * browser.js("window.watched.picture.rowHeight"))
    tip = browser.until("!document.getElementById('tip').hidden && document.getElementById('tip').innerText")
    assert "orders-2" in tip
    assert "bob-1234567890" in tip
    browser.mouse("mouseMoved", box[0] + browser.js("window.watched.picture.x(1000025)"), box[1] + 60)
    browser.until("document.getElementById('tip').innerText.includes('bob-123456 joined')")

    # Drag by a quarter of the width.
    width = browser.js("window.watched.picture.width")
    browser.mouse("mousePressed", x, box[1] + 60, button="left", clickCount=1)
    browser.mouse("mouseMoved", x - width / 8, box[1] + 60, button="left", buttons=1)
    browser.mouse("mouseMoved", x - width / 4, box[1] + 60, button="left", buttons=1)
    browser.mouse("mouseReleased", x - width / 4, box[1] + 60, button="left")
    browser.until("Math.abs(window.watched.picture.from - 1000012.5) < 0.5")
    browser.mouse("mouseWheel", x, box[1] + 60, deltaX=0, deltaY=-60, modifiers=2)
    browser.until(f"{span} < 45")
    assert browser.errors == []


def test_five_hundred_members_and_ten_thousand_partitions(browser: Browser, show: Show) -> None:
    topics = {f"topic-{number}": 1_000 for number in range(10)}

    def look(shift: int) -> GroupSnapshot:
        owned: list[dict[str, tuple[int, ...]]] = [{} for _ in range(500)]
        for topic in topics:
            for number in range(1_000):
                mine = owned[(number + shift) % 500]
                mine[topic] = (*mine.get(topic, ()), number)
        members = tuple(
            MemberSnapshot(f"c{number}-0123456789", f"c{number}", "/10.0.0.1", None, shift, share, tuple(topics))
            for number, share in enumerate(owned)
        )
        return GroupSnapshot("shop", "Stable", "Classic", "sticky", "kafka:9092 (broker 1)", None, members)

    told = {TopicPartition(topic, number): number for topic, count in topics.items() for number in range(count)}
    ends = {partition: offset + 7 for partition, offset in told.items()}
    show(story(*map(look, range(6)), told={"shop": offsets_of(topics, told, ends)}))
    assert text(browser, "#figures").split()[:4] == ["Members", "500", "Partitions", "10,000"]
    assert browser.js("document.querySelectorAll('#members tbody tr').length") == 500
    # The rows in view are written at once, the last one by and by, and it is seen where the table is scrolled to its end.
    assert browser.js("document.querySelector('#members tbody tr').cells[1].textContent") == "c0-0123456789"
    browser.until("document.querySelector('#members tbody tr:last-child').cells[1]?.textContent === 'c499-0123456789'")
    browser.js("document.querySelector('#members tbody tr:last-child').scrollIntoView()")
    browser.until("document.getElementById('members').innerText.includes('c499-0123456789')")
    browser.js("document.getElementById('rows').value = 'tall'")
    browser.js("document.getElementById('rows').dispatchEvent(new Event('change'))")
    browser.until("window.watched.picture.rowHeight === 16")
    browser.js("document.getElementById('scroller').scrollTop = 16 * 9000")
    browser.until("window.watched.picture.offset === 16 * 9000")
    # The size of the window limits the number of drawn elements, and not the size of the group.
    assert browser.js("window.watched.picture.canvas.owners.height") < 1_000
    assert browser.errors == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_window(width: int, browser: Browser, show: Show) -> None:
    browser.resize(width, 844)
    half = group(member("ann-of-the-long-name-service", "0-1"), member("bob", "2-3"))
    show(story(half, half, told=offsets(4, {0: 1}, {0: 123_456_789})))
    assert browser.js("document.documentElement.scrollWidth") == width
    assert "123.5M" in text(browser, "#figures")
    captions = "[...document.querySelectorAll('.caption')]"
    assert browser.js(f"{captions}.filter(line => line.scrollWidth > line.clientWidth).map(line => line.innerText)") == []
    # A page with few members draws all of them, wherever the window is, so that a picture of the whole page has them.
    assert browser.js("getComputedStyle(document.querySelector('#members tbody tr')).contentVisibility") == "visible"
    browser.resize(width, 844, dark=True)
    browser.until("getComputedStyle(document.body).backgroundColor === 'rgb(18, 21, 24)'")
    assert browser.errors == []


WORKERS = [f"worker-{number}" for number in range(6)]


def billing(name: str, shift: int) -> GroupSnapshot:
    """Six members with four partitions each, with the names that clients and brokers make."""
    members = tuple(
        MemberSnapshot(
            f"{client}-0a1b2c3d-4e5f-6789-abcd-ef0123456789",
            client,
            f"/10.0.12.{number}",
            None,
            7,
            {TOPIC: tuple(range(4 * ((number + shift) % 6), 4 * ((number + shift) % 6) + 4))},
            (TOPIC,),
        )
        for number, client in enumerate(WORKERS)
    )
    return GroupSnapshot(name, "Stable", "Classic", "cooperative-sticky", "kafka-1:9092 (broker 1)", None, members)


#: Texts that the canvases show: [text, left, right, width of the canvas], in pixels of the page.
DRAWN = """(() => { const found = [], draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const width = this.measureText(text).width, left = x - {left: 0, center: width / 2, right: width}[this.textAlign];
    found.push([text, left, left + width, this.canvas.clientWidth]); draw.call(this, text, x, y) };
  window.watched.picture.draw();
  CanvasRenderingContext2D.prototype.fillText = draw;
  return found })()"""


@pytest.mark.parametrize("groups", [1, 2], ids=["alone", "with a list of groups"])
@pytest.mark.parametrize("width", [1560, 1400, 1300, 1000, 720, 420, 360])
def test_nothing_of_the_page_is_cut(width: int, groups: int, browser: Browser, show: Show) -> None:
    """Every column of the members, every figure, every label."""
    browser.resize(width, 900)
    tracker = Tracker()
    told = {TopicPartition(TOPIC, number): number for number in range(24)}
    figures = {"billing": offsets_of({TOPIC: 24}, told, {partition: 1_000 + offset for partition, offset in told.items()})}
    names = ["billing", "reports"][:groups]
    looks = [[billing(name, shift) for name in names] for shift in (0, 0, 1, 1)]
    show([tracker.take(look, figures, 1_000_000.0 + 10 * number) for number, look in enumerate(looks)])
    browser.until("document.querySelector('#members tbody tr').cells.length === 8")

    assert browser.js("document.documentElement.scrollWidth") == width
    box = "document.getElementById('members').parentElement"
    assert browser.js(f"{box}.scrollWidth - {box}.clientWidth") == 0
    hidden = f"""[...document.querySelectorAll('#members tbody tr:first-child td')].filter(cell => {{
      const at = cell.getBoundingClientRect(), edge = {box}.getBoundingClientRect();
      return at.width < 8 || at.height < 8 || at.left < edge.left || at.right > edge.right + 1 }})"""
    assert browser.js(f"{hidden}.map(cell => cell.innerText)") == []
    # The figures fill their box: the last one of each row ends where the box ends.
    rows = """(() => { const rows = new Map();
      for (const cell of document.querySelectorAll('#figures > div:not([hidden])')) {
        const at = cell.getBoundingClientRect(); rows.set(Math.round(at.top), Math.round(at.right)) }
      return [...rows.values()] })()"""
    end = browser.js("Math.round(document.getElementById('figures').getBoundingClientRect().right) - 1")
    assert set(browser.js(rows)) == {end}

    drawn = browser.js(DRAWN)
    assert [one for one in drawn if one[1] < 0 or one[2] > one[3]] == []
    owners = [text for text, left, _, width in drawn if left > width - 130 and text.startswith("w")]
    assert len(owners) == 6
    assert browser.errors == []


def test_a_narrow_page_names_the_columns_of_each_member(browser: Browser, show: Show) -> None:
    browser.resize(420, 900)
    show(story(billing("billing", 0)))
    browser.until("document.querySelector('#members tbody tr').cells.length === 8")
    named = """[...document.querySelectorAll('#members tbody tr:first-child td')]
      .map(cell => getComputedStyle(cell, '::before').content).filter(text => text !== 'none')"""
    assert browser.js(named) == ['"Generation "', '"Partitions "', '"Lag "', '"Assigned "']
