"""Fuzzing with changed responses: their users must need little time and memory, and raise only this package's errors.

A member joins, polls, commits and looks up offsets, and an operator's commands run, all with an embedded broker. Some of the
broker's responses are decoded, changed at harmful places (extreme numbers, repeated and missing rows, unknown ids, names that
forge lines, other error codes, invalid subscriptions), encoded again, and sent.  A member of another cluster lives on the same
loop, and must send its heartbeats in time.  A seed determines one such story in virtual time.
``test_fuzzed_answers.py`` plays a few hundred stories in CI; by hand, for any time::

    python -m tests.support.group.fuzz_answers --minutes 60 [--first 1000]

prints the seed of each story that breaks a rule, then a line for each API with its number of changed responses, and ends
with 1 if a rule was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import logging
import random
import resource
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from consumer_coord.admin import commands
from consumer_coord.cli import build_parser
from consumer_coord.errors import CoordinatorError, UnreachableError
from consumer_coord.retry import Deadline
from consumer_coord.scaling.lag_export import lag_command
from consumer_coord.simulation import loop as virtual
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.apis import APIS
from consumer_coord.wire.codec import Request, decode_response, encode_response
from consumer_coord.wire.messages.cluster import ApiVersionsResponse
from consumer_coord.wire.messages.group import HeartbeatRequest
from consumer_coord.wire.schema import BOOL, BYTES, FLOAT64, RECORDS, STRING, UUID, FieldSpec, Kind, Struct, fields_of
from tests.support.group.fake import GROUP, Drop, FakeBrokers, RealCoordinator
from tests.support.group.member import COOPERATIVE, EAGER, at, member, new_cluster, new_member
from tests.support.group.virtual import now_ms

#: Longer responses only take longer to decode.
LONGEST_ANSWER = 100_000
#: The most memory that a story may need beyond all stories before it, including its imports, in bytes.
MOST_BYTES = 64 << 20
#: The most processor time of a story, in seconds; checked only by hand.
LONGEST_S = 20.0
#: The longest time between two heartbeats of the other cluster's member, in virtual milliseconds: interval and latency.
LONGEST_SILENCE_MS = 3_100.0

NASTY_TEXTS = ("", "\x1b[2J", "a\nforged row", "\u202e", "x" * 300, "x" * 32_000, "no-such-name", "%s%n", "../..", "a\0b")
_BITS = {"b": (8, True), "h": (16, True), "H": (16, False), "i": (32, True), "I": (32, False), "q": (64, True)}
_ERROR_CODES = tuple(code for name, code in vars(codes).items() if name.isupper() and isinstance(code, int))


class Bender:
    """Changes messages; its generator determines all changes."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng

    def bend(self, message: Struct, version: int) -> Struct:
        """Return a message with one to three changes at random places."""
        for _ in range(self._random.randint(1, 3)):
            message = self._struct(message, version)
        return message

    def _struct(self, message: Struct, version: int) -> Struct:
        specs = [spec for spec in fields_of(type(message)) if version in spec.versions]
        if not specs:
            return message
        # Most interesting fields are below arrays.
        weights = [4 if spec.kind.element is not None else 1 for spec in specs]
        (spec,) = self._random.choices(specs, weights)
        value = self._field(spec, getattr(message, spec.name), version)
        return attrs.evolve(message, **{spec.name: value})

    def _field(self, spec: FieldSpec, value: Any, version: int) -> Any:
        if version in spec.nullable and self._random.random() < 0.1:
            return None
        if spec.name == "error_code":
            return self._random.choice(_ERROR_CODES)
        return self._value(spec.kind, value, version)

    def _value(self, kind: Kind[Any], value: Any, version: int) -> Any:
        rng = self._random
        if kind.element is not None:
            return self._array(kind.element, tuple(value or ()), version)
        if kind.struct is not None:
            return self._struct(value, version) if value is not None else value
        if kind is BOOL:
            return not value
        if kind is UUID:
            return rng.choice((uuid.UUID(int=0), uuid.UUID(int=rng.getrandbits(128))))
        if kind is FLOAT64:
            return rng.choice((0.0, -1.0, 1e308))
        if kind.format:
            bits, signed = _BITS[kind.format]
            low = -(1 << bits - 1) if signed else 0
            high = low + (1 << bits) - 1
            return rng.choice((low, high, 0, max(low, -1), high - 1, rng.randint(low, high), min(high, 200_000_000)))
        if kind is STRING:
            return rng.choice(NASTY_TEXTS)
        assert kind in (BYTES, RECORDS)
        data = bytes(value or b"")
        cut = rng.randrange(len(data) + 1)
        other = bytes(byte ^ (rng.random() < 0.1) * rng.getrandbits(8) for byte in data)
        longer = data[:cut] + b"\x7f\xff\xff\xff" + data[cut:]
        return rng.choice((b"", data[:cut], other, rng.randbytes(rng.randrange(40)), longer))

    def _array(self, element: Kind[Any], rows: tuple[Any, ...], version: int) -> Any:
        rng = self._random
        if not rows:
            fresh = element.struct() if element.struct is not None else self._value(element, element.default, version)
            return (fresh,) * rng.choice((1, 2, 100))
        at_ = rng.randrange(len(rows))
        match rng.randrange(6):
            case 0:
                return ()
            case 1:
                return rows + rows[:50] * rng.choice((1, 20))
            case 2:
                return rows[:at_] + rows[at_ + 1 :]
            case _:
                return (*rows[:at_], self._value(element, rows[at_], version), *rows[at_ + 1 :])


