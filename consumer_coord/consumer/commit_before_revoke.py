"""The last commits of a partition that the group revokes, with automatic commits.

The reducer asks for two (:class:`~consumer_coord.consumer.reducer.LastCommit`). The first has what is finished when the
partition is no longer fetched, and on_revoke waits for its end. The second has only what on_revoke or another thread has stored
since; from then on, ``store_offsets`` accepts no position of the partition, and the partition is released when it ends. Neither
is awaited for longer than a session or a rebalance may take: after that, the group gives the partition away in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from consumer_coord import lazy_attrs as attrs
from consumer_coord.config import CoordinatorConfig
from consumer_coord.consumer.partitions import Partition, Positions, Table
from consumer_coord.group.commits import Ticket
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen(eq=False)
class LastWait:
    """A partition's wait for its commit in flight, until the loop time ``ends`` at the latest."""

    commit: Ticket
    ends: float

    def pending(self, moment: float) -> bool:
        """Return whether the partition still waits at this loop time."""
        return moment < self.ends and not self.commit.done


def limit_ms(config: CoordinatorConfig) -> int:
    """Return the time limit of a last commit."""
    return min(config.session_timeout_ms, config.rebalance_timeout_ms)


def finished_in(table: Table, finished: Positions, partitions: Collection[TopicPartition], called: bool) -> Positions:
    """Return the offsets of the last commit of partitions before or, if ``called``, after on_revoke.

    A commit that failed before on_revoke is not repeated after it.
    """
    return {one: at for one, at in finished.items() if one in partitions and not (called and at == table[one].committed)}


def waits(table: Table, partitions: Collection[TopicPartition], ends: float) -> Mapping[TopicPartition, Partition]:
    """Return those of the partitions whose commit is in flight, waiting for it; it may be an earlier automatic commit."""
    commits = {one: commit for one in partitions if (commit := table[one].commit) is not None and not commit.done}
    return {one: attrs.evolve(table[one], awaits=LastWait(commit, ends)) for one, commit in commits.items()}
