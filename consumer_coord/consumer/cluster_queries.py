"""Lookups of offsets and topics for a consumer that reads without librdkafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from consumer_coord.confluent.cluster_metadata import to_cluster_metadata
from consumer_coord.confluent.rows import Row, Rows, looked_up_rows, milliseconds, partition_of, position_of
from consumer_coord.consumer.engine import Engine
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST, Listed, list_offsets
from consumer_coord.net.connection import Versioned
from consumer_coord.offsets import OFFSET_INVALID
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.messages.cluster import MetadataRequest, MetadataRequestTopic


class LookUps:
    """Calls with the arguments and results of ``confluent_kafka.Consumer``'s calls of the same names.

    Timeouts are in seconds; None and negative ones mean ``default.api.timeout.ms``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _deadline(self, timeout: float | None) -> Deadline:
        limit_ms = milliseconds(timeout)
        return Deadline.after(self._engine.core.config.default_api_timeout_ms if limit_ms is None else limit_ms)

    async def _listed(self, wanted: Mapping[TopicPartition, int], deadline: Deadline) -> Listed:
        core = self._engine.core
        return await list_offsets(core.cluster, wanted, deadline, read_committed=self._engine.read_committed)

    async def watermarks(self, row: Row, timeout: float | None, cached: bool) -> tuple[int, int]:
        """Return (first offset, end offset) of a partition.

        With ``cached``, the offsets are those of the last Fetch response, without a request: ``OFFSET_INVALID`` before the
        first one, and for a partition that is not read.
        """
        partition = partition_of(row)
        if cached:
            return self._engine.reader.watermarks(partition) or (OFFSET_INVALID, OFFSET_INVALID)
        deadline = self._deadline(timeout)
        low = (await self._listed({partition: EARLIEST}, deadline)).complete()
        high = (await self._listed({partition: LATEST}, deadline)).complete()
        return low[partition].offset, high[partition].offset

    async def offsets_for_times(self, rows: Iterable[Row], timeout: float | None) -> Rows:
        """Return the first offset at or after each row's time (milliseconds since 1970), OFFSET_END if there is none."""
        wanted = {partition_of(row): position_of(row).offset for row in rows}
        listed = await self._listed(wanted, self._deadline(timeout))
        if wanted and not listed.found:
            listed.complete()
        return looked_up_rows(wanted, {one: at.position for one, at in listed.found.items()}, listed.failed)

    async def list_topics(self, topic: str | None, timeout: float) -> Any:
        """Return the cluster's metadata as confluent-kafka's ClusterMetadata, with one topic or (None) with all."""
        cluster = self._engine.core.cluster
        request = MetadataRequest(
            topics=None if topic is None else [MetadataRequestTopic(name=topic)],
            allow_auto_topic_creation=topic is not None and cluster.config.allow_auto_create_topics,
        )
        question = Versioned(MetadataRequest, lambda _: request)
        return to_cluster_metadata(await cluster.request_any(question, self._deadline(timeout)))
