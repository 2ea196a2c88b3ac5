"""The parts of a member that both group protocols share."""

from __future__ import annotations

from consumer_coord import lazy_attrs as attrs
from consumer_coord.config import CoordinatorConfig
from consumer_coord.group.application_polls import Application
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.lease import Lease
from consumer_coord.group.link import CoordinatorLink
from consumer_coord.group.member_log import MemberLog
from consumer_coord.group.metadata_watch import MetadataWatch
from consumer_coord.group.metrics import Metrics
from consumer_coord.group.process_peers.peers import Peers
from consumer_coord.group.tasks import BackgroundTasks
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.wake_ups import WakeUp


@attrs.frozen(kw_only=True, eq=False)
class MemberContext:
    """The parts of one member that both protocols share."""

    config: CoordinatorConfig
    cluster: ClusterClient
    #: Looks up the coordinator and sends requests to it.
    link: CoordinatorLink
    #: The target of the group, and the partitions that the application holds.
    assignment: AssignmentState
    #: Counts the application's polls, wakes the application, and keeps the failures for it.
    application: Application
    #: The subscription, and its topics in the cluster's metadata.
    watch: MetadataWatch
    metrics: Metrics
    log: MemberLog
    #: Fires at each change that a coroutine of this member may wait for.
    signal: WakeUp
    tasks: BackgroundTasks
    #: The members of this group in this process.
    peers: Peers

    def make_lease(self, *, session_timeout_ms: float, rebalance_timeout_ms: float) -> Lease:
        """Return a lease that uses the environment's clock, and reports to the log, the metrics and the application."""
        clock = self.cluster.environment.lease_clock or self.application.clock

        def suspended() -> None:
            self.metrics.record("lease-suspended")
            self.log.warning("lease expired: delivery paused until the coordinator answers a heartbeat")
            self.signal.fire()

        def resumed(suspended_s: float | None) -> None:
            if suspended_s is not None:
                self.log.info("lease renewed: delivery resumed after %.1f s", suspended_s)
            self.application.wake()

        lease = Lease(
            clock,
            enabled=self.config.group_lease_enable,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            in_use=lambda: bool(self.assignment.held),
            on_suspended=suspended,
            on_resumed=resumed,
            on_shortened=lambda: self.application.at_hand.expire(),
        )
        self.metrics.gauge("lease-suspended-seconds-total", lambda: lease.suspended_s)
        return lease
