"""Programs of the examples and of the docs, programs that write, and programs of ``process``, in virtual time."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import httpx
import pytest

from consumer_coord.simulation.programs.decorator import Simulated
from consumer_coord.simulation.programs.guard import guarded
from consumer_coord.simulation.programs.process import ForbiddenError
from consumer_coord.simulation.programs.spec import ProgramSpec
from consumer_coord.testing import SimulatedWorld, simulated
from examples import billing as example
from examples import parallel_http, web_service
from tests.support.docs.blocks import DOCS, blocks_of
from tests.support.simulation import writing

pytestmark = pytest.mark.slow

WRITING = "tests.support.simulation.writing"
RETRY_TOPICS = {"orders.billing.retry.1": 2, "orders.billing.retry.5": 2}


# -- examples


@simulated(seeds=6, handled="examples.billing.handle")
async def test_the_example_of_the_guide(world: SimulatedWorld) -> None:
    payments = world.external("examples.billing.charge", failures=0.05)
    await world.produce("orders", 100)
    await world.run(example.main)
    await world.settled()
    assert world.lost() == []
    assert len({call.args[0] for call in payments.calls if call.done}) == 100


@simulated(seeds=6)
async def test_parallel_http(world: SimulatedWorld) -> None:
    def accepted(client: object, url: str, *, content: bytes) -> httpx.Response:
        return httpx.Response(200, request=httpx.Request("POST", url))

    service = world.external("httpx.AsyncClient.post", accepted, failures=0.05, error=httpx.ConnectError)
    await world.produce("orders", [(f"key-{number % 20}", str(number)) for number in range(100)])
    await world.run(parallel_http.main, "kafka:9092", "orders", "billing", "http://invoices")
    await world.settled()
    done = Counter(call.kwargs["content"] for call in service.calls if call.done)
    dead = {value for _, value in world.records("orders.failed")}
    assert {b"%d" % number for number in range(100)} == done.keys() | dead


async def serve(app: Any) -> None:
    """Run a service's consumer until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app.router.lifespan_context(app):
        await stop.wait()


@simulated(seeds=6)
async def test_web_service(world: SimulatedWorld) -> None:
    async def main() -> None:
        await serve(web_service.make_app("kafka:9092"))

    await world.produce("orders", 100)
    await world.run(main)
    await world.settled()


# -- pages


def page_of(name: str, number: int) -> ModuleType:
    """Return a module with the code of a page's Python block, without its last call of ``asyncio.run``."""
    code = [block for block in blocks_of(DOCS / name) if block.language == "python"][number].code
    module = ModuleType("program_of_a_page")
    module.__file__ = str(DOCS / name)
    exec(compile(re.sub(r"^asyncio\.run\(.*\)$", "", code, flags=re.MULTILINE), module.__file__, "exec"), vars(module))
    return module


def test_asyncio_page() -> None:
    module = page_of("asyncio.md", 0)
    vars(module)["print"] = lambda *values: None

    @simulated(seeds=6)
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", 100)
        await world.run(module.main)
        await world.settled()

    test()


def test_the_service_of_the_asyncio_page() -> None:
    async def main() -> None:
        # Each process has globals of its own.
        module = page_of("asyncio.md", 1)
        await serve(module.app)

    @simulated(seeds=6)
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", 100)
        await world.run(main)
        await world.settled()

    test()


def test_parallel_page(monkeypatch: pytest.MonkeyPatch) -> None:
    module = page_of("parallel.md", 0)
    vars(module).update(print=lambda *values: None)
    monkeypatch.setattr(module.stop, "set", lambda: None)
    monkeypatch.setitem(sys.modules, "program_of_a_page", module)

    @simulated(seeds=6, handled="program_of_a_page.handle")
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", 100)
        await world.run(module.main)
        await world.settled()
        assert world.lost() == []

    test()


