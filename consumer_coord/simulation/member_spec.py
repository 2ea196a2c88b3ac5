"""What one member of a simulation is like."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from consumer_coord.config import CoordinatorConfig
from consumer_coord.net.client_config import ClientConfig


@attrs.frozen(kw_only=True)
class MemberSpec:
    """What one member is like.

    ``commit`` is ``sync``, ``async`` or ``interval`` (it commits given positions every ``commit_every_ms``), ``revoke`` (only
    when it must), ``all`` (everything that is finished, without arguments), ``later`` (asynchronous, told in a later poll),
    ``auto`` (``enable.auto.commit``) or ``store`` (that, with ``store_offsets``).
    """

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    #: ``group.protocol``; with ``consumer`` the assignors and the times of the session and the heartbeats are the broker's.
    protocol: str = "classic"
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    instance_id: str | None = None
    rack: str | None = None
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 10_000
    max_poll_interval_ms: int = 30_000
    poll_every_ms: int = 300
    #: Records of each partition asked for at a time; with 1 it uses ``poll``.
    batch: int = 20
    commit: str = "interval"
    commit_every_ms: int = 2_000
    callback_ms: int = 0
    #: How long a poll may wait; with 0 it looks, and sleeps ``poll_every_ms`` between two looks.
    poll_timeout_ms: int = 0
    #: ``consume`` waits until all of ``batch`` came, as the blocking consumer's does.
    waits_for_all: bool = False
    #: How many of a thousand turns bring something unruly.
    unruly: int = 0
    #: ``auto.offset.reset``.
    reset: str = "earliest"
    #: ``group.lease.enable``.
    lease: bool = True
    #: A call of the data plane takes up to this long.
    call_ms: float = 0.0
    #: ``enable.partition.eof``.
    eof: bool = False
    close_ms: int = 5_000

    def __str__(self) -> str:
        """For the history."""
        subscription = f"pattern {self.pattern}" if self.pattern else ", ".join(self.topics)
        static = f", instance {self.instance_id}" if self.instance_id else ""
        protocol = "+".join(self.assignors) if self.protocol == "classic" else "consumer protocol"
        return f"{protocol} on {subscription}{static}, commits {self.commit}"

    @property
    def auto(self) -> bool:
        """Whether the consumer commits by itself."""
        return self.commit in ("auto", "store")


def client_config(bootstrap: Sequence[tuple[str, int]], name: str) -> ClientConfig:
    """Connections as a member of the simulation has them: impatient, so that a minute holds many attempts."""
    return ClientConfig(
        bootstrap_servers=tuple(bootstrap),
        client_id=name,
        request_timeout_ms=8_000,
        connection_setup_timeout_ms=5_000,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=1_000,
        metadata_max_age_ms=10_000,
    )


#: The brokers' ``group.consumer.session.timeout.ms``.
CONSUMER_SESSION_MS = 10_000

#: ``default.api.timeout.ms``, in seconds.
API_TIMEOUT_S = 15.0


def coordinator_config(spec: MemberSpec, group_id: str) -> CoordinatorConfig:
    """The settings of a member's coordinator."""
    return CoordinatorConfig(
        group_id=group_id,
        group_protocol=spec.protocol,
        group_instance_id=spec.instance_id,
        client_rack=spec.rack,
        auto_offset_reset=spec.reset,
        session_timeout_ms=spec.session_timeout_ms,
        heartbeat_interval_ms=spec.heartbeat_interval_ms,
        max_poll_interval_ms=spec.max_poll_interval_ms,
        rebalance_timeout_ms=spec.rebalance_timeout_ms,
        request_timeout_ms=8_000,
        default_api_timeout_ms=int(API_TIMEOUT_S * 1000),
        enable_auto_commit=spec.auto,
        auto_commit_interval_ms=spec.commit_every_ms,
        group_lease_enable=spec.lease,
    )
