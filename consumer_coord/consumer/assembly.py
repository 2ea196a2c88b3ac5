"""Assemble the parts of a consumer: the engine, what fetches records, and what reports and pushes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.config import Config
from consumer_coord.confluent.rows import is_out_of_range
from consumer_coord.consumer.callback_types import Callback, Partitions
from consumer_coord.consumer.data_plane import DataPlane
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.engine_loop import EngineLoop
from consumer_coord.consumer.librdkafka.plane import Librdkafka
from consumer_coord.consumer.metrics_push import MetricsPush
from consumer_coord.consumer.start_offsets import ResetPolicy
from consumer_coord.consumer.worker import Worker
from consumer_coord.group.coordinator import ConsumerCoordinator

if TYPE_CHECKING:
    from consumer_coord.consumer.look_ups import LookUps
    from consumer_coord.consumer.reading.reader import Reader
    from consumer_coord.consumer.reports import Reports


@attrs.frozen
class Parts:
    """The parts of one consumer, made on its loop."""

    engine: Engine
    engine_loop: EngineLoop
    #: This package's own Fetch, its look-ups, and what it reports to callbacks; None if librdkafka fetches the messages.
    reader: Reader | None
    look_ups: LookUps | None
    reports: Reports | None
    metrics_push: MetricsPush | None


def prepared(
    settings: Config,
    consumer: object,
    librdkafka: Librdkafka,
    plane: DataPlane | None,
    *,
    call: Callable[[Callback, Partitions], Coroutine[Any, Any, None]],
    events: Callable[[], Coroutine[Any, Any, None]],
    deliveries: Deliveries[Any],
    auto_store: bool,
    reports_automatic: bool,
) -> Callable[[ConsumerCoordinator, EngineLoop], Parts]:
    """Return the function that makes a consumer's parts on its loop; the arguments are those of :class:`Engine`.

    ``plane`` is librdkafka's if that fetches the messages, else None. Fetching stops when ``consumer`` is garbage-collected.
    """
    if plane is None:
        # Imported here, because a consumer whose librdkafka fetches needs neither the Fetch nor the decoder.
        from consumer_coord.consumer.look_ups import LookUps
        from consumer_coord.consumer.reading.reader import Reader
        from consumer_coord.consumer.reports import Reports

    def make(core: ConsumerCoordinator, engine_loop: EngineLoop) -> Parts:
        own: Reader | None = None
        worker: Worker | Reader
        if plane is None:
            worker = own = Reader(core, settings, engine_loop)
            own.close_with(consumer)
        else:
            worker = Worker(plane, is_out_of_range)
        engine = Engine(
            core,
            worker,
            engine_loop,
            reset=ResetPolicy(
                settings.auto_offset_reset,
                settings.read_committed,
                checks_commits=True,
                keeps_epochs=own is not None,
            ),
            call=call,
            events=events,
            unfinished=deliveries.unfinished,
            auto_store=auto_store,
            reports_automatic=reports_automatic,
        )
        look_ups = reports = None
        if own is not None:
            own.serve(engine)
            look_ups, reports = LookUps(engine, own), Reports(settings.librdkafka, engine, librdkafka.reported.append)
        push = MetricsPush(engine) if settings.enable_metrics_push else None
        return Parts(engine, engine_loop, own, look_ups, reports, push)

    return make


def reader_of(engine: Engine, settings: Config, consumer: object) -> Reader:
    """Return this package's own Fetch for a consumer that has used librdkafka; on the loop."""
    from consumer_coord.consumer.reading.reader import Reader

    reader = Reader(engine.core, settings, engine.engine_loop)
    reader.close_with(consumer)
    reader.serve(engine)
    return reader
