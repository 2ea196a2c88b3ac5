"""A group with what its coordinator tells about each member, and the settings of the brokers, as values; no I/O."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from consumer_coord.admin.groups import CONSUMER
from consumer_coord.errors import CoordinatorError
from consumer_coord.net.metadata import Broker
from consumer_coord.topic_partition import TopicPartition

#: The values of ``group.protocol``.
CLASSIC_PROTOCOL, CONSUMER_PROTOCOL = "classic", "consumer"


@attrs.frozen
class MigratingMember:
    """A member, as its coordinator describes it; what the coordinator does not tell is None.

    ``protocol`` is the member's ``group.protocol``. ``target`` is what the broker's assignor gives to the member (KIP-848).

    The other fields are of the group's assignor, in a classic group: ``version`` of the member's subscription, ``owned``
    partitions when it last joined (members that rebalance eagerly own none then), and the sizes of the assignor's user data in
    its subscription and in its assignment, in bytes.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    protocol: str | None
    assigned: frozenset[TopicPartition] = frozenset()
    target: frozenset[TopicPartition] | None = None
    epoch: int | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    version: int | None = None
    owned: frozenset[TopicPartition] | None = None
    user_data: int | None = None
    assignment_data: int | None = None

    @property
    def name(self) -> str:
        """The static id, or the member id, which begins with the client id in classic groups."""
        return self.instance_id or self.member_id


@attrs.frozen
class MigratingGroup:
    """A classic group, or a group of the consumer protocol, perhaps with classic members.

    ``protocol_type`` is ``consumer`` unless the members are no consumers (Kafka Connect). ``epoch`` is None in a classic group.
    ``knows_kip848``: whether the coordinator answered ConsumerGroupDescribe.
    """

    group_id: str
    type: str
    protocol_type: str
    state: str
    assignor: str
    coordinator: Broker
    members: tuple[MigratingMember, ...]
    epoch: int | None = None
    knows_kip848: bool = True

    @property
    def modern(self) -> bool:
        """True if the broker assigns."""
        return self.type == CONSUMER

    def of(self, protocol: str) -> tuple[MigratingMember, ...]:
        """Return the members with this ``group.protocol``."""
        return tuple(member for member in self.members if member.protocol == protocol)

    @property
    def unsettled(self) -> str | None:
        """Why the group's members do not all have their partitions; None if they have."""
        if self.state not in ("Stable", "Empty"):
            return f"the group is {self.state}"
        late = [member.name for member in self.members if member.target is not None and member.target != member.assigned]
        if late:
            return f"{', '.join(sorted(late))} {'has' if len(late) == 1 else 'have'} other partitions than the target"
        return None


@attrs.frozen
class BrokerSettings:
    """The settings of the brokers and of the group that concern a migration.

    ``brokers`` is broker -> name -> value, or why they are unknown. ``of_group`` are the group's own settings.
    """

    brokers: Mapping[Broker, Mapping[str, str] | CoordinatorError]
    of_group: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def unknown(self) -> Mapping[Broker, CoordinatorError]:
        """The brokers whose settings are unknown."""
        return {broker: found for broker, found in self.brokers.items() if isinstance(found, CoordinatorError)}

    def values(self, name: str) -> Mapping[Broker, str]:
        """Return the value of a setting on each broker that told it."""
        return {
            broker: found[name]
            for broker, found in self.brokers.items()
            if not isinstance(found, CoordinatorError) and name in found
        }

    def at(self, broker: Broker, name: str) -> str | None:
        """Return the value that counts for the group at a broker: the group's own, else the broker's."""
        own = self.of_group.get(name.removeprefix("group."))
        return own if own is not None else self.values(name).get(broker)
