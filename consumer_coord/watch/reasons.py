"""Find the reasons for a group's rebalance in the changes between two snapshots.

JoinGroup carries a reason (KIP-800), but the coordinator only logs this reason and does not return it. So the reasons are
changes between snapshots: of members, subscriptions, topics, the assignor, or the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from consumer_coord.watch.snapshots import GroupSnapshot, MemberSnapshot

#: If there are more names than this, only their number is shown.
_MOST_NAMES = 3

#: The reason for the second round of a cooperative rebalance, for which the snapshots show no other reason.
SECOND_ROUND = "second round: revoked partitions are assigned to their new owners"
UNDER_WAY = "was in progress when the watch began"


def reasons(before: GroupSnapshot, after: GroupSnapshot) -> list[str]:
    """Return the changes between two snapshots that cause a rebalance; empty if there are no such changes."""
    found: list[str] = []
    old = {member.key: member for member in before.members}
    new = {member.key: member for member in after.members}
    joined = [member for key, member in new.items() if key not in old]
    left = [member for key, member in old.items() if key not in new]
    again = [member for key, member in new.items() if key in old and old[key].member_id != member.member_id]
    if joined:
        found.append(f"{_names(joined)} joined")
    if left:
        found.append(f"{_names(left)} left or timed out")
    if again:
        found.append(f"{_names(again)} restarted (static)")
    changed = [member for key, member in new.items() if key in old and _subscribes_anew(old[key], member)]
    if changed:
        found.append(f"{_names(changed)} changed the subscription")
    if before.assignor and after.assignor and before.assignor != after.assignor:
        found.append(f"assignor {after.assignor} instead of {before.assignor}")
    if before.type and after.type and before.type != after.type:
        found.append(f"the group changed from the {before.type.lower()} to the {after.type.lower()} protocol")
    if before.coordinator and after.coordinator and before.coordinator != after.coordinator:
        found.append(f"the coordinator moved to {after.coordinator}")
    return found


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Return a reason for each topic whose number of partitions changed."""
    return [
        f"{topic} now has {count} partitions instead of {before[topic]}"
        for topic, count in after.items()
        if topic in before and before[topic] != count
    ]


def _subscribes_anew(before: MemberSnapshot, after: MemberSnapshot) -> bool:
    if before.topics is None or after.topics is None:
        return False
    return (before.topics, before.pattern) != (after.topics, after.pattern)


def _names(members: Iterable[MemberSnapshot]) -> str:
    labels = sorted(member.label for member in members)
    if len(labels) > _MOST_NAMES:
        return f"{len(labels)} members"
    return ", ".join(labels)
