"""``confluent_kafka.Producer`` and ``AIOProducer`` of a simulated process: the simulated producer, without calls that block."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, Protocol, Self

from consumer_coord.confluent.types import KafkaException
from consumer_coord.simulation.producer import Headers, OnDelivery, SimulatedProducer
from consumer_coord.simulation.programs.guard import current_process

#: How often a coroutine looks whether records are delivered, in seconds.
_LOOK_S: Final = 0.01


class Topics(Protocol):
    """What producers tell the world of a run."""

    def ensure(self, topic: str) -> None:
        """Create a topic that does not exist, as brokers do for producers (``auto.create.topics.enable``)."""

    def produced(self, topic: str, headers: Headers) -> None:
        """Look at the headers of a record that a broker has."""


class ProgramProducer(SimulatedProducer):
    """``confluent_kafka.Producer`` in a simulated process.

    ``poll`` never waits, and ``flush`` returns only if nothing is outstanding, because time cannot pass in a call. Transactions
    have calls that wait for brokers; they are possible with ``AIOProducer``.
    """

    def __init__(self, world: Topics, conf: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        """Create a producer on the running loop."""
        super().__init__({**(conf or {}), **keywords})
        self._world = world

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
        *,
        callback: OnDelivery | None = None,
    ) -> None:
        """Queue a record, as ``confluent_kafka.Producer.produce`` does."""
        told = on_delivery or callback or self._settings["on_delivery"]

        def delivered(error: Any, message: Any) -> None:
            if error is None and headers:
                self._world.produced(topic, headers)
            if told is not None:
                told(error, message)

        self._world.ensure(topic)
        super().produce(topic, value, key, partition, delivered, timestamp, headers)

    def flush(self, timeout: float = -1.0) -> int:
        """Call ``on_delivery`` for each known outcome, and return 0; raise if a record is outstanding."""
        if super().flush():
            _forbid(
                "Producer.flush() with outstanding records, which blocks the event loop,",
                "Await asyncio.sleep(0.01) between calls of poll(0) until len(producer) is 0, or use AIOProducer.",
            )
        return 0

    def init_transactions(self, timeout: float = -1.0) -> NoReturn:
        """Reject a call that waits for a broker."""
        _forbid("Producer.init_transactions(), which blocks the event loop,", "Use confluent_kafka.aio.AIOProducer.")


class AsyncProgramProducer:
    """``confluent_kafka.aio.AIOProducer`` in a simulated process."""

    def __init__(self, world: Topics, producer_conf: Mapping[str, Any], /, *_: Any, **__: Any) -> None:
        """Create a producer on the running loop. Sizes of thread pools and buffers are ignored."""
        self._world = world
        self._producer = SimulatedProducer(producer_conf)
        self._polling = asyncio.get_running_loop().create_task(self._poll_forever(), name="producer callbacks")

    async def _poll_forever(self) -> None:
        while True:
            self._producer.poll()
            await asyncio.sleep(_LOOK_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __len__(self) -> int:
        """Return the number of records whose outcome was not reported yet."""
        return len(self._producer)

    async def close(self) -> None:
        """Wait until all records are delivered, and close the producer."""
        await self.flush()
        self._polling.cancel()
        await self._producer.close()

    async def produce(
        self, topic: str, value: str | bytes | None = None, key: str | bytes | None = None, **keywords: Any
    ) -> asyncio.Future[Any]:
        """Queue a record; return a future of its message, or of its KafkaException."""
        if "headers" in keywords:
            raise NotImplementedError("AIOProducer does not support headers: use Producer")
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def delivered(error: Any, message: Any) -> None:
            if outcome.cancelled():
                return
            if error is None:
                outcome.set_result(message)
            else:
                outcome.set_exception(KafkaException(error))

        self._world.ensure(topic)
        self._producer.produce(topic, value, key, on_delivery=delivered, **keywords)
        return outcome

    async def poll(self, timeout: float = 0.0, *_: Any, **__: Any) -> int:
        """Call what waits for outcomes."""
        return self._producer.poll()

    async def flush(self, timeout: float = -1.0, *_: Any, **__: Any) -> int:
        """Wait until all records have an outcome, at most ``timeout`` seconds; return the number of the others."""
        try:
            async with asyncio.timeout(None if timeout < 0 else timeout):
                while self._producer.flush():
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            return len(self._producer)
        return 0

    # -- transactions -------------------------------------------------------------------------------------------------

    async def init_transactions(self, timeout: float = -1.0) -> None:
        """Get a producer id, and fence every other producer with this transactional id."""
        await self._producer.init_transactions(timeout)

    async def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    async def send_offsets_to_transaction(self, positions: Iterable[Any], group_metadata: Any, timeout: float = -1.0) -> None:
        """Commit offsets with the transaction."""
        await self._producer.send_offsets_to_transaction(positions, group_metadata, timeout)

    async def commit_transaction(self, timeout: float = -1.0) -> None:
        """Commit the transaction."""
        await self._producer.commit_transaction(timeout)

    async def abort_transaction(self, timeout: float = -1.0) -> None:
        """Abort the transaction."""
        await self._producer.abort_transaction(timeout)


def _forbid(what: str, remedy: str) -> NoReturn:
    process = current_process()
    assert process is not None
    process.forbid(what, remedy)
