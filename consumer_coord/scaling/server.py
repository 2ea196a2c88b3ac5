"""The figures of groups over HTTP: ``/metrics`` for Prometheus, ``/groups/GROUP`` for KEDA's scaler ``metrics-api``.

The module needs the extra ``web`` (starlette and uvicorn).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from consumer_coord.admin.http_server import HEADERS, own_hosts_only
from consumer_coord.scaling.exposition import TEXT_TYPE, as_json, as_text

if TYPE_CHECKING:
    from consumer_coord.scaling.scaler import Scaler


def application(scaler: Scaler, now: Callable[[], float], *, loopback: bool) -> ASGIApp:
    """Return the application. A group without a figure so far has status 503, because no number would be true."""

    async def metrics(_: Request) -> Response:
        return Response(as_text(scaler.figures, now()), media_type=TEXT_TYPE, headers=HEADERS)

    async def group(request: Request) -> Response:
        name = request.path_params["name"]
        figures = scaler.figures.get(name)
        if figures is None:
            known = sorted(scaler.figures)
            return JSONResponse({"error": f"no figures of group {name!r}", "groups": known}, 404, headers=HEADERS)
        status = 503 if figures.wanted.replicas is None else 200
        return JSONResponse(as_json(name, figures, now()), status, headers=HEADERS)

    async def ready(_: Request) -> Response:
        return PlainTextResponse("reading groups", headers=HEADERS)

    routes = [Route("/metrics", metrics), Route("/groups/{name:path}", group), Route("/ready", ready)]
    app = Starlette(routes=routes)
    return own_hosts_only(app) if loopback else app
