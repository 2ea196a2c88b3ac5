"""The health of a consumer, and the facts from which it is judged, as values; no I/O, no clock."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.fetch import LogEnd


class Owed(enum.Enum):
    """Whether the leader of a partition has records that were not delivered."""

    YES = "yes"
    NO = "no"
    #: Nobody has said so: the leader does not answer, or the partition is not read. This is not "no".
    UNKNOWN = "unknown"


class Reason(enum.Enum):
    """Why records are not delivered, or why nothing is known about them."""

    PAUSED = "paused"
    NOT_SELECTED = "not selected by the application"
    APPLICATION_BUSY = "application busy"
    HANDLER_BUSY = "handler busy"
    #: A rebalance callback of the application runs.
    CALLBACK = "rebalance callback"
    LOOKING_UP = "waiting for a lookup of offsets"
    #: The member hands the partition over, and its last commit is in flight.
    REVOKING = "revoking"
    #: The coordinator has been silent for so long that the partition may belong to another member.
    LEASE_ENDED = "lease ended"
    OPEN_TRANSACTION = "open transaction"
    NO_LEADER = "no leader"
    LEADER_SILENT = "leader does not answer"
    LEADER_REFUSES = "leader refuses"
    THROTTLED = "throttled"
    #: The leader answers and the application asks, but nothing is delivered.
    UNDELIVERED = "not delivered"

    @property
    def of_application(self) -> bool:
        """Whether the application decided this, so that nothing is wrong."""
        return self in _OF_APPLICATION

    @property
    def of_handler(self) -> bool:
        """Whether the application works, which is its reason for ``max.poll.interval.ms``."""
        return self in _OF_HANDLER


_OF_APPLICATION = (Reason.PAUSED, Reason.NOT_SELECTED)
_OF_HANDLER = (Reason.APPLICATION_BUSY, Reason.HANDLER_BUSY, Reason.CALLBACK)


@attrs.frozen(kw_only=True)
class PartitionHealth:
    """What one owned partition waits for.

    ``records`` is the number of offsets from the next one to deliver until the end of the log, so at least the number of owed
    records: markers of transactions and compacted records count, too. It is None if unknown. ``since_s`` is how long records
    have been owed, or nothing has been known, without any progress, in seconds; it is 0 if nothing is owed. ``reason`` is None
    if nothing is owed. ``excused``: whether the reason is the application's. ``detail`` is a text for people.
    """

    topic: str
    partition: int
    owed: Owed
    records: int | None
    since_s: float
    reason: Reason | None
    excused: bool = False
    detail: str = ""

    @property
    def text(self) -> str:
        """One line: which partition, how long, and why."""
        what = {
            Owed.YES: "records not delivered" if self.records is None else f"{self.records} records not delivered",
            Owed.NO: "nothing owed",
            Owed.UNKNOWN: "unknown whether there are records",
        }[self.owed]
        if self.reason is None:
            return f"{self.topic}-{self.partition}: {what}"
        why = f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value
        return f"{self.topic}-{self.partition}: {what} for {self.since_s:.1f} s ({why})"


@attrs.frozen(kw_only=True)
class Health:
    """The answer of ``consumer.health()``.

    ``healthy`` is False if :attr:`problems` has any: each is one line. ``live`` is False if only a restart of this process can
    help: the member failed for good, or the application or a handler has been busy for longer than ``max.poll.interval.ms``.
    ``state`` is the member's state in the group, and ``lease_s`` the time for which the coordinator cannot have given the
    partitions away, in seconds: negative if it has passed, None without a lease.
    """

    healthy: bool
    live: bool
    state: str
    joined: bool
    lease_s: float | None
    partitions: tuple[PartitionHealth, ...] = ()
    problems: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the health as values of JSON, with the fields' names; times are in seconds."""
        return {
            "healthy": self.healthy,
            "live": self.live,
            "state": self.state,
            "joined": self.joined,
            "lease_s": None if self.lease_s is None else round(self.lease_s, 3),
            "problems": list(self.problems),
            "partitions": [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "owed": one.owed.value,
                    "records": one.records,
                    "since_s": round(one.since_s, 3),
                    "reason": None if one.reason is None else one.reason.value,
                    "excused": one.excused,
                    "detail": one.detail,
                }
                for one in self.partitions
            ],
        }


@attrs.frozen(kw_only=True)
class PartitionFacts:
    """What is known about one assigned partition; times are of the loop's clock, in seconds."""

    partition: TopicPartition
    #: The offset from which the next record is delivered; None while it is being looked up.
    position: int | None
    #: The time since which nothing has changed: since the first look that saw this position with something owed.
    since: float
    #: Why the consumer does not fetch the partition, with a text; None if it does.
    obstacle: Reason | None = None
    detail: str = ""
    log: LogEnd | None = None
    #: For how long the oldest handler has worked on records of the partition, in seconds; None without a handler.
    handling_s: float | None = None


@attrs.frozen(kw_only=True)
class Facts:
    """What is known about a consumer at the loop time ``now``, in seconds."""

    now: float
    state: str
    joined: bool
    #: The time since which the member has wanted to be in the group and was not; None if it is, or does not want to be.
    outside_since: float | None = None
    #: Why the member is not in the group, if known.
    outside_because: str = ""
    #: Until when the lease lasts, in seconds from now; None without a lease.
    lease_s: float | None = None
    #: The last time at which the application was seen to poll, and at which any record was delivered.
    polled_at: float
    delivered_at: float
    max_poll_interval_s: float
    #: The failure that ended the member; empty while there is none.
    failure: str = ""
    partitions: tuple[PartitionFacts, ...] = ()
