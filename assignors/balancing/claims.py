"""Find the owner of each partition from the members' claims.

A *claim* is a member's report that it owns a partition, with the generation of that assignment (KIP-341, KIP-792). The newest
claim of a partition wins. If two claims have the same generation, neither wins. A claim is dropped if its topic was deleted, if
its partition does not exist, or if its generation is higher than the group's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assignors.base import Cluster
from assignors.subscriptions import Subscriptions
from consumer_coord import lazy_attrs as attrs

#: One member's claims: topic -> partitions, and the generation of that assignment.
MemberClaims = tuple[Mapping[str, Sequence[int]], int]


@attrs.frozen
class Claims:
    """The owned partitions of a group's members, after conflicts between their claims have been resolved.

    ``kept``: for each member (by its position) its owned partitions of topics that it subscribes to. ``free``: topic -> the
    partitions without an owner, ascending; topics without free partitions are absent. ``bound``: topic -> the free partitions
    that some member may still read, because two members claim them or the owner no longer subscribes. In the cooperative
    protocol, bound partitions must not be assigned yet.
    """

    kept: list[Mapping[str, Sequence[int]]]
    free: dict[str, Sequence[int]]
    bound: dict[str, set[int]]


@attrs.frozen
class _Claim:
    generation: int
    position: int
    partitions: Sequence[int]
    subscribed: bool


def resolve(cluster: Cluster, subscriptions: Subscriptions, claims: Sequence[MemberClaims]) -> Claims:
    """Find the owners of the partitions; ``claims`` has an entry per member, in the order of ``subscriptions.members``."""
    kept, foreign = _of_existing_topics(cluster, subscriptions, claims)
    claimed: dict[str, list[Sequence[int]]] = {topic: [] for topic in subscriptions.topics}
    for owned in kept:
        for topic, partitions in owned.items():
            claimed[topic].append(partitions)
    free, contradictory = _unclaimed(cluster, claimed)
    bound: dict[str, set[int]] = {}
    # Sorted, because the plan must not depend on the order of a set, which differs between processes.
    for topic in sorted(contradictory | foreign.keys()):
        of_subscribers = [
            _Claim(claims[position][1], position, owned[topic], True) for position, owned in enumerate(kept) if topic in owned
        ]
        _resolve_topic(topic, cluster.partitions[topic], of_subscribers + foreign.get(topic, []), kept, free, bound)
    return Claims(kept, free, bound)


def _of_existing_topics(
    cluster: Cluster, subscriptions: Subscriptions, claims: Sequence[MemberClaims]
) -> tuple[list[Mapping[str, Sequence[int]]], dict[str, list[_Claim]]]:
    """Return each member's claims for its subscribed topics; and topic -> the claims of members that do not subscribe to it."""
    kept: list[Mapping[str, Sequence[int]]] = [{} for _ in subscriptions.members]
    foreign: dict[str, list[_Claim]] = {}
    for position, (owned, generation) in enumerate(claims):
        if not owned or (cluster.generation is not None and generation >= cluster.generation):
            continue
        if subscriptions.has_all(position, owned) and all(owned.values()):
            kept[position] = owned
            continue
        own = kept[position] = {}
        row = subscriptions.rows[subscriptions.class_of[position]]
        for topic, partitions in owned.items():
            bit = subscriptions.bit_of[topic] if len(partitions) else 0
            if bit & row:
                own[topic] = partitions
            elif bit:
                foreign.setdefault(topic, []).append(_Claim(generation, position, partitions, False))
    return kept, foreign


def _unclaimed(cluster: Cluster, claimed: Mapping[str, Sequence[Sequence[int]]]) -> tuple[dict[str, Sequence[int]], set[str]]:
    """Return topic -> partitions without a claim, and the topics with partitions that are claimed twice or do not exist."""
    free: dict[str, Sequence[int]] = {}
    contradictory: set[str] = set()
    for topic, shares in claimed.items():
        count = cluster.partitions[topic]
        if not shares:
            free[topic] = range(count)
            continue
        union = set().union(*shares)
        total = sum(map(len, shares))
        if len(union) != total or (union and (min(union) < 0 or max(union) >= count)):
            contradictory.add(topic)
        elif total < count:
            free[topic] = sorted(set(range(count)) - union)
    return free, contradictory


def _resolve_topic(
    topic: str,
    count: int,
    claims: Sequence[_Claim],
    kept: list[Mapping[str, Sequence[int]]],
    free: dict[str, Sequence[int]],
    bound: dict[str, set[int]],
) -> None:
    """Resolve the owners of one topic's partitions one by one."""
    owned: dict[int, list[int]] = {}
    lost: set[int] = set()
    for partition, newest in _newest_claims(count, claims).items():
        if newest is not None and newest.subscribed:
            owned.setdefault(newest.position, []).append(partition)
        else:
            lost.add(partition)
    for claim in claims:
        if claim.subscribed:
            others = dict(kept[claim.position])
            del others[topic]
            if claim.position in owned:
                others[topic] = sorted(owned[claim.position])
            kept[claim.position] = others
    free.pop(topic, None)
    left = sorted(set(range(count)).difference(*owned.values()))
    if left:
        free[topic] = left
    if lost:
        bound[topic] = lost


def _newest_claims(count: int, claims: Sequence[_Claim]) -> dict[int, _Claim | None]:
    """Return partition -> its claim of the highest generation, or None if two claims have this generation."""
    newest: dict[int, _Claim | None] = {}
    generations: dict[int, int] = {}
    for claim in claims:
        for partition in set(claim.partitions):
            if not 0 <= partition < count:
                continue
            known = generations.get(partition)
            if known is None or claim.generation > known:
                generations[partition] = claim.generation
                newest[partition] = claim
            elif claim.generation == known:
                newest[partition] = None
    return newest