class BendingBroker(RealCoordinator):
    """A broker that bends some of its responses."""

    def __init__(self, seed: int) -> None:
        super().__init__({"t": 4, "u": 2})
        self._random = random.Random(f"bend {seed}")
        #: Memory for bent responses, also for those that are too long to be sent.
        self.own_bytes = 0
        self._bender = Bender(self._random)
        #: Part of the responses that are bent; 0 heals the broker.
        self.part = self._random.choice((0.1, 0.3, 0.7))
        self.bent: Counter[str] = Counter()
        for node in self.cluster.nodes:
            node.host, node.port = f"broker-{node.broker_id}", 9092

    async def connect(self, host: str, port: int) -> Any:
        """Connect as the other brokers, but refuse addresses that the broker invented."""
        if (host, port) not in self.bootstrap:
            raise UnreachableError(f"cannot connect to {host}:{port}")
        return await super().connect(host, port)

    async def serve(self, node: int, request: Request, frame: bytes) -> bytes | Drop:
        """Return the broker's response, bent or not."""
        answer = await super().serve(node, request, frame)
        if isinstance(answer, Drop) or self._random.random() >= self.part:
            return answer
        api = APIS[request.api_key]
        self.bent[api.name] += 1
        if self._random.random() < 0.15:
            return answer[:4] + self._torn(answer[4:])
        correlation_id, message = decode_response(api.response, request.version, answer)
        if isinstance(message, ApiVersionsResponse) and self._random.random() < 0.7:
            return answer  # a broker that serves no requests ends the story too early
        before = _most_resident()
        try:
            bent = encode_response(self._bender.bend(message, request.version), request.version, correlation_id)
            return bent if len(bent) < LONGEST_ANSWER else answer
        except (ValueError, CoordinatorError):
            return answer  # no broker could send this message: a null or a length that this version cannot encode
        finally:
            self.own_bytes += _most_resident() - before

    def _torn(self, data: bytes) -> bytes:
        rng = self._random
        at_ = rng.randrange(len(data) + 1)
        return rng.choice((data[:at_], data[:at_] + rng.randbytes(4) + data[at_ + 4 :], data[:at_] + data, b""))


@attrs.frozen
class StoryResult:
    """The result of a story."""

    bent: Counter[str]
    peak_bytes: int
    took_s: float
    #: Broken rules.
    wrong: Sequence[str]


async def _next_to_a_healthy_cluster(seed: int, wrong: list[str]) -> BendingBroker:
    """Play the story, and check a member of another cluster, which must not be affected."""
    healthy = FakeBrokers()
    async with member(healthy) as other:
        await other.join()
        try:
            return await _story(seed, wrong)
        finally:
            beats = [*healthy.times(HeartbeatRequest), now_ms()]
            silent_ms = max(after - before for before, after in itertools.pairwise(beats)) if len(beats) > 1 else now_ms()
            if silent_ms > LONGEST_SILENCE_MS:
                wrong.append(f"the member of another cluster sent no heartbeat for {silent_ms:.0f} ms")


