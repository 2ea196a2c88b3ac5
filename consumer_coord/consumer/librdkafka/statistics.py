"""Add the group's figures to librdkafka's statistics, in the fields of librdkafka's STATISTICS.md.

librdkafka reads manually assigned partitions and is not in the group, so its own ``consumer_lag``, ``committed_offset`` and
``cgrp`` have no values.
"""

from __future__ import annotations

from typing import Any

from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.partitions import Partition
from consumer_coord.topic_partition import TopicPartition

_INVALID = -1001


class Statistics:
    """The statistics of one consumer."""

    def __init__(self, engine: Engine, *, read_committed: bool) -> None:
        self._core = engine.core
        self._engine = engine
        #: The field with the end offset that limits this consumer: the last stable offset, or the high watermark.
        self._end = "ls_offset" if read_committed else "hi_offset"

    def completed(self, text: str) -> str:
        """Return librdkafka's JSON with the group's figures; must be called by the thread that uses the engine."""
        import json

        statistics: dict[str, Any] = json.loads(text)
        confirmed, table = self._core.commits.confirmed, self._engine.table
        for topic, about in statistics.get("topics", {}).items():
            for number, figures in about.get("partitions", {}).items():
                partition = TopicPartition(topic, int(number))
                one = table.get(partition)
                if one is not None and one.fetched:
                    self._partition(figures, partition, one, confirmed.get(partition, _INVALID))
        statistics["cgrp"] = self._group(statistics.get("cgrp", {}))
        return json.dumps(statistics)

    def _partition(self, figures: dict[str, Any], partition: TopicPartition, one: Partition, confirmed: int) -> None:
        position = self._engine.worker.positions({partition: one}).get(partition)
        delivered = _INVALID if position is None else position.offset
        committed = confirmed if confirmed >= 0 or one.committed is None else one.committed.offset
        figures["app_offset"] = delivered
        figures["committed_offset"] = committed
        end = figures.get(self._end, -1)
        stored = one.stored.position
        finished = delivered if stored is None else stored.offset
        figures["stored_offset"] = finished
        for name, at in (("consumer_lag", committed), ("consumer_lag_stored", finished)):
            figures[name] = max(0, end - at) if end >= 0 and at >= 0 else -1

    def _group(self, before: dict[str, Any]) -> dict[str, Any]:
        core = self._core
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
