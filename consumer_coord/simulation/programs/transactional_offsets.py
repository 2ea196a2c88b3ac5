"""Offsets that transactions commit: they count when the transaction is committed."""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class TransactionalOffsets:
    """Keeps the records that open transactions write to ``__consumer_offsets``.

    ``serving`` returns the process that a broker serves; ``committed`` receives (key, value, process) of each record.
    """

    _serving: Callable[[], str]
    _committed: Callable[[bytes, bytes, str], None]
    #: (partition, producer id) -> the records, in order.
    _open: dict[tuple[int, int], list[tuple[bytes, bytes, str]]] = attrs.field(factory=dict)

    def on_transactional_record(self, partition: int, producer_id: int, key: bytes, value: bytes) -> None:
        """Keep a record of a transaction."""
        self._open.setdefault((partition, producer_id), []).append((key, value, self._serving()))

    def on_offsets_marker(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """Pass the records on if their transaction was committed, and drop them otherwise."""
        for record in self._open.pop((partition, producer_id), ()):
            if committed:
                self._committed(*record)
