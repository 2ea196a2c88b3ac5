"""The data source ``kafka_group``: the methods that Spark calls, in several processes.

Spark creates a ``KafkaGroupSource`` at ``load()``, in a short-lived process, which checks every option. For a streaming query,
Spark creates the stream reader again in the query's long-lived planner process. There the stream reader joins the group. A
third, short-lived process pickles the stream reader for the executors, where only ``read`` runs. So no method here does I/O
before the first call that needs the group, and a pickled reader contains no membership.

For a bounded read (``spark.read``), a short-lived process plans the ranges (``bounded_read.py``), and pickles them for the
executors.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from pyspark import SparkFiles
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from consumer_coord.errors import ConfigurationError
from consumer_coord.log_text import get_logger
from consumer_coord.settings import refuse_unknown
from consumer_coord.spark.checkpoint import Offsets, damaged, from_json
from consumer_coord.spark.columns import check_schema, source_schema
from consumer_coord.spark.options import (
    BoundedOptions,
    MissingOptionError,
    Options,
    ReadOptions,
    check_options,
    parse_bounded_options,
    parse_options,
)
from consumer_coord.spark.packing import Range
from consumer_coord.spark.requirements import check_python
from consumer_coord.spark.starting_offsets_option import MOST
from consumer_coord.spark.table_options import options_of, with_options
from consumer_coord.spark.tasks import GroupInputPartition, TaskReader
from consumer_coord.spark.user_code import OAUTH_CB

if TYPE_CHECKING:
    from consumer_coord.spark.query_membership import QueryMembership

logger: Final = get_logger(__name__)

Parsed = TypeVar("Parsed", bound=ReadOptions)


class KafkaGroupSource(DataSource):  # type: ignore[misc]  # PySpark is typed Any here
    """A Structured Streaming source whose queries are members of a Kafka consumer group.

    Register the class with ``spark.dataSource.register(KafkaGroupSource)``, and use ``spark.readStream.format("kafka_group")``.
    docs/spark-options.md describes the options.
    """

    #: The maximum number of tasks of a big batch; None means the number of this machine's cores. :func:`register` sets the
    #: number of the executors' cores.
    parallelism: int | None = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)
        self._include_headers = False
        #: The error of an option that is missing unless this is a query of a table, whose options come with its schema.
        self._missing: MissingOptionError | None = None
        try:
            parsed = check_options(options)
        except MissingOptionError as error:
            self._missing = error
        else:
            self._include_headers = parsed.include_headers
            check_data_plane(parsed)
        # Spark gives files of --py-files to this process, but not to the planner on the same machine.
        self._py_files = _spark_files_on_path()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        sys.path += [entry for entry in self._py_files if entry not in sys.path]

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "kafka_group"

    def schema(self) -> StructType:
        """Return all columns; a query with its own schema may omit some."""
        if self._missing is not None:
            raise self._missing
        return with_options(source_schema(self._include_headers), self._given)

    def streamReader(self, schema: StructType) -> KafkaGroupStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query, in each process that Spark uses."""
        options = self._parsed(parse_options, schema)
        return KafkaGroupStreamReader(options, schema, self.parallelism or os.cpu_count() or 1)

    def reader(self, schema: StructType) -> KafkaGroupReader:
        """Return the reader of a bounded read."""
        options = self._parsed(parse_bounded_options, schema)
        return KafkaGroupReader(options, schema, self.parallelism or os.cpu_count() or 1)

    def _parsed(self, parse: Callable[[Mapping[str, str]], Parsed], schema: StructType) -> Parsed:
        """Return the options, with those of the table to which the schema belongs."""
        given = options_of(schema, self._given)
        options = parse(given)
        if given is not self._given:
            check_data_plane(options)
        check_schema(schema, options.include_headers)
        return options

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raise an error, because the source does not write."""
        raise ConfigurationError(_NO_WRITER)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's name
        """Raise an error, because the source does not write."""
        raise ConfigurationError(_NO_WRITER)


_NO_WRITER = "kafka_group reads only, because it is a consumer. Write with Spark's own format 'kafka'"


def register(spark: Any) -> None:
    """Register the source. Its parallelism is the number of tasks that the executors of ``spark`` can run at once.

    Raise ImportError if the Python of Spark's processes on this machine cannot run the source.
    """
    if not _is_connect(spark):
        check_python(spark.sparkContext.pythonExec)
    cores = parallelism_of(spark)
    spark.dataSource.register(type("KafkaGroupSource", (KafkaGroupSource,), {"parallelism": cores, "__module__": "__main__"}))


def parallelism_of(spark: Any) -> int:
    """Return how many tasks the executors of a session can run at the same time."""
    if _is_connect(spark):
        # A Spark Connect session has no SparkContext; a range has as many partitions as there are cores.
        from pyspark.sql.functions import spark_partition_id

        return int(spark.range(10_000).select(spark_partition_id()).distinct().count())
    return int(spark.sparkContext.defaultParallelism)


def _is_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _spark_files_on_path() -> Sequence[str]:
    root = getattr(SparkFiles, "_root_directory", None)
    return [entry for entry in sys.path if root and Path(entry).is_relative_to(root)]


def check_data_plane(options: ReadOptions) -> None:
    """Check librdkafka's settings, with librdkafka if it is installed: an unknown ``kafka.*`` key is an error at ``load()``."""
    from consumer_coord.confluent.types import Consumer, KafkaException, own_because

    settings = options.data_plane()
    # Leave out the callback, because this consumer would request a token. The callback was checked earlier.
    settings.pop(OAUTH_CB, None)
    if own_because is not None:
        refuse_unknown(settings)
        return
    try:
        Consumer(settings, logger=logger).close()
    except KafkaException as error:
        raise ConfigurationError(f"a kafka.* option is wrong: {error.args[0].str()}; remove it or correct it") from error


