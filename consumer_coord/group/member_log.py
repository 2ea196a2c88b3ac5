"""Log lines that carry group, member and generation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from consumer_coord.group.generation import Generation


class MemberLog(logging.LoggerAdapter[logging.Logger]):
    """A log adapter that adds ``[group=... member=... generation=...]`` to each line, also as fields for structured logs."""

    def __init__(
        self, logger: logging.Logger, group_id: str, group_instance_id: str | None, generation: Callable[[], Generation]
    ) -> None:
        """Wrap ``logger``; ``generation`` is called for each line."""
        super().__init__(logger, {})
        self._group_id = group_id
        self._group_instance_id = group_instance_id
        self._generation = generation
        #: The receiver with ``debug=cgrp``: it is called with the name and the text of every step and of every log line.
        self.steps: Callable[[str, str], None] | None = None

    def step(self, name: str, text: str, *args: object) -> None:
        """Report a step that only ``debug=cgrp`` shows."""
        if self.steps is not None:
            self.steps(name, f'Group "{self._group_id}": {text % args if args else text}')

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line with its prefix, and with ``group``, ``member`` and ``generation`` as attributes of the record.

        The values of the prefix are arguments, because an id may contain a per cent sign or unprintable characters.
        """
        if self.steps is not None:
            self.step("CGRP", str(msg), *args)
        if not self.isEnabledFor(level):
            return
        generation = self._generation()
        member = self._group_instance_id or generation.member_id or "new member"
        text = str(msg) if args else str(msg).replace("%", "%%")
        prefix = "[group=%s member=%s generation=%s] "
        fields = {"group": self._group_id, "member": member, "generation": generation.generation_id}
        kwargs["extra"] = {**fields, **(kwargs.get("extra") or {})}
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        self.logger.log(level, f"{prefix}{text}", self._group_id, member, generation.generation_id, *args, **kwargs)