def test_the_invoices_of_the_exactly_once_page_survive_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    module = page_of("exactly-once.md", 0)
    vars(module).update(print=lambda *values: None)
    monkeypatch.setitem(sys.modules, "program_of_a_page", module)

    async def main() -> None:
        # A host has one of these processes, and a name that no other host has.
        task = asyncio.current_task()
        assert task is not None
        await module.main(task.get_name())

    @simulated(seeds=20, faults=["kill"], handled="program_of_a_page.invoice_for", topics={"invoices": 3})
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", [(f"key-{number % 20}", str(number)) for number in range(100)])
        await world.run(main)
        await world.settled()
        invoices = Counter(value for _, value in world.records("invoices"))
        assert invoices == {b"invoice for %d" % number: 1 for number in range(100)}

    test()


def test_the_same_kills_make_a_copy_without_transactions_repeat_records() -> None:
    @simulated(seeds=20, faults=["kill"], handled=f"{WRITING}.copy_of", topics={"copies": 3})
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", [(f"key-{number % 20}", str(number)) for number in range(100)])
        await world.run(writing.copy)
        await world.settled()
        copies = Counter(value for _, value in world.records("copies"))
        assert copies.keys() == {b"%d" % number for number in range(100)}
        assert set(copies.values()) == {1}, "repeated"

    with pytest.raises(AssertionError, match="repeated"):
        test()


# -- process


@pytest.mark.parametrize(("policy", "topics"), [(writing.letters, {}), (writing.retries, RETRY_TOPICS)])
def test_failed_records_are_not_lost(policy: Callable[[], Any], topics: dict[str, int]) -> None:
    @simulated(seeds=6, handled=f"{WRITING}.handle", topics=topics)
    async def test(world: SimulatedWorld) -> None:
        world.external(f"{WRITING}.charge", failures=0.3)
        await world.produce("orders", 100)
        await world.run(writing.processing(policy))
        await world.settled()
        assert world.lost() == []
        reasons = [one.reason for one in world.repeated()]
        assert not [one for one in reasons if "went back" in one], "a commit passed the record before"

    test()


# -- programs that write


def copied(program: Callable[[], Any], *, once: bool = False) -> Callable[[], None]:
    @simulated(seeds=20, topics={"copies": 3})
    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", [(f"key-{number % 20}", str(number)) for number in range(100)])
        await world.run(program)
        await world.settled()
        copies = Counter(value for _, value in world.records("copies"))
        assert copies.keys() == {b"%d" % number for number in range(100)}
        if once:
            assert set(copies.values()) == {1}

    return test


def test_a_copy_is_complete() -> None:
    copied(writing.copy)()


def test_a_copy_in_transactions_is_exact() -> None:
    copied(writing.exactly_once, once=True)()


def test_a_commit_before_the_delivery_is_found() -> None:
    with pytest.raises(AssertionError) as found:
        copied(writing.forgetful)()
    assert "fails" in found.value.__notes__[0]


def test_a_flush_that_would_block_is_rejected() -> None:
    settings = Simulated(seeds=1, processes=1, kinds=(), handled=None, topics={"copies": 1}, brokers=1)

    async def test(world: SimulatedWorld) -> None:
        await world.run(writing.flushing)
        await world.settled()

    with guarded():
        outcome = settings.play(test, ProgramSpec(seed=1, processes=1, faults=()))
    assert isinstance(outcome.error, ForbiddenError)
    assert re.search(r"writing\.py:\d+ \(in flushing\): Producer\.flush\(\) with outstanding records", str(outcome.error))


@simulated(seeds=2)
async def test_a_test_writes_with_a_producer(world: SimulatedWorld) -> None:
    async with world.producer({"linger.ms": 5}) as producer:
        message = await (await producer.produce("letters", "hello", "key"))
        assert (message.topic(), message.offset(), message.error()) == ("letters", 0, None)
    assert world.records("letters") == [(b"key", b"hello")]
