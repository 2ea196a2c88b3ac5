"""The settings of individual groups (``GroupConfig``), which take precedence over those of the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.errors import ConfigurationError

_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
_SESSION: Final = "consumer.session.timeout.ms"
#: A group's setting -> the setting of the brokers with its default.
GROUP_SETTINGS: Final[Mapping[str, str]] = {
    _HEARTBEAT: "group.consumer.heartbeat.interval.ms",
    _SESSION: "group.consumer.session.timeout.ms",
}


class GroupSettings:
    """The settings of all groups of a cluster."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._given: dict[str, Mapping[str, str]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The groups with settings of their own."""
        return tuple(self._given)

    def given(self, group_id: str) -> Mapping[str, str]:
        """Return the settings that were given for a group."""
        return self._given.get(group_id, {})

    def of(self, group_id: str) -> Mapping[str, str]:
        """Return all settings of a group."""
        defaults = self._config.to_mapping()
        return {name: defaults[broker] for name, broker in GROUP_SETTINGS.items()} | dict(self.given(group_id))

    def change(self, group_id: str, settings: Mapping[str, str]) -> None:
        """Replace the settings of a group, which the caller has checked; they apply from each member's next heartbeat on."""
        if settings:
            self._given[group_id] = settings
        else:
            self._given.pop(group_id, None)

    def session_timeout_ms(self, group_id: str) -> int:
        """Return how long a member may be silent."""
        given = self.given(group_id).get(_SESSION)
        return self._config.group_consumer_session_timeout_ms if given is None else int(given)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return how often a member sends heartbeats."""
        given = self.given(group_id).get(_HEARTBEAT)
        return self._config.group_consumer_heartbeat_interval_ms if given is None else int(given)


def check_group_settings(settings: Mapping[str, str | None], config: BrokerConfig) -> dict[str, str]:
    """Return valid settings of a group; raise :class:`~consumer_coord.errors.ConfigurationError` for others."""
    checked: dict[str, str] = {}
    for name, value in settings.items():
        if name not in GROUP_SETTINGS:
            raise ConfigurationError(f"{name} is not a setting of a group here; the settings are {', '.join(GROUP_SETTINGS)}")
        if value is None or not value.isdecimal() or int(value) < 1:
            raise ConfigurationError(f"{name} must be a whole number of milliseconds, not {value!r}")
        checked[name] = value
    heartbeat = int(checked.get(_HEARTBEAT, config.group_consumer_heartbeat_interval_ms))
    if heartbeat >= int(checked.get(_SESSION, config.group_consumer_session_timeout_ms)):
        raise ConfigurationError(f"{_HEARTBEAT} must be less than {_SESSION}")
    return checked
