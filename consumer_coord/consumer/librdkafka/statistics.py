"""Add the group's metrics to librdkafka's statistics, in the fields of librdkafka's STATISTICS.md.

librdkafka reads manually assigned partitions and is not in the group, so its own ``consumer_lag``, ``committed_offset`` and
``cgrp`` have no values. It also lacks partitions that the consumer has not assigned to it: a partition whose start is being
looked up, or that is paused.
"""

from __future__ import annotations

import json
from typing import Any

from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.partitions import Partition
from consumer_coord.topic_partition import TopicPartition

_INVALID = -1001
_UNKNOWN = (
    "broker",
    "leader",
    "leader_epoch",
    "stored_leader_epoch",
    "committed_leader_epoch",
    "consumer_lag",
    "consumer_lag_stored",
)
_NO_OFFSET = (
    "query_offset",
    "app_offset",
    "stored_offset",
    "commited_offset",
    "committed_offset",
    "eof_offset",
    "lo_offset",
    "hi_offset",
    "ls_offset",
)
_ZERO = (
    "msgq_cnt",
    "msgq_bytes",
    "xmit_msgq_cnt",
    "xmit_msgq_bytes",
    "fetchq_cnt",
    "fetchq_size",
    "next_offset",
    "txmsgs",
    "txbytes",
    "rxmsgs",
    "rxbytes",
    "msgs",
    "rx_ver_drops",
    "msgs_inflight",
    "next_ack_seq",
    "next_err_seq",
    "acked_msgid",
)
#: The fields of a partition of which librdkafka has no statistics yet.
_NEW_PARTITION = {
    "desired": True,
    "unknown": True,
    "fetch_state": "none",
    **dict.fromkeys(_UNKNOWN, -1),
    **dict.fromkeys(_NO_OFFSET, _INVALID),
    **dict.fromkeys(_ZERO, 0),
}


async def completed(event: Any, engine: Engine) -> Any:
    """Return an event of librdkafka; if it is the JSON of the statistics, with the group's metrics."""
    if not isinstance(event, str):
        return event
    statistics: dict[str, Any] = json.loads(event)
    topics = statistics.setdefault("topics", {})
    for about in topics.values():
        _drop_phantoms(about, engine)
    for partition, one in engine.table.items():
        about = topics.setdefault(partition.topic, {"topic": partition.topic, "partitions": {}})
        number = partition.partition
        row = about["partitions"].setdefault(str(number), {"partition": number, **_NEW_PARTITION})
        if queues := engine.reader.queues(partition):
            row |= {"unknown": False, "fetch_state": "active" if one.fetched else "stopped", **queues}
        _complete(row, partition, one, engine)
    statistics["cgrp"] = _group(statistics.get("cgrp", {}), engine)
    if figures := engine.figures():
        statistics["process"] = figures
    return json.dumps(statistics)


def _drop_phantoms(about: dict[str, Any], engine: Engine) -> None:
    """Remove partition 0 if it is in the statistics only because the data plane looked up its topic."""
    zero = about["partitions"].get("0")
    if zero is not None and zero["unknown"] and TopicPartition(about["topic"], 0) not in engine.table:
        del about["partitions"]["0"]


def _complete(row: dict[str, Any], partition: TopicPartition, one: Partition, engine: Engine) -> None:
    confirmed = engine.core.commits.confirmed.get(partition, _INVALID)
    position = engine.reader.positions({partition: one}).get(partition)
    delivered = _INVALID if position is None else position.offset
    committed = confirmed if confirmed >= 0 or one.committed is None else one.committed.offset
    stored = engine.stored.position(partition)
    finished = delivered if stored is None else stored.offset
    topic, number = engine.core.cluster.metadata.topics.get(partition.topic), partition.partition
    if row["leader"] < 0 and topic is not None and number < topic.partition_count:
        row |= {"leader": topic.leaders[number], "leader_epoch": topic.leader_epochs[number]}
        row["broker"] = row["leader"]
    row |= {"app_offset": delivered, "committed_offset": committed, "stored_offset": finished}
    # The end offset that limits this consumer: the last stable offset, or the high watermark.
    end = row["ls_offset" if engine.read_committed else "hi_offset"]
    for name, at in (("consumer_lag", committed), ("consumer_lag_stored", finished)):
        row[name] = max(0, end - at) if end >= 0 and at >= 0 else -1


def _group(before: dict[str, Any], engine: Engine) -> dict[str, Any]:
    core = engine.core
    metrics = core.metrics()
    if not core.protocol.subscribed:
        return before
    in_group = core.generation >= 0
    return {
        **before,
        "state": "up" if in_group else "wait-broker",
        "stateage": int(metrics.get("last-rebalance-seconds-ago", 0) * 1000),
        "join_state": "wait-join" if core.rebalancing else "steady" if in_group else "init",
        "rebalance_age": int(metrics.get("last-rebalance-seconds-ago", 0) * 1000),
        "rebalance_cnt": int(metrics.get("rebalance-total", 0)),
        "rebalance_reason": core.application.failures.obstacle,
        "assignment_size": len(core.assignment.held),
        "generation_id": core.generation,
        "member_id": core.member_id,
    }
