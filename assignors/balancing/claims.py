"""Resolve which member owns which partition, from the members' claims.

A claim counts by the generation in which it was made (KIP-341, KIP-792): the newest claim of a partition wins; if two claims
have the same generation, neither wins. A claim that cannot be true is dropped: a deleted topic, a partition that does not
exist, a generation that the group has not reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assignors import lazy_attrs as attrs
from assignors.base import Cluster
from assignors.subscriptions import Subscriptions

#: One member's claims: topic -> partitions, and the generation of that assignment.
MemberClaims = tuple[Mapping[str, Sequence[int]], int]


@attrs.frozen
class Claims:
    """The claims of a group without conflicts.

    ``kept``: for each member (by its position) the partitions it owns, of topics that it subscribes to. ``free``: topic -> the
    partitions without an owner, ascending; topics without any are absent. ``bound``: topic -> the free partitions that some
    member may still read, because two members claim them or the owner no longer subscribes. The cooperative protocol must not
    assign bound partitions yet.
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
    """Resolve which member owns what; ``claims`` has an entry per member, in the order of ``subscriptions.members``."""
    kept: list[Mapping[str, Sequence[int]]] = [{} for _ in subscriptions.members]
    claimed: dict[str, list[Sequence[int]]] = {topic: [] for topic in subscriptions.topics}
    odd_topics: set[str] = set()
    foreign: dict[str, list[_Claim]] = {}
    for position, (owned, generation) in enumerate(claims):
        if not owned or (cluster.generation is not None and generation >= cluster.generation):
            continue
        if subscriptions.has_all(position, owned) and all(owned.values()):
            kept[position] = owned
            for topic, partitions in owned.items():
                claimed[topic].append(partitions)
            continue
        own: dict[str, Sequence[int]] = {}
        kept[position] = own
        row = subscriptions.rows[subscriptions.class_of[position]]
        for topic, partitions in owned.items():
            if not len(partitions):
                continue
            bit = subscriptions.bit_of[topic]
            if bit & row:
                own[topic] = partitions
                claimed[topic].append(partitions)
            elif bit:
                foreign.setdefault(topic, []).append(_Claim(generation, position, partitions, False))
                odd_topics.add(topic)
    free: dict[str, Sequence[int]] = {}
    for topic, shares in claimed.items():
        count = cluster.partitions[topic]
        if not shares:
            free[topic] = range(count)
            continue
        union = set().union(*shares)
        total = sum(map(len, shares))
        if len(union) != total or (union and (min(union) < 0 or max(union) >= count)):
            odd_topics.add(topic)
        elif total < count:
            free[topic] = sorted(set(range(count)) - union)
    bound: dict[str, set[int]] = {}
    for topic in odd_topics:
        disputed = [
            _Claim(claims[position][1], position, owned[topic], True) for position, owned in enumerate(kept) if topic in owned
        ]
        _resolve_topic(topic, cluster.partitions[topic], disputed + foreign.get(topic, []), kept, free, bound)
    return Claims(kept, free, bound)


def _resolve_topic(
    topic: str,
    count: int,
    claims: Sequence[_Claim],
    kept: list[Mapping[str, Sequence[int]]],
    free: dict[str, Sequence[int]],
    bound: dict[str, set[int]],
) -> None:
    """Resolve the owners of one topic's partitions one by one."""
    newest: dict[int, int] = {}
    owner: dict[int, _Claim | None] = {}
    for claim in claims:
        for partition in set(claim.partitions):
            if not 0 <= partition < count:
                continue
            known = newest.get(partition)
            if known is None or claim.generation > known:
                newest[partition] = claim.generation
                owner[partition] = claim
            elif claim.generation == known:
                owner[partition] = None
    owned: dict[int, list[int]] = {}
    lost: set[int] = set()
    for partition, holder in owner.items():
        if holder is not None and holder.subscribed:
            owned.setdefault(holder.position, []).append(partition)
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
