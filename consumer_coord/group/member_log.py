"""Log lines that carry group, member and generation."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import Any

from consumer_coord.group.generation import Generation


class MemberLog(logging.LoggerAdapter[logging.Logger]):
    """Puts ``[group=... member=... generation=...]`` before every line."""

    def __init__(
        self, logger: logging.Logger, group_id: str, group_instance_id: str | None, generation: Callable[[], Generation]
    ) -> None:
        """``generation`` is asked at each line."""
        super().__init__(logger, {})
        self._group_id = group_id
        self._group_instance_id = group_instance_id
        self._generation = generation

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The line with its prefix."""
        generation = self._generation()
        member = self._group_instance_id or generation.member_id or "new member"
        return f"[group={self._group_id} member={member} generation={generation.generation_id}] {msg}", kwargs
