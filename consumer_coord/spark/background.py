"""A daemon thread of the planner process that looks up end offsets and topic ids: planning does not wait for it.

Spark asks an idle query for its latest offset about 90 times a second: those calls read this thread's last result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from consumer_coord.errors import ClosedError, CoordinatorError
from consumer_coord.leaders.list_offsets import ListedOffset
from consumer_coord.printable import get_logger
from consumer_coord.spark.identity import TopicIds
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

#: Time limit of one look-up or commit, in milliseconds; planning then continues without the response.
REQUEST_TIMEOUT_MS = 10_000

#: Back-off after a failure, in seconds.
RETRY_S = 1.0

#: Time between two look-ups of topic ids, in seconds; they are also due when end offsets hint at a recreated topic.
IDS_FRESH_S = 1.0


@attrs.frozen
class EndsView:
    """End offsets, and when (``time.monotonic()``) their look-up *began*: everything written before is in them.

    ``ids`` are those of their topics, as of ``ids_at_s``, which may be a second before.
    """

    found: Mapping[TopicPartition, ListedOffset] = attrs.field(factory=dict)
    at_s: float = float("-inf")
    ids: TopicIds = attrs.field(factory=dict)
    ids_at_s: float = float("-inf")
    ends: Mapping[TopicPartition, int] = attrs.field(init=False)
    """Return the end offset of each partition."""

    @ends.default
    def _ends(self) -> Mapping[TopicPartition, int]:
        return {partition: listed.offset for partition, listed in self.found.items()}

    def went_back(self, before: EndsView) -> bool:
        """Return whether an end, or its leader epoch, is lower than before: logs only grow, so the topic was recreated."""
        return any(
            listed.offset < old.offset or -1 < listed.leader_epoch < old.leader_epoch
            for partition, listed in self.found.items()
            if (old := before.found.get(partition)) is not None
        )


class Background:
    """Looks up the view that the planner's main thread wants (:meth:`want_view`)."""

    def __init__(
        self,
        look_up: Callable[[frozenset[TopicPartition]], Mapping[TopicPartition, ListedOffset]],
        look_up_ids: Callable[[frozenset[str]], TopicIds],
    ) -> None:
        self._look_up = look_up
        self._look_up_ids = look_up_ids
        self._changed = threading.Condition()
        self._wanted: frozenset[TopicPartition] | None = None
        self._view = EndsView()
        self._problem: CoordinatorError | None = None
        self._closed = False
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kafka-group-background", daemon=True)
        self._thread.start()

    # -- the main thread's side -------------------------------------------------------------------------------------

    @property
    def view(self) -> EndsView:
        """Return the last view found."""
        return self._view

    @property
    def problem(self) -> CoordinatorError | None:
        """Return why the last look-up failed, None if it succeeded."""
        return self._problem

    def want_view(self, partitions: frozenset[TopicPartition]) -> None:
        """Request a look-up of the ends of these partitions."""
        with self._changed:
            self._check()
            self._wanted = partitions
            self._changed.notify_all()

    def wait_for_view(self, since_s: float, timeout_s: float) -> EndsView:
        """Wait for a view begun after ``since_s``; return the last one there is after ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: self._view.at_s >= since_s or self._closed or self._crash is not None, timeout_s)
            self._check()
            return self._view

    def forget_view(self) -> None:
        """Drop the last view, because it no longer holds (the topic was recreated, for instance)."""
        with self._changed:
            self._view = EndsView()

    def close(self) -> None:
        """Begin no further look-up; the thread is a daemon, so nothing waits for its end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check(self) -> None:
        if self._crash is not None:
            raise CoordinatorError(f"the query's background thread crashed: {self._crash!r}") from self._crash

    # -- the thread's side ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001 - the main thread raises it at its next call
            with self._changed:
                self._crash = error
                self._changed.notify_all()

    def _step(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted is not None)
            if self._closed:
                return False
            wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._view_now(wanted)
        return True

    def _view_now(self, wanted: frozenset[TopicPartition]) -> None:
        began = time.monotonic()
        try:
            view = EndsView(self._look_up(wanted), began, self._view.ids, self._view.ids_at_s)
            if began - view.ids_at_s > IDS_FRESH_S or view.went_back(self._view):
                ids_at_s = time.monotonic()
                view = attrs.evolve(
                    view, ids=self._look_up_ids(frozenset(partition.topic for partition in wanted)), ids_at_s=ids_at_s
                )
        except ClosedError:
            return
        except CoordinatorError as error:
            with self._changed:
                self._problem = error
                self._changed.wait_for(lambda: self._closed, RETRY_S)
            return
        with self._changed:
            self._view = view
            self._problem = None
            self._changed.notify_all()
