"""Check that the topics of a query's promised records still exist; the only place that decides that records are gone.

A topic may be deleted, or deleted and created again under the same name, which gives it another id (KIP-516). Offsets of the
old topic are invalid in the new topic. Brokers learn of both one after another, and a broker that lags behind reports what was
true before. So a topic counts as gone only after two responses that agree, both requested after something made the topic
doubtful.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from consumer_coord.environment import now
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import is_other
from consumer_coord.net.topic_ids import TopicIds, topic_ids
from consumer_coord.retry import Deadline
from consumer_coord.spark.ledger import Key, Ledger, State, absent
from consumer_coord.spark.subscribed_topics import View, view_of
from consumer_coord.topic_partition import grouped

logger: Final = get_logger(__name__)

#: Minimum time between two requests for metadata, in seconds.
AGAIN_S = 0.2
#: Time after which a broker that lags behind knows of a deletion, in seconds. A partition that was revoked may have been
#: revoked because its topic was deleted, so a topic counts as present only after this time.
SETTLED_S = 1.0


class TopicCheck:
    """The doubts about the topics of one query, and the requests for metadata that end the doubts."""

    def __init__(self, cluster: ClusterClient, lose: Callable[[str], None]) -> None:
        """Keep the dependencies; ``lose`` receives each loss of records, and raises if a loss is an error."""
        self._cluster = cluster
        self._lose = lose
        self._hinted = False
        #: Entries whose topics were absent in the last response, with the reason.
        self._suspects: Mapping[Key, str] = {}
        #: Open entries of which the last response did not show clearly whether their topics exist.
        self._unclear: frozenset[Key] = frozenset()
        self._looked_s = float("-inf")
        self._released_s = float("-inf")
        #: The time of the last request that was answered.
        self._answered_s: float | None = None
        self._checked_version = -1

    def hint(self) -> None:
        """Request metadata at the next check, because a topic may be gone."""
        self._hinted = True

    def released(self) -> None:
        """Record that partitions were revoked or lost; perhaps their topics were deleted."""
        self._released_s = now()

    @property
    def doubted(self) -> frozenset[str]:
        """The topics that were absent in one response, so that another response must confirm it."""
        return frozenset(key.partition.topic for key in self._suspects)

    def undecided(self, ledger: Ledger) -> frozenset[Key]:
        """Return the entries that are not held and may be gone, until metadata that was requested afterwards has shown it.

        A batch does not name these entries. If it were planned now and this process ended, nobody would report their loss.
        """
        if self._answered_s is None or self._answered_s < self._released_s:
            return ledger.open
        others = frozenset(key for key in self._suspects if ledger.entries[key].state is not State.HELD)
        return (ledger.open & self._unclear) | (others & ledger.live)

    async def settle(self, ledger: Ledger, reported: TopicIds, timeout_ms: float) -> Ledger:
        """Return the ledger without doubts that metadata could end now; ``reported`` are topic ids that are known anyway."""
        if not self._is_due(ledger, reported):
            return ledger
        self._hinted = False
        began = self._looked_s = now()
        metadata = await self._cluster.refresh(Deadline.after(timeout_ms))
        self._answered_s = began
        self._checked_version = metadata.version
        view = view_of(metadata, ledger.topics, None)
        found = absent(ledger.live, view)
        gone = {key: why for key, why in found.items() if key in self._suspects}
        if gone and not view.topics.keys() >= {key.partition.topic for key in gone}:
            # A response with all topics omits those that the principal may not describe, and a broker that is wrong may omit
            # others. A request by name tells them apart: only a row that says so means that a topic is gone.
            named = await topic_ids(self._cluster, {key.partition.topic for key in gone}, timeout_ms)
            gone = {key: why for key, why in gone.items() if key.partition.topic in view.topics or _is_elsewhere(key, named)}
        self._suspects = {key: why for key, why in found.items() if key not in gone}
        ledger = self._missed(ledger, gone)
        self._unclear = frozenset(key for key in ledger.open if key.partition.topic in view.unclear)
        if began >= self._released_s + SETTLED_S:
            shown = [key for key in ledger.open - self._unclear if key not in found and key.partition.topic in view.topics]
            ledger = ledger.seen(shown)
        return ledger

    def _is_due(self, ledger: Ledger, reported: TopicIds) -> bool:
        moment, metadata = now(), self._cluster.metadata
        if moment - self._looked_s < AGAIN_S and self._looked_s > self._released_s:
            return False
        if self._hinted or self._suspects or self._unclear:
            return True
        if ledger.open and (self._looked_s <= self._released_s or moment - self._looked_s >= SETTLED_S):
            return True
        live = ledger.live
        if reported and any(_is_elsewhere(key, reported) for key in live):
            return True
        if metadata.version == self._checked_version:
            return False
        self._checked_version = metadata.version
        return bool(absent(live, view_of(metadata, ledger.topics, None)))

    def _missed(self, ledger: Ledger, gone: Mapping[Key, str]) -> Ledger:
        for (topic, why), keys in grouped(((key.partition.topic, why), key) for key, why in sorted(gone.items())).items():
            unread = []
            for key in keys:
                entry = ledger.entries[key]
                read = entry.finished if entry.holding is None else entry.holding.position
                unread.append(f"{key.partition.partition} from {max(read, 0)}")
            self._lose(f"topic {topic!r}: {why}; unread records of its partitions ({', '.join(unread)}) are gone")
        return ledger.missed(gone)


def _is_elsewhere(key: Key, reported: TopicIds) -> bool:
    now_id = reported.get(key.partition.topic)
    return now_id is None or is_other(key.topic_id, now_id)


def missing_topics(view: View, topics: Iterable[str]) -> frozenset[str]:
    """Return the topics that do not exist according to ``view``."""
    return frozenset(topics) - view.topics.keys() - view.unclear.keys()
