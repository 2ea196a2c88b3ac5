"""The flags of the commands about groups; most are those of ``kafka-consumer-groups``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from consumer_coord.admin.commands import ExitCode
from consumer_coord.admin.lag_flags import add_lag_flags
from consumer_coord.admin.properties import add_client_flags, count, not_negative, positive, utf8
from consumer_coord.setting_names import did_you_mean

#: States of groups of every type (Kafka's ``GroupState``).
_STATES = (
    "Assigning",
    "CompletingRebalance",
    "Dead",
    "Empty",
    "NotReady",
    "PreparingRebalance",
    "Reconciling",
    "Stable",
    "Unknown",
)
#: Types of groups (Kafka's ``GroupType``).
_TYPES = ("Classic", "Consumer", "Share", "Streams", "Unknown")


def connection_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command about groups."""
    parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT", help="brokers, separated by commas")
    add_client_flags(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")


def list_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``list``."""
    parser.add_argument(
        "--state",
        nargs="?",
        const=(),
        type=_some_of(_STATES),
        metavar="STATES",
        help="show states; with a value, only groups in these states: stable,empty",
    )
    parser.add_argument(
        "--type",
        nargs="?",
        const=(),
        type=_some_of(_TYPES),
        metavar="TYPES",
        help="show types; with a value, only groups of these types: classic,share",
    )


def describe_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``describe``."""
    _add_groups(parser)
    add_lag_flags(parser)
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--offsets", action="store_true", help="offsets and lag of each partition (the default)")
    view.add_argument("--members", action="store_true", help="the members")
    view.add_argument("--state", action="store_true", help="state, coordinator and assignor")
    parser.add_argument("--verbose", action="store_true", help="more columns: epochs, assignments, subscriptions")


def lag_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``lag``."""
    _add_groups(parser)
    add_lag_flags(parser)
    parser.add_argument("--max-lag", type=int, metavar="N", help=f"exit with {ExitCode.BEHIND} if a partition's lag is higher")
    parser.add_argument(
        "--max-lag-seconds",
        type=not_negative,
        metavar="S",
        help=f"exit with {ExitCode.BEHIND} if the first unread record of a partition is older (implies --seconds)",
    )
    live = parser.add_argument_group("live")
    live.add_argument(
        "--interval-ms",
        type=positive,
        metavar="MS",
        help="query again and again, and show rates: milliseconds between two queries (with --count: 2000)",
    )
    live.add_argument(
        "--count", type=count, metavar="N", help="number of queries after which the command ends (with --interval-ms: Ctrl-C)"
    )


def reset_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``reset``."""
    _add_groups(parser)
    scope = parser.add_argument_group("partitions to reset")
    scope.add_argument("--topic", action="append", type=utf8, metavar="TOPIC[:0,1]", help="may be repeated")
    scope.add_argument("--all-topics", action="store_true", help="all partitions for which the group has committed offsets")
    rule = parser.add_argument_group("target (choose one)")
    rule.add_argument("--to-earliest", action="store_true", help="the first record")
    rule.add_argument("--to-latest", action="store_true", help="the end")
    rule.add_argument("--to-current", action="store_true", help="the committed offset, or the end if there is none")
    rule.add_argument("--to-offset", type=int, metavar="N", help="this offset")
    rule.add_argument("--shift-by", type=int, metavar="N", help="move by this number of records; a negative number moves back")
    rule.add_argument("--to-datetime", metavar="TIME", help="the first record since YYYY-MM-DDTHH:mm:SS.sss (UTC)")
    rule.add_argument("--by-duration", metavar="PnDTnHnMnS", help="the first record of the last period, such as P1DT12H")
    rule.add_argument("--from-file", metavar="FILE", help="a CSV file that --export wrote: topic,partition,offset")
    how = parser.add_argument_group("how")
    how.add_argument("--dry-run", action="store_true", help="change nothing (the default)")
    how.add_argument("--execute", action="store_true", help="set the offsets")
    how.add_argument("--export", action="store_true", help="print CSV for --from-file")


def delete_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``delete``."""
    _add_groups(parser)


def delete_offsets_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``delete-offsets``."""
    _add_groups(parser)
    parser.add_argument("--topic", action="append", type=utf8, metavar="TOPIC[:0,1]", help="may be repeated")


def _add_groups(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("groups", nargs="*", type=utf8, metavar="GROUP", help="names of groups")
    parser.add_argument("--group", action="append", type=utf8, metavar="GROUP", help="name of a group; may be repeated")
    parser.add_argument("--all-groups", action="store_true", help="every consumer group")


def _some_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a function that splits ``stable,empty`` and refuses unknown names, ignoring case."""
    by_lower_case = {one.lower(): one for one in known}

    def split(given: str) -> tuple[str, ...]:
        names = tuple(one.strip() for one in given.split(",") if one.strip())
        for name in names:
            if name.lower() not in by_lower_case:
                hint = did_you_mean(name.capitalize(), known)
                raise argparse.ArgumentTypeError(f"unknown name {name!r}{hint}; known are {', '.join(known)}")
        return tuple(by_lower_case[name.lower()] for name in names)

    return split
