"""A small identity provider on this machine, with a record of its requests and prepared responses."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import attrs

from tests.support.secrets import keep_secret, made_up


@attrs.frozen
class Asked:
    """A request to the provider."""

    method: str
    path: str
    headers: Mapping[str, str]
    form: Mapping[str, str]


def token(subject: str, *, life_s: float = 600, claim: str = "sub") -> str:
    """Return an unsigned token, as Kafka's validator for development accepts it."""

    def encoded(what: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(what).encode()).decode().rstrip("=")

    now_s = time.time()
    claims = {claim: subject, "iat": now_s - 1, "exp": now_s + life_s, "scope": "kafka", "jti": made_up("token-id")}
    made = f"{encoded({'alg': 'none'})}.{encoded(claims)}."
    keep_secret(made, f"token of {subject}")
    return made


class Provider:
    """Responds with ``answers`` in order, then always with the last one; a tuple is a status with its body."""

    def __init__(self, *answers: Mapping[str, Any] | tuple[int, str]) -> None:
        self.asked: list[Asked] = []
        self._answers = list(answers)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                provider.asked.append(Asked(self.command, self.path, dict(self.headers), dict(parse_qsl(body))))
                told = provider.next_answer()
                status, content = told if isinstance(told, tuple) else (200, json.dumps(told))
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content.encode())))
                self.end_headers()
                self.wfile.write(content.encode())

            do_POST = answer  # noqa: N815
            do_GET = answer  # noqa: N815

            def log_message(self, *_arguments: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def next_answer(self) -> Mapping[str, Any] | tuple[int, str]:
        """Return the next response; the last one is repeated."""
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    @contextlib.contextmanager
    def running(self, tls: ssl.SSLContext | None = None) -> Iterator[str]:
        """Listen, and yield the address of the endpoint."""
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}/token"
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
