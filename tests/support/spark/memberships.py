"""Queries without Spark: memberships on separate threads, whose batches a test finishes at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import attrs

from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.query_membership import QueryMembership
from tests.support.waiting import eventually


@attrs.define
class Run:
    """A run of a query. The planner ends when it is stopped, or when an AvailableNow run has read all records.

    ``read``: (topic, partition) -> offsets of finished batches, in order.
    """

    membership: QueryMembership
    offsets: Offsets
    now: bool = False
    #: The run is the one batch of Trigger.Once.
    once: bool = False
    #: Called after each batch with its number.
    between: Callable[[int], None] = lambda batch: None
    #: Cleared while the query is in a long batch.
    going: threading.Event = attrs.field(factory=threading.Event)
    read: dict[tuple[str, int], list[int]] = attrs.field(factory=dict)
    failure: BaseException | None = None
    stopping: threading.Event = attrs.field(factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self) -> Run:
        self.going.set()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        return self

    def _work(self) -> None:
        try:
            if self.now and not self.once:
                self.membership.prepare_available_now()
            number = 0
            while not self.stopping.wait(0.01):
                self.going.wait()
                planned = self.membership.next_batch(self.offsets, once=self.once)
                if planned is None:
                    if self.now:
                        return
                    continue
                for one, span in planned.spans():
                    self.read.setdefault((one.topic, one.partition), []).extend(range(span.start, span.end))
                self.offsets = planned
                self.between(number)
                number += 1
                if self.once:
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the run is joined
            self.failure = error
        finally:
            self.membership.leave()

    def finish(self, timeout_s: float = 60) -> Run:
        """Wait for the end of an AvailableNow run."""
        assert self.thread is not None
        self.thread.join(timeout_s)
        assert not self.thread.is_alive(), f"the run did not end: {self.membership.status.to_json()}"
        if self.failure is not None:
            raise self.failure
        return self

    def stop(self) -> Run:
        self.stopping.set()
        return self.finish()

    @property
    def owned(self) -> int:
        """The number of partitions that the run owned at its last planning call."""
        partitions: Mapping[str, Mapping[str, object]] = self.membership.status.to_json()["partitions"]
        return sum(map(len, partitions.values()))

    def count(self, topic: str) -> int:
        """Return how many records of a topic the run read."""
        return sum(len(offsets) for (name, _), offsets in self.read.items() if name == topic)


def run(bootstrap_servers: str, options: Mapping[str, str], checkpoint: Offsets | None = None, *, now: bool = False) -> Run:
    """Start a run of a query of group billing; ``checkpoint`` is the checkpoint of an earlier run."""
    return prepared(bootstrap_servers, options, checkpoint, now=now).start()


def prepared(
    bootstrap_servers: str, options: Mapping[str, str], checkpoint: Offsets | None = None, *, now: bool = False
) -> Run:
    """Return a run that is not started yet."""
    settings = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "group.id": "billing",
        "kafka.heartbeat.interval.ms": "100",
        "kafka.session.timeout.ms": "6000",
        **options,
    }
    if settings.get("kafka.group.protocol") == "consumer":
        del settings["kafka.heartbeat.interval.ms"], settings["kafka.session.timeout.ms"]
    membership = QueryMembership(parse_options(settings))
    return Run(membership, checkpoint or Offsets("billing"), now)


def together(runs: list[Run], condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    """Wait until ``condition`` holds; raise the error of a run that failed."""

    def met() -> bool:
        for each in runs:
            if each.failure is not None:
                raise each.failure
        return condition()

    eventually(met, what, within_s=timeout_s, shows=lambda: [each.membership.status.to_json() for each in runs])
