"""The rules that the plan of any assignor must satisfy.

A plan that breaks one of these rules harms the application. A partition that is assigned twice is read twice, and an unassigned
partition is not read. In the cooperative protocol, a partition that is assigned before its owner has revoked it has two owners
(``ConsumerCoordinator.validateCooperativeAssignment`` in Kafka). Every plan is checked before it is sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice

from assignors.base import Cluster, Member, Plan, RebalanceProtocol

#: Maximum number of violations in a message, because an invalid plan often has thousands of violations with the same cause.
MESSAGES = 10


class InvalidPlanError(ValueError):
    """Raised for a plan that must not be sent; ``problems`` names member, topic and partition of each violation."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        super().__init__("the plan is not valid: " + "; ".join(self.problems))


def verify(
    cluster: Cluster,
    members: Mapping[str, Member],
    plan: Plan,
    protocol: RebalanceProtocol = RebalanceProtocol.EAGER,
) -> None:
    """Raise :class:`InvalidPlanError` if a plan is not complete or not safe, has duplicates, or disregards subscriptions.

    *Complete*: every member has an entry, and each partition of each existing topic that a member subscribes to is assigned.
    *Safe*, in the cooperative protocol: a partition with an owner is assigned only to this owner. The plan may omit the
    partition for this round, so that its owner revokes the partition. The owner is the member that claims the partition
    (``Member.owned``) with the highest generation; conflicting claims with the same generation do not count.
    """
    found = list(islice(violations(cluster, members, plan, protocol), MESSAGES + 1))
    if found:
        if len(found) > MESSAGES:
            found[MESSAGES:] = ["and more"]
        raise InvalidPlanError(found)


def violations(cluster: Cluster, members: Mapping[str, Member], plan: Plan, protocol: RebalanceProtocol) -> Iterator[str]:
    """Yield each violation in a plan as a sentence; see :func:`verify`."""
    given_plan: object = plan  # A custom assignor may not have been checked by a type checker.
    if not isinstance(given_plan, Mapping):
        yield f"the plan is {plan!r}: expected member -> topic -> partitions"
        return
    yield from [f"member {member_id!r} has no entry" for member_id in members if member_id not in given_plan]
    shares: defaultdict[str, list[tuple[str, Sequence[int]]]] = defaultdict(list)
    strangers: set[str] = set()
    for member_id, topics in given_plan.items():
        if member_id not in members:
            yield f"there is no member {member_id!r} in the group"
            continue
        if not isinstance(topics, Mapping):
            yield f"member {member_id!r} is given {topics!r}: expected topic -> partitions"
            continue
        for topic in sorted(set(topics).difference(members[member_id].topics)):
            if topics[topic]:
                strangers.add(topic)
                yield f"member {member_id!r} is given topic {topic!r}, to which it does not subscribe"
        for topic, partitions in topics.items():
            if partitions:
                shares[topic].append((member_id, partitions))
    yield from _violations_of_topics(cluster, members, shares, strangers, protocol is RebalanceProtocol.COOPERATIVE)


def _violations_of_topics(
    cluster: Cluster,
    members: Mapping[str, Member],
    shares: Mapping[str, Sequence[tuple[str, Sequence[int]]]],
    strangers: Set[str],
    cooperative: bool,
) -> Iterator[str]:
    """Yield the violations by topic; ``strangers``: topics that are assigned to a member without a subscription to them."""
    claims = _claims(members) if cooperative else {}
    # A topic that is assigned to a subscriber certainly has a subscriber. So look up only the other topics in the
    # subscriptions.
    doubtful = strangers | {topic for topic, count in cluster.partitions.items() if count and topic not in shares}
    subscribed = {topic for topic in doubtful if any(topic in member.topics for member in members.values())}
    for topic in sorted(shares.keys() | subscribed):
        expected = topic in subscribed or topic not in strangers
        count = cluster.partitions.get(topic, 0)
        given = shares.get(topic, [])
        yield from _violations_of_topic(topic, count, expected, given, claims.get(topic, []))
        if cooperative:
            yield from _unsafe(topic, given, claims.get(topic, []))


