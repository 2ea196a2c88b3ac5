"""Log lines that carry group, member and generation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from consumer_coord.group.generation import Generation


class MemberLog(logging.LoggerAdapter[logging.Logger]):
    """Puts ``[group=... member=... generation=...]`` before every line, and the same as fields for structured logs."""

    def __init__(
        self, logger: logging.Logger, group_id: str, group_instance_id: str | None, generation: Callable[[], Generation]
    ) -> None:
        """``generation`` is asked at each line."""
        super().__init__(logger, {})
        self._group_id = group_id
        self._group_instance_id = group_instance_id
        self._generation = generation

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """The line with its prefix, and with ``group``, ``member`` and ``generation`` as attributes of the record.

        The prefix's values are arguments: an id may hold a per cent sign, or what is not printable.
        """
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
