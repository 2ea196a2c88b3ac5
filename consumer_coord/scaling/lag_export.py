"""``lag``, which shows the lag of groups, or prints it as CSV with ``--export``, again and again if asked."""

from __future__ import annotations

import argparse
import asyncio

from consumer_coord.admin.commands import ExitCode, chosen_groups, warn
from consumer_coord.admin.lag import show_lag
from consumer_coord.admin.lag_flags import lag_policy
from consumer_coord.admin.report import GroupReport, report_groups
from consumer_coord.errors import ConfigurationError, CoordinatorError, RetriableError
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline
from consumer_coord.scaling.lag_csv import header, rows_of


async def lag_command(cluster: ClusterClient, arguments: argparse.Namespace, deadline: Deadline) -> ExitCode:
    """Run ``lag``: show the lag of each group, or with ``--export`` print it as CSV."""
    return await (export_lag(cluster, arguments) if arguments.export else show_lag(cluster, arguments, deadline))


async def export_lag(cluster: ClusterClient, arguments: argparse.Namespace) -> ExitCode:
    """Print readings. Only in the first one, an error ends the command; later, it is a reading without an answer."""
    if arguments.json or arguments.max_lag is not None or arguments.max_lag_seconds is not None:
        raise ConfigurationError("--export prints CSV: remove --json, --max-lag and --max-lag-seconds")
    if arguments.count is not None and arguments.interval_ms is None:
        raise ConfigurationError("--count of an export needs --interval-ms")
    outcome, seen = ExitCode.DONE, 0
    print(header(), end="", flush=True)
    while True:
        deadline = Deadline.after(arguments.timeout)
        chosen = await chosen_groups(cluster, arguments, deadline)
        found = await report_groups(cluster, chosen.groups, deadline, lag_policy(arguments))
        now_s = cluster.environment.wall_clock_ms() / 1000
        print("".join(rows_of(group, one, now_s) for group, one in found.items()), end="", flush=True)
        for group, one in found.items():
            if isinstance(one, CoordinatorError):
                if not seen and not isinstance(one, RetriableError):
                    raise one
                warn(f"Warning: group '{group}': {one}")
                outcome = ExitCode.INCOMPLETE
            elif _incomplete(one):
                outcome = ExitCode.INCOMPLETE
        seen += 1
        if arguments.interval_ms is None or seen == arguments.count:
            return outcome
        await asyncio.sleep(arguments.interval_ms / 1000)


def _incomplete(report: GroupReport) -> bool:
    return any(row.lag.records is None and not row.lag.deleted for row in report.rows)
