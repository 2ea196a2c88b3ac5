"""Who sent a request, as the coordinators see it."""

from __future__ import annotations

import attrs


@attrs.frozen
class RequestContext:
    """The sender of a request; ``client_host`` has Java's form, ``/127.0.0.1``."""

    api_version: int
    client_id: str = ""
    client_host: str = "/127.0.0.1"
