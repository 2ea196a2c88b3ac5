"""Commands of an operator in virtual time, at brokers that answer nobody else wrongly."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from consumer_coord.admin.commands import ExitCode, exit_code
from consumer_coord.admin.offset_access import commit_offsets
from consumer_coord.broker.kafka_apis import ClientConnection
from consumer_coord.cli import build_parser
from consumer_coord.command_table import COMMANDS, named
from consumer_coord.consumer.async_consumer import AsyncGroupConsumer
from consumer_coord.errors import CoordinatorError
from consumer_coord.migration.command import check
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline
from consumer_coord.simulation import loop as virtual
from consumer_coord.simulation.network import Server
from consumer_coord.simulation.wrong_answers import WrongAnswer, WrongApis
from consumer_coord.wire.codec import decode_request_header
from tests.support.simulation.small_cluster import SmallCluster

OPERATOR: Final = "operator"
TIMEOUT_MS: Final = 3_000
#: Topic -> partitions. The group "idle" has commits for all of them, and no members.
TOPICS: Final = {"orders": 4, "other": 3}
IDLE: Final = "idle"

_PARSER: Final = build_parser()


@attrs.frozen
class Ran:
    """The result of a command: the exit code, the document, how long it took, and the commits of "idle" afterwards.

    ``asked``: API key -> how often the command asked. ``most``: how often it sent one kind of request in a second.
    """

    code: ExitCode
    document: Any
    took_s: float
    commits: Mapping[str, int]
    asked: Mapping[int, int]
    most: int


class _ForOperator:
    """A broker that answers only the operator wrongly."""

    def __init__(self, apis: Server, wrong: Server) -> None:
        self._apis, self._wrong = apis, wrong

    @property
    def up(self) -> bool:
        return self._apis.up

    async def handle(self, frame: bytes, client: ClientConnection) -> bytes | None:
        is_operator = decode_request_header(frame).client_id == OPERATOR
        return await (self._wrong if is_operator else self._apis).handle(frame, client)


class Operator:
    """Three brokers with the group "idle", and with one member each of the groups "classic" and "modern" if asked."""

    def __init__(self) -> None:
        self._wrong: list[WrongAnswer] = []
        self._told: dict[bytes, bytes] = {}
        self._small = SmallCluster(
            brokers=3, topics=TOPICS, serve=lambda apis: _ForOperator(apis, WrongApis(apis, self._wrong, self._told))
        )
        self._members: list[asyncio.Task[None]] = []
        self._asked: Counter[int] = Counter()
        self._per_s: Counter[tuple[int, int]] = Counter()
        self._small.network.on_answer = self._on_answer

    def _on_answer(self, client: str, _: str, frame: bytes, __: bytes) -> None:
        if client == OPERATOR:
            key = int.from_bytes(frame[:2], "big")
            self._asked[key] += 1
            self._per_s[key, int(self._small.loop.time())] += 1

    async def begin(self, *, members: bool) -> None:
        """Write records and commits, and start the members."""
        for partition in self._small.cluster.partitions():
            self._small.cluster.produce(partition, 5 + partition.partition)
        process = self._small.process("clerk")
        await self._small.run(process, self._commit(self._small.client(process)))
        for group, protocol in (("classic", "classic"), ("modern", "consumer")) if members else ():
            settings = {"bootstrap.servers": self._small.servers, "group.id": group, "group.protocol": protocol}
            process = self._small.process(f"{group}-1")
            self._members.append(process.create_task(_read({**settings, "auto.offset.reset": "earliest"})))
        if members:
            await asyncio.sleep(20)

    async def _commit(self, cluster: ClusterClient) -> None:
        offsets = {partition: 2 + partition.partition for partition in self._small.cluster.partitions()}
        try:
            assert not any((await commit_offsets(cluster, IDLE, offsets, Deadline.after(10_000))).values())
        finally:
            await cluster.close()

    async def run(self, line: Sequence[str], wrong: WrongAnswer | None = None) -> Ran:
        """Run a command while the brokers answer it wrongly in one way."""
        self._wrong[:] = [] if wrong is None else [wrong]
        self._asked.clear()
        self._per_s.clear()
        process, out = self._small.process(OPERATOR), io.StringIO()
        arguments = _PARSER.parse_args([*line, "--json", "--bootstrap-server", "b:1", "--timeout", str(TIMEOUT_MS)])
        codes: list[ExitCode] = []

        async def program() -> None:
            cluster = self._small.client(process)
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                    codes.append(await _command(cluster, arguments))
            except CoordinatorError as error:
                codes.append(exit_code(error))
            finally:
                ended.append(self._small.loop.time())
                await cluster.close()

        began, ended = self._small.loop.time(), list[float]()
        await self._small.run(process, program())
        return Ran(
            codes[0],
            _without_ages(json.loads(out.getvalue() or "null")),
            ended[0] - began,
            self._commits(),
            dict(self._asked),
            max(self._per_s.values(), default=0),
        )

    def _commits(self) -> dict[str, int]:
        node = self._small.cluster.coordinator_of(IDLE)
        assert node is not None
        asked = [(one.topic, one.partition) for one in self._small.cluster.partitions()]
        _, rows = node.coordinator.offsets.fetch(IDLE, asked, False)
        return {f"{topic}-{number}": found.offset for topic, number, found in rows if not isinstance(found, int)}

    async def end(self) -> None:
        """Stop the members and the brokers."""
        self._wrong.clear()
        for task in self._members:
            task.cancel()
        if self._members:
            await asyncio.wait(self._members)
        self._small.close()


async def _command(cluster: ClusterClient, arguments: argparse.Namespace) -> ExitCode:
    if arguments.command == "migrate":
        return await check(cluster, arguments)
    code: ExitCode = await named(COMMANDS[arguments.command].run)(cluster, arguments, Deadline.after(arguments.timeout))
    return code


async def _read(settings: Mapping[str, Any]) -> None:
    async with AsyncGroupConsumer(settings) as consumer:
        await consumer.subscribe(list(TOPICS))
        while True:
            await consumer.consume(100, timeout=5)


def _without_ages(value: Any) -> Any:
    """Return a document without the numbers that depend on when the command ran."""
    if isinstance(value, dict):
        return {name: "an age" if name == "lag_seconds" and of else _without_ages(of) for name, of in value.items()}
    return [_without_ages(one) for one in value] if isinstance(value, list) else value


def run_commands(lines: Sequence[tuple[Sequence[str], WrongAnswer | None]], *, members: bool, shared: bool) -> list[Ran]:
    """Run commands one after another, each with new brokers unless they are ``shared``; return the results."""
    found: list[Ran] = []

    async def play(some: Sequence[tuple[Sequence[str], WrongAnswer | None]]) -> None:
        operator = Operator()
        await operator.begin(members=members)
        for line, wrong in some:
            found.append(await operator.run(line, wrong))
        await operator.end()

    for some in [lines] if shared else [[one] for one in lines]:
        virtual.run(play(some), seed=1, max_time_s=100_000)
    return found