class KafkaGroupReader(TaskReader, DataSourceReader):  # type: ignore[misc]  # PySpark is typed Any here
    """The reader of one bounded read: Spark calls :meth:`partitions` once, and ``read`` in the executors."""

    def __init__(self, options: BoundedOptions, schema: StructType, parallelism: int) -> None:
        super().__init__(options, schema, parallelism)
        self._options = options

    def partitions(self) -> list[GroupInputPartition]:
        """Return the tasks of the read; see ``bounded_read.py`` for the errors."""
        # Imported here, because executors and streaming queries do not need the module.
        from consumer_coord.spark.bounded_read import plan_ranges

        return self._tasks(plan_ranges(self._options))


class KafkaGroupStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # PySpark is typed Any here
    """The reader of a query: for the planner (all methods but ``read``) and for the executors (only ``read``)."""

    def __init__(self, options: Options, schema: StructType, parallelism: int) -> None:
        super().__init__(options, schema, parallelism)
        self._options = options
        self._membership: QueryMembership | None = None
        self._last: tuple[Any, Offsets] | None = None
        # The start and the end offsets of the last batch that Spark planned.
        self._ends: tuple[Any, Any] = (None, None)
        # The end offsets of the last batch that Spark committed.
        self._confirmed: Any = None

    def _member(self) -> QueryMembership:
        if self._membership is None:
            # Imported here, because executors do not need the coordinator.
            from consumer_coord.spark import leave_at_end
            from consumer_coord.spark.query_membership import QueryMembership

            self._membership = QueryMembership(self._options)
            leave_at_end.leave_with_process(self._membership.leave)
            if os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() != "true":
                logger.warning(
                    "spark.python.unix.domain.socket.enabled is off: each task waits some 40 ms for its first bytes; set it to"
                    " true when the session is built"
                )
        return self._membership

    def _parse(self, offset: Any) -> Offsets:
        if self._last is None or self._last[0] != offset:
            self._last = (offset, from_json(offset, self._options.group))
        return self._last[1]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the constant first offset, which names no partition.

        Spark requests this offset from a planner first, so the query joins the group while Spark continues.
        """
        self._member().open()
        return Offsets(self._options.group).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxOffsetsPerTrigger`` or ``minOffsetsPerTrigger`` as Spark's limit, which cannot express both.

        Without both, return a limit that no batch reaches: Spark passes ``ReadAllAvailable`` only for Trigger.Once, and only
        this difference tells the planner that it plans the only batch of a run.
        """
        own = self._options
        if own.max_offsets is None and own.min_offsets is not None:
            return ReadMinRows(own.min_offsets)
        return ReadMaxRows(own.max_offsets or MOST)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or ``start`` if there is no new batch.

        ``start`` is the end of the last batch that Spark finished.
        """
        planned = self._member().next_batch(self._parse(start), once=isinstance(limit, ReadAllAvailable))
        if planned is None:
            return start
        end = planned.to_json()
        self._ends = (self._ends[1], end)
        return end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the end offsets of a Trigger.AvailableNow run. The query reads no record that is written after this call."""
        self._member().prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return lag, generation, partitions and commits; see ``consumer_coord.spark.progress``."""
        return self._member().status.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch that ends at ``end``. Only ``end`` determines the batch's content."""
        if self._ends == (start, end) and self._confirmed != start:
            from consumer_coord.spark.errors import AsyncProgressError

            # Spark logs batch n + 1, then commits batch n to the sources, then requests the tasks of batch n + 1. With
            # asynchronous progress tracking, Spark does not wait for the log entry.
            raise AsyncProgressError(
                "kafka_group does not support asyncProgressTrackingEnabled=true, because the group could have commits of"
                " batches that no checkpoint has; remove asyncProgressTrackingEnabled from writeStream"
            )
        batch = self._parse(end)
        if batch == from_json(start, self._options.group):
            # The offsets are equal. Spark treats the offsets as different because someone changed the text (white space,
            # order).
            return []
        member = self._member()
        if not member.is_planned(batch):
            batch = member.check_replay(batch)
        return self._tasks(batch_ranges(batch))

    def commit(self, end: dict[str, Any]) -> None:
        """Record that Spark will not request ``end`` again.

        The query sent the commit to the group earlier, when Spark called :meth:`latestOffset` with ``end`` as the start.
        """
        self._confirmed = end

    def stop(self) -> None:
        """Leave the group, because the query ended.

        The call is idempotent, and has no effect in processes without a membership.

        Raise ``CheckpointError`` with a remedy if an offset of the checkpoint is not JSON: PySpark parses offsets before this
        reader receives them, and calls this method after the parser's error.
        """
        if self._membership is not None:
            from consumer_coord.spark import leave_at_end

            self._membership.leave()
            leave_at_end.forget(self._membership.leave)
        error = sys.exc_info()[1]
        if error is not None and _is_of_json(error):
            raise damaged(self._options.group, "invalid JSON", error) from error


def _is_of_json(error: BaseException) -> bool:
    """Return whether a JSON parser raised the error. Such an error names no file, whatever the type of the error is."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").partition(".")[0] == "json" for frame, _ in frames)


def batch_ranges(batch: Offsets) -> Sequence[Range]:
    """Return the ranges of a recorded batch."""
    return [
        Range(partition.topic, partition.partition, span.start, span.end, batch.topics[partition.topic].id)
        for partition, span in batch.spans()
        if span.start < span.end
    ]
