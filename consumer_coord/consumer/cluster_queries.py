"""What a consumer asks the brokers about offsets and topics, besides the start of a partition.

Three calls have the arguments and results of ``confluent_kafka.Consumer``'s calls of the same names. Their timeouts are in
seconds; None and negative ones mean ``default.api.timeout.ms``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from consumer_coord.confluent.cluster_metadata import to_cluster_metadata
from consumer_coord.confluent.topic_partitions import Row, Rows, looked_up_rows, milliseconds, partition_of, position_of
from consumer_coord.consumer.engine import Engine
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST, Listed, list_offsets
from consumer_coord.net.connection import Versioned
from consumer_coord.offsets import OFFSET_INVALID, OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.messages.cluster import MetadataRequest, MetadataRequestTopic


async def listed(
    engine: Engine, partitions: Iterable[TopicPartition], timestamp: int
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Look up the offsets for a timestamp, LATEST or EARLIEST, within ``default.api.timeout.ms``."""
    found = await _ask(engine, dict.fromkeys(partitions, timestamp), _deadline(engine, None))
    return {partition: row.position for partition, row in found.complete().items()}


async def log_ends(engine: Engine, partitions: Iterable[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
    """Return the offsets after the last records; omit the partitions whose leader does not respond in time."""
    found = await _ask(engine, dict.fromkeys(partitions, LATEST), Deadline.after(timeout_s * 1000))
    return {partition: row.position.offset for partition, row in found.found.items()}


async def watermarks(engine: Engine, row: Row, timeout: float | None, cached: bool) -> tuple[int, int]:
    """Return (first offset, end offset) of a partition.

    With ``cached``, the offsets are those of the last Fetch response, without a request: ``OFFSET_INVALID`` before the
    first one, and for a partition that is not read.
    """
    partition = partition_of(row)
    if cached:
        return engine.reader.watermarks(partition) or (OFFSET_INVALID, OFFSET_INVALID)
    deadline = _deadline(engine, timeout)
    low = (await _ask(engine, {partition: EARLIEST}, deadline)).complete()
    high = (await _ask(engine, {partition: LATEST}, deadline)).complete()
    return low[partition].offset, high[partition].offset


async def offsets_for_times(engine: Engine, rows: Iterable[Row], timeout: float | None) -> Rows:
    """Return the first offset at or after each row's time (milliseconds since 1970), OFFSET_END if there is none."""
    wanted = {partition_of(row): position_of(row).offset for row in rows}
    found = await _ask(engine, wanted, _deadline(engine, timeout))
    if wanted and not found.found:
        found.complete()
    return looked_up_rows(wanted, {one: at.position for one, at in found.found.items()}, found.failed)


async def list_topics(engine: Engine, topic: str | None, timeout: float) -> Any:
    """Return the cluster's metadata as confluent-kafka's ClusterMetadata, with one topic or (None) with all."""
    cluster = engine.core.cluster
    request = MetadataRequest(
        topics=None if topic is None else [MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=topic is not None and cluster.config.allow_auto_create_topics,
    )
    question = Versioned(MetadataRequest, lambda _: request)
    return to_cluster_metadata(await cluster.request_any(question, _deadline(engine, timeout)))


def _deadline(engine: Engine, timeout: float | None) -> Deadline:
    limit_ms = milliseconds(timeout)
    return Deadline.after(engine.core.config.default_api_timeout_ms if limit_ms is None else limit_ms)


async def _ask(engine: Engine, wanted: Mapping[TopicPartition, int], deadline: Deadline) -> Listed:
    return await list_offsets(engine.core.cluster, wanted, deadline, read_committed=engine.read_committed)
