"""The choice between librdkafka and this package's own Fetch for messages."""

from __future__ import annotations

from typing import Final

from consumer_coord.config import Config
from consumer_coord.confluent.types import own_because
from consumer_coord.errors import ConfigurationError

#: Whether librdkafka fetches messages if neither ``librdkafka.enable`` nor another setting decides.
BY_DEFAULT: bool = False
#: Settings that only librdkafka implements. If one of them is set, librdkafka fetches messages unless it is disabled.
ONLY_LIBRDKAFKA: Final = (
    "plugin.library.paths",
    "ssl.providers",
    "ssl.sigalgs.list",
    "test.mock.broker.rtt",
    "test.mock.num.brokers",
)


def reads_with_librdkafka(config: Config) -> bool:
    """Return whether messages come from librdkafka; without an installed librdkafka they never do.

    Raise :class:`~consumer_coord.errors.ConfigurationError` if a setting that must not be ignored would be ignored.
    """
    given = config.librdkafka
    needs = [name for name in ONLY_LIBRDKAFKA if given.get(name) not in (None, "")]
    if ":" in str(given.get("ssl.curves.list", "")):
        # Python's TLS takes one curve.
        needs.append("ssl.curves.list")
    wanted = config.librdkafka_enable
    if own_because is None and (wanted or (wanted is None and (BY_DEFAULT or needs))):
        return True
    for name in needs:
        why = "librdkafka.enable is off" if own_because is None else f"{own_because}"
        raise ConfigurationError(f"{name}={given[name]} has an effect only in librdkafka, but {why}: remove this setting")
    return False
