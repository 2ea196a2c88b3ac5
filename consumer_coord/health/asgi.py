"""An ASGI application for probes over HTTP, without a dependency; serve it with uvicorn, or mount it in a framework.

    app = HealthApp(consumer)

``GET /ready`` has status 200 while all consumers are healthy, and ``GET /live`` while no restart is needed. Otherwise the
status is 503. In both cases the body is JSON, and names the partitions.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from consumer_coord.health.source import UNANSWERED, HasHealth, unanswered
from consumer_coord.health.values import Health

#: How long a consumer may take to answer, in seconds. With librdkafka it asks the leaders, for about a second.
_ANSWER_S: Final = 5.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class HealthApp:
    """Answers ``GET /ready`` and ``GET /live`` for the consumers of a process, below any prefix.

    The server of an ``AsyncGroupConsumer`` runs on the consumer's loop; for a ``GroupConsumer``, it may run in any thread.
    """

    def __init__(self, *consumers: HasHealth, limit: float = 60.0) -> None:
        """Answer for ``consumers``; ``limit`` is how long a partition may owe records, in seconds."""
        if not consumers:
            raise ValueError("HealthApp needs at least one consumer")
        self._consumers = consumers
        self._limit_s = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan of the server."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            status, body = await self._answer(scope["method"], scope["path"].rpartition("/")[2])
            headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
            content = json.dumps(body).encode()
            headers.append((b"content-length", b"%d" % len(content)))
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})
        else:
            raise ValueError(f"HealthApp answers HTTP requests only, not {scope['type']!r}")

    async def _answer(self, method: str, name: str) -> tuple[int, dict[str, Any]]:
        if name not in ("ready", "live"):
            return 404, {"error": "the paths are /ready and /live"}
        if method not in ("GET", "HEAD"):
            return 405, {"error": "use GET"}
        found = await asyncio.gather(*(self._ask(one) for one in self._consumers))
        body = {
            "healthy": all(one.healthy for one in found),
            "live": all(one.live for one in found),
            "consumers": [one.as_dict() for one in found],
        }
        return 200 if body["healthy" if name == "ready" else "live"] else 503, body

    async def _ask(self, consumer: HasHealth) -> Health:
        try:
            async with asyncio.timeout(_ANSWER_S):
                if inspect.iscoroutinefunction(consumer.health):
                    answer: Health = await consumer.health(self._limit_s)
                else:
                    answer = await asyncio.to_thread(_blocking, consumer, self._limit_s)
                return answer
        except TimeoutError:
            return unanswered(f"the consumer did not answer within {_ANSWER_S:g} s")
        except UNANSWERED as error:
            return unanswered(error)


def _blocking(consumer: HasHealth, limit_s: float) -> Health:
    answer = consumer.health(limit_s)
    if not isinstance(answer, Health):
        raise TypeError(f"{type(consumer).__name__}.health() returned {answer!r}")
    return answer


async def _live(receive: Receive, send: Send) -> None:
    """Take part in the server's start and stop."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
