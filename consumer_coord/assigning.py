"""The leader's step of a rebalance: gather what the assignor needs, run it where it holds nobody up, mind the clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assignors.base import Assignor, Cluster, RebalanceProtocol
from consumer_coord import leader
from consumer_coord.config import CoordinatorConfig
from consumer_coord.environment import now
from consumer_coord.errors import AssignorError, RetriableError
from consumer_coord.list_offsets import lags
from consumer_coord.metadata_watch import MetadataWatch
from consumer_coord.metrics import Metrics
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.offsets import Offsets
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.messages import JoinGroupResponse, SyncGroupRequestAssignment

#: All figures that an assignor needs are fetched within this time.
FIGURES_TIMEOUT_MS = 1_000


class Assigning:
    """Makes the group's assignment when this member leads; one assignment at a time."""

    def __init__(
        self,
        config: CoordinatorConfig,
        cluster: ClusterClient,
        watch: MetadataWatch,
        offsets: Offsets,
        metrics: Metrics,
        log: logging.LoggerAdapter[logging.Logger],
        on_return: Callable[[], None],
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._watch = watch
        self._offsets = offsets
        self._metrics = metrics
        self._log = log
        self._on_return = on_return
        self._stuck: asyncio.Future[Any] | None = None

    @property
    def stuck(self) -> bool:
        """True while an assignor that ran out of time has still not returned."""
        return self._stuck is not None and not self._stuck.done()

    async def run(
        self, assignor: Assignor, protocol: RebalanceProtocol, joined: JoinGroupResponse
    ) -> tuple[SyncGroupRequestAssignment, ...]:
        """Everybody's assignment, encoded.

        Raises :class:`AssignorError` when the assignor raises, takes longer than ``assignor.timeout.ms``, or returns a plan
        that must not be sent.
        """
        run_blocking = self._cluster.environment.run_blocking
        group = await run_blocking(lambda: leader.read_members(joined.members))
        self._watch.lead(group.topics, with_racks=any(member.rack for member in group.members.values()))
        if not group.topics <= self._cluster.metadata.topics.keys():
            try:
                patience_ms = min(self._config.request_timeout_ms, self._config.session_timeout_ms)
                await self._cluster.refresh(Deadline.after(patience_ms))
            except RetriableError as error:
                self._log.warning("assigning with the metadata at hand: %s", error)
        view = self._watch.view()
        if joined.skip_assignment:
            # A static leader that came back (KIP-814): the group keeps its assignment, this member only watches over it.
            return ()
        lag = await self._lag_of(view) if "lag" in assignor.needs else {}
        cluster = Cluster(view.partitions, view.racks, lag=lag)
        started = now()
        work = asyncio.ensure_future(run_blocking(lambda: leader.assign(assignor, protocol, cluster, group)))
        done, _ = await asyncio.wait({work}, timeout=self._config.assignor_timeout_ms / 1000)
        if not done:
            work.add_done_callback(self._returned)
            self._stuck = work
            raise AssignorError(
                f"assignor {assignor.name!r} did not return within assignor.timeout.ms={self._config.assignor_timeout_ms};"
                " this member left the group, and joins again when it does"
            )
        self._metrics.record("assign", (now() - started) * 1000)
        return work.result()

    def _returned(self, work: asyncio.Future[Any]) -> None:
        if not work.cancelled():
            self._log.warning("the assignor that ran out of time has returned (%r)", work.exception())
        self._on_return()

    async def _lag_of(self, view: leader.ClusterView) -> Mapping[str, Sequence[int | None]]:
        """topic -> each partition's lag; None where it could not be had within a second."""
        deadline = Deadline.after(FIGURES_TIMEOUT_MS)
        everything = [
            TopicPartition(topic, number) for topic, count in view.partitions.items() for number in range(count)
        ]
        try:
            committed = await self._offsets.committed(everything, timeout_ms=deadline.remaining_ms)
        except RetriableError as error:
            self._log.warning("the assignor gets no lag: %s", error)
            committed = {}
        positions = {
            partition: None if (position := committed.get(partition)) is None else position.offset
            for partition in everything
        }
        lag = await lags(self._cluster, positions, deadline)
        return {
            topic: [lag[TopicPartition(topic, number)] for number in range(count)]
            for topic, count in view.partitions.items()
        }
