"""The sources of metrics, and the units and descriptions of metrics in monitoring systems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError
from consumer_coord.group.metrics import KINDS
from consumer_coord.log_text import get_logger
from consumer_coord.monitoring.process_figures import FIGURES
from consumer_coord.runtime.locks import Lock

logger: Final = get_logger(__name__)


class HasMetrics(Protocol):
    """A source of metrics under Java's names: a ``GroupConsumer``, an ``AsyncGroupConsumer`` or a coordinator."""

    def metrics(self) -> Mapping[str, float]:
        """Return the current figures."""


@attrs.frozen(eq=False)
class Source:
    """A member of a group, with the labels of its figures."""

    of: HasMetrics
    group: str
    client_id: str


class Sources:
    """The consumers whose figures are exported; thread-safe."""

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}
        self._lock = Lock()

    def add(self, consumer: HasMetrics, *, group: str, client_id: str = "") -> None:
        """Add a consumer whose figures are reported; call :meth:`remove` before you close the consumer."""
        with self._lock:
            self._sources[id(consumer)] = Source(consumer, group, client_id)

    def remove(self, consumer: HasMetrics) -> None:
        """Stop reporting the figures of a consumer."""
        with self._lock:
            self._sources.pop(id(consumer), None)

    def _present(self) -> tuple[Source, ...]:
        with self._lock:
            return tuple(self._sources.values())


def read(sources: Iterable[Source]) -> Iterator[tuple[Source, Mapping[str, float]]]:
    """Yield the figures of each consumer; omit a consumer whose figures cannot be read."""
    for source in sources:
        try:
            yield source, source.of.metrics()
        except (CoordinatorError, RuntimeError) as error:
            logger.warning("could not read the metrics of group %s, client %s: %s", source.group, source.client_id, error)


def is_counter(name: str) -> bool:
    """Return whether a figure never decreases."""
    return name.endswith("-total")


def unit(name: str) -> str:
    """Return the unit of a figure: ``s`` or ``ms``, or an empty string for a plain number."""
    if name.endswith(("-seconds-ago", "-seconds")):
        return "s"
    return "ms" if "-time-" in name or "-latency-" in name or name.startswith("time-") else ""


def describe(name: str) -> str:
    """Return a sentence that describes a figure."""
    return _DESCRIPTIONS[name]


_DESCRIPTIONS = {
    **FIGURES,
    "assigned-partitions": "Partitions that this member owns.",
    "last-heartbeat-seconds-ago": "Seconds since the coordinator last answered a heartbeat; -1 before the first answer.",
    "last-poll-seconds-ago": "Seconds since the application last polled; -1 before the first poll.",
    "last-rebalance-seconds-ago": "Seconds since the end of the last rebalance; -1 before the first rebalance.",
    "time-between-poll-avg": "Average time between two polls of the application, in milliseconds, over the last minute.",
    "time-between-poll-max": "Maximum time between two polls of the application, in milliseconds, over the last minute.",
    "coordinator-lookup-total": "Lookups of the group's coordinator (FindCoordinator).",
    "member-id-required-total": "JoinGroup responses that gave this member its id (MEMBER_ID_REQUIRED, KIP-394).",
    "early-heartbeat-total": "Heartbeats sent before their time, because a rebalance is likely.",
    "commit-refused-total": "Commits that the coordinator rejected because this member no longer owned the partitions.",
    "commit-resent-total": "Commits sent again after a rebalance, for partitions that this member kept.",
    "partition-lost-total": "Partitions lost without a revoke, so that the next owner may process their records again.",
    "lease-suspended-total": "Times that delivery stopped because the coordinator was silent for almost a session timeout.",
    "lease-suspended-seconds-total": "Seconds during which delivery was stopped for that reason.",
    "poll-idle-ratio-avg": "Fraction of time that the application waited in polls, over the last minute.",
    **{
        f"partition-{kind}-latency-{end}": f"{text} time in the callback for {kind} partitions, in ms, over the last minute."
        for kind in ("assigned", "revoked", "lost")
        for end, text in (("avg", "Average"), ("max", "Maximum"))
    },
    **{
        f"{kind}-{end}": text
        for kind, what in {
            "join": "JoinGroup requests",
            "sync": "SyncGroup requests",
            "heartbeat": "Heartbeat requests",
            "commit": "OffsetCommit requests",
            "assign": "Calls of the assignor by this member as the group's leader",
            "rebalance": "Rebalances, from the first JoinGroup to the assignment",
            "failed-rebalance": "Failed rebalances",
        }.items()
        for end, text in {
            "total": f"{what}: number since the start of the member.",
            "rate": f"{what}: number per second, over the last minute.",
            "rate-per-hour": f"{what}: number per hour, over the last minute.",
            "time-avg": f"{what}: average duration in milliseconds, over the last minute.",
            "time-max": f"{what}: maximum duration in milliseconds, over the last minute.",
            "response-time-max": f"{what}: maximum time to the response in milliseconds, over the last minute.",
            "latency-avg": f"{what}: average duration in milliseconds, over the last minute.",
            "latency-max": f"{what}: maximum duration in milliseconds, over the last minute.",
            "latency-total": f"{what}: total duration in milliseconds.",
        }.items()
        if end in KINDS[kind]
    },
}