async def _story(seed: int, wrong: list[str]) -> BendingBroker:
    broker = BendingBroker(seed)
    rng = random.Random(f"story {seed}")
    one = new_member(
        broker,
        rng.choice((COOPERATIVE, EAGER)),
        client={"metadata_max_age_ms": 1_000},
        group_protocol=rng.choice(("classic", "classic", "consumer")),
    )
    one.coordinator.subscribe(["t", "u"] if rng.random() < 0.7 else ["t"])
    one.start()

    async def only_our_errors(what: str, work: Callable[[], Any]) -> None:
        try:
            await work()
        except CoordinatorError as error:
            if not str(error).isprintable():
                wrong.append(f"{what}: a message that is not printable: {error!r}")
        except Exception as error:  # noqa: BLE001 - the fuzzer looks for these
            wrong.append(f"{what}: {error!r}")

    for _ in range(rng.randint(2, 5)):
        await asyncio.sleep(rng.uniform(0.2, 8))
        await only_our_errors("committed", lambda: one.coordinator.committed([TopicPartition("t", 0)], timeout_ms=2_000))
        await only_our_errors("commit", lambda: one.coordinator.commit(at("t", 0, 5), timeout_ms=2_000))
        if rng.random() < 0.3:
            one.coordinator.enforce_rebalance("the story says so")
    await _commands(broker, rng, only_our_errors, wrong)
    broker.part = 0.0
    await only_our_errors("close", lambda: one.close(5_000))
    wrong += dict.fromkeys(f"poll: {error}" for error in one.errors if "please report" in str(error))
    return broker


async def _commands(broker: BendingBroker, rng: random.Random, attempt: Any, wrong: list[str]) -> None:
    lines = (
        (commands.list_command, ["list", "--state", "--type"]),
        (commands.describe_command, ["describe", GROUP, "--members", "--verbose"]),
        (commands.describe_command, ["describe", GROUP, "--json"]),
        (lag_command, ["lag", "--all-groups"]),
        (commands.reset_command, ["reset", "new-group", "--to-latest", "--topic", "t", "--execute"]),
        (commands.delete_offsets_command, ["delete-offsets", GROUP, "--topic", "u:0"]),
        (commands.delete_command, ["delete", "new-group"]),
    )
    cluster = new_cluster(broker)
    out = io.StringIO()
    try:
        for command, arguments in rng.sample(lines, 3):
            parsed = build_parser().parse_args([*arguments, "--bootstrap-server", "x:1"])
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                await attempt(" ".join(arguments[:2]), lambda c=command, p=parsed: c(cluster, p, Deadline.after(3_000)))
    finally:
        await cluster.close()
    if not all(line.isprintable() for line in out.getvalue().split("\n")):
        wrong.append(f"a command printed unprintable characters: {out.getvalue()!r}")


def play(seed: int) -> StoryResult:
    """Play one story."""
    wrong: list[str] = []

    async def whole() -> BendingBroker:
        broker = await _next_to_a_healthy_cluster(seed, wrong)
        running = asyncio.get_running_loop()
        assert isinstance(running, virtual.VirtualTimeLoop)
        wrong.extend(f"on the loop: {error}" for error in running.errors)
        running.errors.clear()
        return broker

    began, before = time.process_time(), _most_resident()
    broker = virtual.run(whole(), seed=seed, max_time_s=7_200)
    grown = _most_resident() - before - broker.own_bytes
    if grown > MOST_BYTES:
        wrong.append(f"the process needed {grown >> 20} MiB more than in all earlier stories")
    return StoryResult(broker.bent, grown, time.process_time() - began, wrong)


def _most_resident() -> int:
    """Return the highest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    """Play stories until the time has passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=1_000, help="the first seed")
    arguments = parser.parse_args()
    logging.disable()
    bent: Counter[str] = Counter()
    worst_bytes, longest_s, seed, broken = 0, 0.0, arguments.first, 0
    until = time.monotonic() + arguments.minutes * 60
    while time.monotonic() < until:
        result = play(seed)
        bent += result.bent
        worst_bytes, longest_s = max(worst_bytes, result.peak_bytes), max(longest_s, result.took_s)
        slow = [f"the story took {result.took_s:.0f} s"] if result.took_s > LONGEST_S else []
        if result.wrong or slow:
            broken += 1
            print(f"seed {seed}: " + "\n  ".join([*result.wrong, *slow]), flush=True)
        seed += 1
    figures = f"peak {worst_bytes >> 20} MiB more than before, longest {longest_s:.1f} s of processor time"
    print(f"{seed - arguments.first} stories, {broken} broke a rule, {bent.total()} bent answers; {figures}")
    for api, count in sorted(bent.items()):
        print(f"  {api}: {count}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
