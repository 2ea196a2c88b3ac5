"""Which client a member probably is.

No response of a broker names a member's client: brokers know the software of each connection (KIP-511), but tell it only in
their own metrics. So this is a guess from the default ``client.id`` of well-known clients. The client of an application that
sets its own ``client.id`` is unknown, unless it begins with this library's default.
"""

from __future__ import annotations

import re

import attrs


@attrs.frozen
class ClientGuess:
    """A client, with the version if the client id has it.

    ``modern`` and ``cooperative``: whether the newest version of the client has the consumer protocol (KIP-848) and cooperative
    rebalances (KIP-429). ``mixes``: whether its list of assignors may have eager and cooperative ones, as a live change needs.
    ``modern_since`` is the first version whose consumer protocol is no preview.
    """

    name: str
    modern: bool
    cooperative: bool
    mixes: bool = True
    modern_since: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


#: The default client.id -> the client. In the pattern, GROUP stands for the name of the group.
_DEFAULTS = {
    r"rdkafka": ClientGuess("librdkafka", modern=True, cooperative=True, mixes=False, modern_since="2.12"),
    r"consumer-GROUP-\d+": ClientGuess("Java", modern=True, cooperative=True, modern_since="4.0"),
    r"consumer-coord.*": ClientGuess("consumer-coord", modern=True, cooperative=True),
    r"kgo": ClientGuess("franz-go", modern=True, cooperative=True),
    r"kafka-python-(?P<version>.+)": ClientGuess("kafka-python", modern=False, cooperative=True, mixes=False),
    r"aiokafka-(?P<version>.+)": ClientGuess("aiokafka", modern=False, cooperative=False),
}


def guess_client(client_id: str, group_id: str) -> ClientGuess | None:
    """Return the client whose default id this is, or None."""
    for pattern, client in _DEFAULTS.items():
        match = re.fullmatch(pattern.replace("GROUP", re.escape(group_id)), client_id)
        if match is not None:
            return attrs.evolve(client, version=match.groupdict().get("version", ""))
    return None
