"""The flags that say what counts as lag; the same in ``describe``, ``lag`` and ``watch``."""

from __future__ import annotations

import argparse

from consumer_coord.lag.partition_lag import LagPolicy
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST

#: The values of ``--without-commit``, with the timestamp of ListOffsets where the lag begins.
_STARTS = {"earliest": EARLIEST, "latest": LATEST, "unknown": None}
_COMMITTED, _UNCOMMITTED = "read_committed", "read_uncommitted"


def add_lag_flags(parser: argparse.ArgumentParser, *, seconds: bool = True) -> None:
    """Add the flags; ``seconds``: also ``--seconds``, which is on otherwise."""
    how = parser.add_argument_group("lag")
    how.add_argument(
        "--without-commit",
        choices=tuple(_STARTS),
        default="earliest",
        help="where the lag of a partition without a commit begins (default: earliest, the first record)",
    )
    how.add_argument(
        "--isolation",
        choices=(_COMMITTED, _UNCOMMITTED),
        default=_COMMITTED,
        help="count records that members with this isolation.level may read (default: read_committed)",
    )
    if not seconds:
        parser.set_defaults(seconds=True)
        return
    how.add_argument(
        "--seconds", action="store_true", help="also show how old the first unread record is; needs READ on topics"
    )


def lag_policy(arguments: argparse.Namespace) -> LagPolicy:
    """Return what counts as lag, from the flags."""
    seconds = arguments.seconds or getattr(arguments, "max_lag_seconds", None) is not None
    committed = arguments.isolation == _COMMITTED
    # With read_uncommitted, the lag without seconds is that of Kafka's tool, which counts every offset.
    return LagPolicy(_STARTS[arguments.without_commit], committed, records=committed, seconds=seconds)
