"""Log lines that carry group, member and generation."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Protocol


class Speaker(Protocol):
    """Whose lines they are."""

    @property
    def group_id(self) -> str: ...
    @property
    def group_instance_id(self) -> str | None: ...
    @property
    def member_id(self) -> str: ...
    @property
    def generation(self) -> int: ...


class MemberLog(logging.LoggerAdapter[logging.Logger]):
    """Puts ``[group=... member=... generation=...]`` before every line, and the same as fields for structured logs."""

    def __init__(self, logger: logging.Logger, member: Speaker) -> None:
        super().__init__(logger, {})
        self._member = member

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The line with its prefix, and with ``group``, ``member`` and ``generation`` as attributes of the record."""
        member = self._member
        who = member.group_instance_id or member.member_id or "new member"
        fields = {"group": member.group_id, "member": who, "generation": member.generation}
        kwargs["extra"] = {**fields, **(kwargs.get("extra") or {})}
        return f"[group={member.group_id} member={who} generation={member.generation}] {msg}", kwargs
