"""The properties of one member of a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class MemberSpec:
    """The properties of one member.

    ``commit`` says how the application commits: ``sync``, ``async`` and ``interval`` commit given positions every
    ``commit_every_ms``, ``revoke`` commits only before a revocation, ``all`` calls ``commit()`` without offsets, which commits
    all finished records, ``later`` commits asynchronously and receives the outcome in a later poll, ``auto`` uses
    ``enable.auto.commit``, and ``store`` uses ``enable.auto.commit`` with ``store_offsets``.
    """

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    #: The setting ``group.protocol``. With ``consumer``, the broker chooses the assignor, the session timeout and the heartbeat
    #: interval.
    protocol: str = "classic"
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    instance_id: str | None = None
    rack: str | None = None
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 10_000
    max_poll_interval_ms: int = 30_000
    poll_every_ms: int = 300
    #: Maximum number of records of each partition per call. If it is 1, the application calls ``poll``.
    batch: int = 20
    commit: str = "interval"
    commit_every_ms: int = 2_000
    callback_ms: int = 0
    #: The time limit of a poll, in milliseconds. With 0, the poll does not wait, and the application sleeps for about
    #: ``poll_every_ms`` between two polls.
    poll_timeout_ms: int = 0
    #: Whether ``consume`` waits for ``batch`` records, like ``consume`` of the blocking consumer.
    waits_for_all: bool = False
    #: The number of turns per thousand in which an unruly application acts.
    unruly: int = 0
    #: The setting ``auto.offset.reset``.
    reset: str = "earliest"
    #: The setting ``group.lease.enable``.
    lease: bool = True
    #: The setting ``enable.partition.eof``.
    eof: bool = False
    close_ms: int = 5_000
    #: Whether the application reads columns (``consume_arrow``), so that the member sends Fetch requests. In that case,
    #: ``sync`` and ``async`` commit each processed batch.
    columns: bool = attrs.field(default=False, metadata={"later": True})
    #: The number of turns per thousand in which an application that reads columns begins a bounded read (``arrow_batches``).
    bounded: int = attrs.field(default=0, metadata={"later": True})
    #: Whether an application that commits ``auto`` also commits its position while it processes a batch.
    commits_too: bool = attrs.field(default=False, metadata={"later": True})

    #: Whether ``on_assign`` chooses where each partition begins and calls ``assign`` (``incremental_assign`` if rebalances are
    #: cooperative), and ``on_revoke`` and ``on_lost`` call ``unassign``, as programs for confluent-kafka do.
    assigns: bool = attrs.field(default=False, metadata={"later": True})

    #: The order in which an application that calls ``process`` handles records (key, partition, none); empty for applications
    #: that poll. ``batch`` is then the number of handlers at a time, and ``on_failure`` what happens to a record that fails:
    #: letters, skip or stop.
    process: str = attrs.field(default="", metadata={"later": True})
    on_failure: str = attrs.field(default="stop", metadata={"later": True})

    #: The most polls in one transaction, in which the application writes one record for each record it reads; 0: the
    #: application has no transactions. The producer's ``transaction.timeout.ms`` is ``transaction_timeout_ms``.
    transactions: int = attrs.field(default=0, metadata={"later": True})
    transaction_timeout_ms: int = attrs.field(default=10_000, metadata={"later": True})

    def __str__(self) -> str:
        """Describe the member for the timeline."""
        subscription = f"pattern {self.pattern}" if self.pattern else ", ".join(self.topics)
        static = f", instance {self.instance_id}" if self.instance_id else ""
        protocol = "+".join(self.assignors) if self.protocol == "classic" else "consumer protocol"
        columns = ", reads columns" if self.columns else ""
        too = ", and during each batch" if self.commits_too else ""
        if self.transactions:
            return f"{protocol} on {subscription}{static}, with transactions of up to {self.transactions} polls"
        if self.process:
            return f"{protocol} on {subscription}{static}, processes by {self.process}, on failure {self.on_failure}"
        assigns = ", assigns in its callbacks" if self.assigns else ""
        return f"{protocol} on {subscription}{static}, commits {self.commit}{too}{columns}{assigns}"

    @property
    def is_cooperative(self) -> bool:
        """Whether callbacks get only the partitions that change: with every assignor of the member, or with the broker's."""
        return self.protocol == "consumer" or all("cooperative" in one for one in self.assignors)

    @property
    def auto(self) -> bool:
        """Whether the consumer commits automatically."""
        return self.commit in ("auto", "store")

    @property
    def session_s(self) -> float:
        """The session timeout, in seconds; in the consumer protocol that of the brokers."""
        return (CONSUMER_SESSION_MS if self.protocol == "consumer" else self.session_timeout_ms) / 1000

    @property
    def heartbeat_interval_s(self) -> float:
        """The heartbeat interval, in seconds; in the consumer protocol that of the brokers."""
        return (CONSUMER_HEARTBEAT_MS if self.protocol == "consumer" else self.heartbeat_interval_ms) / 1000

    @property
    def rebalances_within_s(self) -> float:
        """How long the application may delay a step of a rebalance: until its next poll, and in two callbacks, in seconds."""
        return (1.5 * self.poll_every_ms + 2 * self.callback_ms) / 1000 + (BOUNDED_S if self.bounded else 0.0)

    @property
    def commits_batches(self) -> bool:
        """Whether the application commits each batch of columns after it has processed the batch."""
        return self.columns and self.commit in ("sync", "async")


