"""The flags of the formula, the same in ``serve-metrics`` and in ``simulate --lag``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from consumer_coord.admin.properties import count, not_negative
from consumer_coord.scaling.wanted_replicas import Limits


def add_limits(parser: argparse._ArgumentGroup) -> list[argparse.Action]:
    """Add the flags; return them."""
    return [
        parser.add_argument(
            "--lag-per-replica", type=count, metavar="N", help="unread records that one replica may have (default: 1000)"
        ),
        parser.add_argument("--replicas", type=_bounds, metavar="LEAST..MOST", help="bounds of the figure (default: 1..100)"),
        parser.add_argument(
            "--up-after-ms", type=not_negative, metavar="MS", help="time in which every reading needs more (default: 60000)"
        ),
        parser.add_argument(
            "--down-after-ms", type=not_negative, metavar="MS", help="time in which every reading needs fewer (default: 300000)"
        ),
        parser.add_argument("--members-per-replica", type=count, metavar="N", help="members in one replica (default: 1)"),
    ]


def limits_of(flags: Mapping[str, Any]) -> Limits:
    """Return the limits that the flags describe; a missing or None flag has its default."""
    given = {name: flags[name] for name in ("lag_per_replica", "members_per_replica") if flags.get(name) is not None}
    waits = {"up_after_ms": "up_after_s", "down_after_ms": "down_after_s"}
    given |= {name: flags[flag] / 1000 for flag, name in waits.items() if flags.get(flag) is not None}
    least, most = flags.get("replicas") or (1, 100)
    return Limits(**{"lag_per_replica": 1000, **given}, least=least, most=most)


def _bounds(text: str) -> tuple[int, int]:
    least, dots, most = text.partition("..")
    if not dots or not (least.isdecimal() and most.isdecimal()) or not int(least) <= int(most) or int(most) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not LEAST..MOST, such as 2..20")
    return int(least), int(most)
