"""The rule ``idle``: what the members of a group send in which nothing happens."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.duties import Debtor
from consumer_coord.wire.apis import APIS

#: For so long after a rebalance, members send heartbeats early, because another one may follow, in seconds.
CALMS_DOWN_S: Final = 10.0
#: How long the requests of an idle group are counted, in seconds.
COUNTED_S: Final = 12.0

_METADATA: Final = 3
_HEARTBEATS: Final = frozenset({12, 68})
#: API key -> the most requests, beside those that are sent at regular times: FindCoordinator, JoinGroup, Heartbeat, SyncGroup,
#: DescribeConfigs, ConsumerGroupHeartbeat.
_MOST: Final = {10: 1, 11: 0, 12: 1, 14: 0, 32: 1, 68: 1}


class IdleRequests:
    """The requests of all clients of a simulation run, from its creation on."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    def sent(self, client: str, frame: bytes) -> None:
        """Count a request."""
        self._counts[client, int.from_bytes(frame[:2], "big")] += 1

    def check(self, member: Debtor, metadata_max_age_s: float | None) -> None:
        """Raise :class:`Violation` if a member has sent more than it had to in ``COUNTED_S``, or too few heartbeats.

        ``metadata_max_age_s``: when it reads its metadata again; None if it may do so at any time.
        """
        beats = COUNTED_S / member.spec.heartbeat_interval_s
        most = {api_key: least + (beats if api_key in _HEARTBEATS else 0.0) for api_key, least in _MOST.items()}
        most[_METADATA] = math.inf if metadata_max_age_s is None else 3 + COUNTED_S / metadata_max_age_s
        for api_key, bound in most.items():
            count = self._counts[member.name, api_key]
            if count > bound:
                what = f"{member.name} has sent {APIS[api_key].name} {count} times in {COUNTED_S:g} s without any event"
                raise Violation("idle", f"{what}; {bound:.1f} suffice")
        if sum(self._counts[member.name, api_key] for api_key in _HEARTBEATS) < int(beats) - 1:
            raise Violation("idle", f"{member.name} has sent fewer than {int(beats) - 1} heartbeats in {COUNTED_S:g} s")
