"""Log lines that carry group, member and generation."""

from __future__ import annotations

import logging
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
    """Puts ``[group=... member=... generation=...]`` before every line."""

    def __init__(self, logger: logging.Logger, member: Speaker) -> None:
        super().__init__(logger, {})
        self._member = member

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """The line with its prefix, whose values are arguments: an id may hold a per cent sign, or what is not printable."""
        if not self.isEnabledFor(level):
            return
        member = self._member
        who = member.group_instance_id or member.member_id or "new member"
        text = str(msg) if args else str(msg).replace("%", "%%")
        prefix = "[group=%s member=%s generation=%s] "
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        self.logger.log(level, f"{prefix}{text}", member.group_id, who, member.generation, *args, **kwargs)
