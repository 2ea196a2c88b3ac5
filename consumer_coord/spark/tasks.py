"""The tasks of a stream's batch or of a bounded read: how Spark sends them, and how an executor reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from consumer_coord.spark.options import ReadOptions
from consumer_coord.spark.packing import Packing, Range, ReadSpec, Task, pack_with
from consumer_coord.spark.user_code import load_task_splitter


class GroupInputPartition(InputPartition):  # type: ignore[misc]  # PySpark is typed Any here
    """The ranges of one task."""

    def __init__(self, task: Task) -> None:
        super().__init__(tuple((each.topic, each.partition, each.start, each.end, each.topic_id) for each in task))

    @property
    def ranges(self) -> Sequence[Range]:
        """Return the ranges to read."""
        return [Range(*each) for each in self.value]


class TaskReader:
    """The part of a reader that Spark pickles for the executors. The planner divides ranges, and an executor reads them."""

    def __init__(self, options: ReadOptions, schema: StructType, parallelism: int) -> None:
        self._spec = ReadSpec(options.data_plane(), options.fail_on_data_loss, options.poll_timeout_ms)
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._task_splitter = options.task_splitter
        self._packing = Packing(parallelism, options.min_partitions, options.max_records_per_partition)

    def __getstate__(self) -> dict[str, Any]:
        return {"_spec": self._spec, "_schema": self._schema}

    def _tasks(self, ranges: Sequence[Range]) -> list[GroupInputPartition]:
        """Return the tasks that read ``ranges``, each of which has at least one offset. Equal ranges give equal tasks."""
        return [GroupInputPartition(task) for task in pack_with(load_task_splitter(self._task_splitter), ranges, self._packing)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's records."""
        # Imported here, because a planner does not read records.
        from consumer_coord.spark.reader import read_ranges

        if partition.value is None:
            # Spark runs one task without a partition if a bounded read has no ranges.
            return iter(())
        assert isinstance(partition, GroupInputPartition)
        return read_ranges(partition.ranges, self._spec, self._schema)