#: The brokers' ``group.consumer.session.timeout.ms`` and ``group.consumer.heartbeat.interval.ms``.
CONSUMER_SESSION_MS = 10_000
CONSUMER_HEARTBEAT_MS = 3_000

#: Time limit of one step of a bounded read, in seconds.
BOUNDED_S = 2.0

#: The setting ``metadata.max.age.ms``.
METADATA_MAX_AGE_MS = 10_000

#: The setting ``default.api.timeout.ms``, in seconds.
API_TIMEOUT_S = 15.0

#: How much faster or slower the clock of a member may run than the brokers'.
DRIFT = 0.05

#: Time limit of the application's synchronous commits, in seconds.
COMMIT_TIMEOUT_S = 4.0

#: How much later a record may be appended that is delivered before one of another partition, in seconds; the time for which a
#: broker lets a Fetch wait is added.
OVERTAKES_S = 3.0

#: The number of polls in which an application takes all records of its partitions, if it waits between them.
_POLLS = 3


def settings_of(spec: MemberSpec, group_id: str, bootstrap: Sequence[tuple[str, int]], client_id: str) -> dict[str, Any]:
    """Return the settings of a member, for the constructor of a consumer.

    The timeouts are short, so that many attempts fit into a minute.
    """
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in bootstrap),
        "client.id": client_id,
        "group.id": group_id,
        "group.protocol": spec.protocol,
        "auto.offset.reset": spec.reset,
        "max.poll.interval.ms": spec.max_poll_interval_ms,
        "rebalance.timeout.ms": spec.rebalance_timeout_ms,
        "enable.auto.commit": spec.auto,
        "enable.auto.offset.store": spec.commit != "store",
        "enable.partition.eof": spec.eof,
        "auto.commit.interval.ms": spec.commit_every_ms,
        "group.lease.enable": spec.lease,
        "default.api.timeout.ms": int(API_TIMEOUT_S * 1000),
        "socket.timeout.ms": 8_000,
        "socket.connection.setup.timeout.ms": 5_000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "metadata.max.age.ms": METADATA_MAX_AGE_MS,
    }
    if spec.protocol == "classic":
        # In the consumer protocol, the brokers' settings apply.
        settings |= {"session.timeout.ms": spec.session_timeout_ms, "heartbeat.interval.ms": spec.heartbeat_interval_ms}
    if spec.instance_id is not None:
        settings["group.instance.id"] = spec.instance_id
    if spec.rack is not None:
        settings["client.rack"] = spec.rack
    return settings


def fresh_within_s(spec: MemberSpec, fetching: Mapping[str, Any]) -> float:
    """Return how long a member may take to deliver its next record, in seconds, if no fault begins.

    At worst the member waits for two connections that are silently dead, that of a look-up and that of a Fetch, and connects
    again. Its metadata are as old as they may be, and the broker lets the Fetch wait. Its application has just begun a commit
    that fails, and takes the records in several polls. ``fetching`` are the settings that concern Fetch requests.
    """
    settings = {**settings_of(spec, "", (), ""), **fetching}
    steps = (
        *(settings["socket.timeout.ms"], settings["reconnect.backoff.max.ms"]) * 2,
        settings["metadata.max.age.ms"],
        settings["fetch.wait.max.ms"],
        COMMIT_TIMEOUT_S * 1000,
        spec.poll_timeout_ms,
        _POLLS * spec.poll_every_ms,
    )
    return sum(steps) / 1000
