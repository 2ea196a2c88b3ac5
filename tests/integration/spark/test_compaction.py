"""Holes that compaction leaves, and code that changed since a checkpoint was written; both in one query."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from consumer_coord.spark import by_value
from consumer_coord.spark.packing import Packing, Range, Task
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.spark.compaction import EAGER, compact, kept_offsets
from tests.support.spark.producing import produce
from tests.support.spark.queries import Queries, Rows, await_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def test_changed_code_goes_on_from_an_old_checkpoint_over_the_holes_of_compaction(
    queries: Queries, topic: NewTopicFactory, kafka: KafkaCluster
) -> None:
    name = topic(partitions=1, config=EAGER)
    records = [{"key": f"k{number % 5}", "value": f"v{number}"} for number in range(400)]
    produce(kafka.bootstrap_servers, name, records)

    def break_down(batch: int) -> None:
        if batch == 1:
            raise ValueError("in the second batch")

    # A separate setting gives this query a separate consumer, so no other query uses its prefetched records.
    options = {"maxOffsetsPerTrigger": "100", "kafka.client.id": "the first"}
    first, seen = queries.start(name, options, checkpoint="c", rows=Rows(before=break_down))
    with pytest.raises(StreamingQueryException, match="in the second batch"):
        await_end(first)
    assert seen.offsets() == list(range(100))

    compact(kafka, name, first_kept=395)

    def one_by_one(ranges: Sequence[Range], packing: Packing) -> Sequence[Task]:
        return [(each,) for each in ranges]

    changed = {"maxOffsetsPerTrigger": "130", "taskSplitter": by_value(one_by_one), "includeHeaders": "true"}
    frame = queries.frame(name, changed).withColumn("value", f.upper("value"))
    again, rows = queries.write(frame, checkpoint="c", now=True, rows=Rows(columns=("value", "partition", "offset")))
    await_end(again)
    kept = kept_offsets(kafka, name)
    assert rows.offsets()[:5] == kept[:5] == [395, 396, 397, 398, 399]
    assert [value for _, value, _, _ in rows.seen[:5]] == [f"V{number}" for number in range(395, 400)]
    # Compaction continued, and removed records of the last key that had been read.
    assert set(rows.offsets()) >= set(kept)
    assert sorted(set(rows.offsets())) == rows.offsets()
    assert queries.committed(name, 1) == {0: kept[-1] + 1}
    # The unfinished batch was the old code's, to the record; the new code's limit counts from there.
    planned = [(queries.directory / "c" / "offsets" / str(batch)).read_text().splitlines()[-1] for batch in (1, 2)]
    assert [json.loads(one)["topics"][name]["p"]["0"][:2] for one in planned] == [[100, 200], [200, 330]]