_Claims = dict[str, list[tuple[int, str, Sequence[int]]]]


def _claims(members: Mapping[str, Member]) -> _Claims:
    """Return topic -> (generation, member id, partitions) for each claim."""
    claims: _Claims = {}
    for member_id, member in members.items():
        for topic, partitions in member.owned.items():
            claims.setdefault(topic, []).append((member.generation, member_id, partitions))
    return claims


def _violations_of_topic(
    topic: str,
    count: int,
    subscribed: bool,
    shares: Sequence[tuple[str, Sequence[int]]],
    claims: Sequence[tuple[int, str, Sequence[int]]],
) -> Iterator[str]:
    expected = range(count if subscribed else 0)
    # The plan may omit a partition so that its owner revokes the partition; the next round assigns it.
    held = [partitions for _, _, partitions in claims]
    try:
        union = set().union(*[partitions for _, partitions in shares])
        once = len(union) == sum([len(partitions) for _, partitions in shares])
        exist = not union or (min(union) >= 0 and max(union) < count)
        if once and exist and (len(union) == len(expected) or not set(expected).difference(union, *held)):
            return
    except TypeError:
        pass  # The loop below reports values that are not numbers or not sequences of numbers.
    owner_of: dict[int, str] = {}
    for member_id, partitions in shares:
        given: object = partitions
        if not isinstance(given, Iterable):
            yield f"member {member_id!r} is given {given!r} of topic {topic!r}: expected a sequence of partitions"
            continue
        for partition in given:
            if not isinstance(partition, int) or not 0 <= partition < count:
                has = f"the topic's partition count is {count}" if count else "the topic does not exist"
                yield f"member {member_id!r} is given partition {partition!r} of topic {topic!r}, but {has}"
            elif partition in owner_of:
                other = owner_of[partition]
                twice = "twice" if other == member_id else f"as well as {other!r}"
                yield f"member {member_id!r} is given partition {partition} of topic {topic!r} {twice}"
            else:
                owner_of[partition] = member_id
    for partition in sorted(set(expected).difference(owner_of, *held)):
        yield f"partition {partition} of topic {topic!r} is not assigned"


def _unsafe(
    topic: str, shares: Sequence[tuple[str, Sequence[int]]], claims: Sequence[tuple[int, str, Sequence[int]]]
) -> Iterator[str]:
    """Yield the assignments of partitions to new members before their owners have revoked the partitions."""
    if not claims:
        return
    newest = max([generation for generation, _, _ in claims])
    kept = {member_id: partitions for generation, member_id, partitions in claims if generation == newest}
    owners: dict[int, str | None] | None = None
    for member_id, partitions in shares:
        own = kept.get(member_id)
        if partitions is own or partitions == own:
            continue  # A claim of the newest generation rules out every other owner.
        if owners is None:
            owners = _owners(claims)
        for partition in partitions:
            owner = owners.get(partition)
            if owner is not None and owner != member_id:
                yield (
                    f"member {member_id!r} is given partition {partition} of topic {topic!r}, which {owner!r} has not revoked"
                )


def _owners(claims: Sequence[tuple[int, str, Sequence[int]]]) -> dict[int, str | None]:
    """Return partition -> its owner by the highest generation, or None if claims of one generation conflict."""
    owners: dict[int, str | None] = {}
    by_generation: dict[int, list[tuple[str, Sequence[int]]]] = {}
    for generation, member_id, partitions in claims:
        by_generation.setdefault(generation, []).append((member_id, partitions))
    for generation in sorted(by_generation):
        fresh: dict[int, str | None] = {}
        for member_id, partitions in by_generation[generation]:
            for partition in partitions:
                if fresh.get(partition, member_id) != member_id or (partition in fresh and fresh[partition] is None):
                    fresh[partition] = None
                else:
                    fresh[partition] = member_id
        owners.update(fresh)
    return owners
