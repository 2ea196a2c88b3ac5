"""Assemble the parts of a consumer: the engine, what fetches records, and what reports and pushes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.config import Config
from consumer_coord.consumer.callback_types import Callback, Partitions
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.engine_loop import EngineLoop
from consumer_coord.consumer.librdkafka.handle import Librdkafka
from consumer_coord.consumer.metrics_push import MetricsPush
from consumer_coord.consumer.start_offsets import ResetPolicy
from consumer_coord.group.coordinator import ConsumerCoordinator

if TYPE_CHECKING:
    from consumer_coord.consumer.reading.reader import Reader
    from consumer_coord.consumer.reports import Reports


@attrs.frozen
class Parts:
    """The parts of one consumer, made on its loop."""

    engine: Engine
    engine_loop: EngineLoop
    reader: Reader
    #: What this package's own Fetch reports to callbacks; None if librdkafka fetches the messages.
    reports: Reports | None
    metrics_push: MetricsPush | None


def prepared(
    settings: Config,
    consumer: object,
    librdkafka: Librdkafka,
    *,
    fetches: bool,
    call: Callable[[Callback, Partitions], Coroutine[Any, Any, None]],
    events: Callable[[], Coroutine[Any, Any, None]],
    deliveries: Deliveries[Any],
    auto_store: bool,
    reports_automatic: bool,
) -> Callable[[ConsumerCoordinator, EngineLoop], Parts]:
    """Return the function that makes a consumer's parts on its loop; the arguments are those of :class:`Engine`.

    ``fetches``: whether ``librdkafka`` fetches the messages. Fetching stops when ``consumer`` is garbage-collected.
    """
    # Imported here, because the import of a consumer must not import the Fetch and the decoder.
    from consumer_coord.consumer.librdkafka.pump import Pump
    from consumer_coord.consumer.reading.reader import Reader
    from consumer_coord.consumer.reports import Reports

    def make(core: ConsumerCoordinator, engine_loop: EngineLoop) -> Parts:
        def pump(on_ready: Callable[[], None]) -> Pump:
            return Pump(librdkafka, on_ready=on_ready, on_event=core.application.wake)

        reader = Reader(core, settings, engine_loop, pump if fetches else None)
        reader.close_with(consumer)
        engine = Engine(
            core,
            reader,
            engine_loop,
            reset=ResetPolicy(
                settings.auto_offset_reset, settings.read_committed, checks_commits=True, keeps_epochs=not fetches
            ),
            call=call,
            events=events,
            unfinished=deliveries.unfinished,
            auto_store=auto_store,
            reports_automatic=reports_automatic,
        )
        reader.serve(engine)
        reports = None if fetches else Reports(settings.librdkafka, engine, librdkafka.reported.append)
        push = MetricsPush(engine) if settings.enable_metrics_push else None
        return Parts(engine, engine_loop, reader, reports, push)

    return make
