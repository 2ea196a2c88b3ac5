"""Input and output of the fetcher, as immutable values."""

from __future__ import annotations

import enum
import uuid

from consumer_coord import lazy_attrs as attrs
from consumer_coord.config import Config
from consumer_coord.errors import ConfigurationError, CoordinatorError
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.schema import ZERO_UUID

_INT32_MAX = 2**31 - 1
#: The default of ``max.partition.fetch.bytes``.
DEFAULT_PARTITION_BYTES = 1 << 20


@attrs.frozen(kw_only=True)
class FetchConfig:
    """The settings of a fetcher, with Kafka's names (``_`` instead of ``.``); sizes are in bytes, times in milliseconds.

    ``queued_max_bytes`` (librdkafka: ``queued.max.messages.kbytes``) limits the records that the caller has not yet advanced
    past, whether taken or not. A batch that is larger than its broker's share of the limit is fetched nevertheless. Of one
    partition, the fetcher reads ahead until ``queued_min_messages`` records wait to be taken. The default of
    ``max_partition_fetch_bytes`` is exceeded, up to 4 MiB, for a partition that is far behind while few others are; any other
    value is a limit.
    """

    fetch_min_bytes: int = 1
    fetch_wait_max_ms: int = 500
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = DEFAULT_PARTITION_BYTES
    queued_max_bytes: int = 64 << 20
    queued_min_messages: int = 100_000
    read_committed: bool = False
    client_rack: str = ""

    @classmethod
    def of(cls, config: Config) -> FetchConfig:
        """Return the settings of Fetch requests in the settings of a client."""
        return cls(
            fetch_min_bytes=config.fetch_min_bytes,
            fetch_wait_max_ms=config.fetch_wait_max_ms,
            fetch_max_bytes=config.fetch_max_bytes,
            max_partition_fetch_bytes=config.max_partition_fetch_bytes,
            queued_max_bytes=config.queued_max_messages_kbytes * 1024,
            queued_min_messages=config.queued_min_messages,
            read_committed=config.read_committed,
            client_rack=config.coordinator.client_rack or "",
        )

    def __attrs_post_init__(self) -> None:
        for name, least in (
            ("fetch_min_bytes", 0),
            ("fetch_wait_max_ms", 0),
            ("fetch_max_bytes", 1),
            ("max_partition_fetch_bytes", 1),
            ("queued_max_bytes", 1),
            ("queued_min_messages", 1),
        ):
            value = getattr(self, name)
            if not least <= value <= _INT32_MAX:
                raise ConfigurationError(f"{name.replace('_', '.')} must be between {least} and {_INT32_MAX}, not {value}")


@attrs.frozen
class FetchStart:
    """The position at which the fetcher begins to read a partition.

    ``serial``: a number that the caller chooses for this assignment; all records and events of the assignment carry this
    number. ``leader_epoch``: the epoch of the record before ``offset`` (as in a committed offset), or -1 if unknown. If the
    epoch is unknown, truncation is not detected before the first response. ``topic_id``: the topic's id; zeros mean the id that
    is in the metadata at the time of the assignment.
    """

    serial: int
    offset: int
    leader_epoch: int = -1
    topic_id: uuid.UUID = ZERO_UUID


@attrs.frozen(eq=False)
class FetchedRecords:
    """The complete record batches of one partition in one Fetch response.

    The first batch may begin before ``offset``. ``next_offset`` is the offset after the last batch, and ``leader_epoch`` is
    that batch's epoch. ``aborted``: with ``read_committed``, the aborted transactions as (producer id, first offset), in the
    order of their first offsets. The records always include control batches. Without bytes in ``records``, this is the report
    that the log ends at ``offset``; see ``reports_ends`` of the fetcher.
    """

    partition: TopicPartition
    serial: int
    offset: int
    next_offset: int
    leader_epoch: int
    records: bytes | memoryview
    aborted: tuple[tuple[int, int], ...]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@attrs.frozen(kw_only=True)
class LogEnd:
    """What the responses of the leader, or of a replica that is read instead, say about the end of a partition's log.

    ``answered_at`` is the loop time of the last response that was about the partition, in seconds; before the first one, of the
    assignment. The absence of a response says nothing, so what is known is as old as this time.
    """

    #: The offset after all records that were fetched, taken or not; None if only librdkafka knows it.
    fetched: int | None
    #: The end of what may be read: the high watermark, or the last stable offset with ``read_committed``; None if unknown.
    end: int | None
    high_watermark: int | None
    answered_at: float
    #: For how long the broker may delay a response, in seconds.
    wait_s: float = 0.0
    #: The id of the broker from which the partition is fetched; None while no leader is known.
    broker: int | None = None
    #: Whether no Fetch is sent because fetched records wait for the application.
    held_back: bool = False
    #: The loop time until which the broker throttles this client, in seconds (KIP-219).
    throttled_until: float = 0.0
    #: Why the last Fetch brought nothing, as text; empty after a response.
    obstacle: str = ""


class StopReason(enum.Enum):
    """The reason why the fetcher stopped reading a partition."""

    #: The log begins after the offset, or ends before the offset, so ``auto.offset.reset`` must decide where to continue.
    OUT_OF_RANGE = "out of range"
    #: An unclean leader election removed records before the offset (KIP-320).
    TRUNCATED = "truncated"
    #: The topic was deleted and created again (KIP-516).
    RECREATED = "recreated"
    #: The broker refuses the partition, for instance with TOPIC_AUTHORIZATION_FAILED.
    REFUSED = "refused"
    #: The broker sent bytes that are not record batches, or batches of an unsupported format.
    UNREADABLE = "unreadable"


@attrs.frozen(eq=False)
class Stopped:
    """The report that a partition stopped; fetching resumes when the caller assigns it again, with another serial.

    ``offset``: the position after all records that the fetcher returned. With TRUNCATED, the current leader's log agrees with
    the fetched records up to ``end_offset`` of leader epoch ``end_epoch``; both are -1 if no offset agrees.
    """

    partition: TopicPartition
    serial: int
    reason: StopReason
    offset: int
    error: CoordinatorError
    end_offset: int = -1
    end_epoch: int = -1
