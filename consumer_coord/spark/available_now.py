"""The owners of partitions during a run that reads up to its targets, including partitions that move between two members.

Only planners of such runs import this module, because other planners do not send DescribeGroups.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from consumer_coord.admin.groups import CONSUMER, GroupDescription, describe_group
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, flatten


async def unowned(
    core: ConsumerCoordinator, held: Set[TopicPartition], targets: Mapping[TopicPartition, int], timeout_ms: float
) -> frozenset[TopicPartition]:
    """Return the partitions that move from one member to another and have uncommitted records below the offsets ``targets``."""
    group = await describe_group(core.cluster, core.config.group_id, Deadline.after(timeout_ms))
    waiting = on_their_way(group, core.member_id, held, targets.keys())
    commits = await core.committed(waiting, timeout_ms) if waiting else {}
    return frozenset(one for one, commit in commits.items() if targets.get(one, 0) > (commit.offset if commit else 0))


def on_their_way(
    group: GroupDescription, member_id: str, held: Set[TopicPartition], wanted: Set[TopicPartition]
) -> frozenset[TopicPartition]:
    """Return the ``wanted`` partitions that have no certain owner. This member owns the partitions ``held``.

    In the consumer protocol, a partition stays in the owner's assignment until the owner has revoked the partition, and the
    target assignment names the next owner. In the classic protocol, a stable group shows the target assignment, and a
    rebalancing group shows no assignment.
    """
    me = [member for member in group.members if member.member_id == member_id]
    others = {one for member in group.members if member not in me for one in member.partitions}
    if group.type == CONSUMER:
        settled = group.epoch == group.target_epoch
        share = {one for member in me for one in flatten(member.target or {})}
    else:
        settled = group.state == "Stable"
        share = {one for member in me for one in member.partitions}
    if not settled:
        return frozenset(wanted)
    nobodys, coming, going = wanted - held - others, (share - held) & wanted, held - share
    return frozenset(nobodys | coming | going)
