"""Log the steps of the group for ``debug=cgrp``, in librdkafka's format, to the destination of librdkafka's log.

librdkafka is not a member of the group, so the consumer's coordinator writes these lines.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from consumer_coord.log_text import get_logger, printable

_WITH_GROUP = frozenset(("cgrp", "all"))
_LEVEL = 7  # syslog's LOG_DEBUG
logger: Final = get_logger(__name__)


def group_lines(settings: Mapping[str, Any], to: Any) -> Callable[[str, str], None] | None:
    """Return a function that logs a step's name and text; None unless ``debug`` includes ``cgrp`` or ``all``.

    ``to`` is the consumer's ``logger``, which receives the same arguments as from confluent-kafka. Without a logger, the lines
    go to standard error.
    """
    contexts = {one.strip() for one in str(settings.get("debug", "")).split(",")}
    if not contexts & _WITH_GROUP:
        return None
    name = f"{settings.get('client.id') or 'rdkafka'}#coordinator"

    def to_stderr(step: str, text: str) -> None:
        line = printable(f"%{_LEVEL}|{time.time():.3f}|{step}|{name}| {text}")
        if sys.stderr is not None:
            print(line, file=sys.stderr)

    def to_logger(step: str, text: str) -> None:
        try:
            to.log(logging.DEBUG, "%s [%s] %s", step, name, printable(text))
        except Exception:  # The application's logger runs on the coordinator's loop, and its failure must not fail a step.
            logger.exception("the consumer's logger raised")

    return to_stderr if to is None else to_logger
