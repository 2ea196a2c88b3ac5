"""Assemble the parts of a consumer that reads messages with this package's own Fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consumer_coord.config import Config
from consumer_coord.consumer import chunks
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.look_ups import LookUps
from consumer_coord.consumer.message_plane import MessagePlane
from consumer_coord.consumer.reports import Reports
from consumer_coord.consumer.scheduler import Scheduler
from consumer_coord.group.coordinator import ConsumerCoordinator


class OwnFetch:
    """The data plane, and what librdkafka's handle gives other consumers: look-ups and reports. Used on the loop."""

    is_out_of_range = staticmethod(chunks.is_out_of_range)

    def __init__(self, core: ConsumerCoordinator, config: Config, scheduler: Scheduler, consumer: object) -> None:
        """Create the plane, which stops fetching when ``consumer`` is garbage-collected."""
        self._settings = config.librdkafka
        self.plane: MessagePlane = MessagePlane(core, config, scheduler)
        self.plane.close_with(consumer)

    def serve(self, engine: Engine, report: Callable[[Any], object]) -> tuple[LookUps, Reports]:
        """Serve the consumer's engine; see :class:`~consumer_coord.consumer.reports.Reports` for ``report``."""
        self.plane.serve(engine)
        return LookUps(engine, self.plane), Reports(self._settings, engine, report)
