"""The objects that the modules of the consumer protocol share, and the function that writes records."""

from __future__ import annotations

import asyncio
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from random import Random

import attrs

from consumer_coord.broker.classic_rebalance import Rebalance
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.consumer_group.assignors.spec import ServerAssignor
from consumer_coord.broker.consumer_group.records import Record, encode
from consumer_coord.broker.consumer_group.topics_image import MetadataImage
from consumer_coord.broker.group_settings import GroupSettings
from consumer_coord.broker.group_store import GroupStore
from consumer_coord.broker.purgatory import Purgatory, complete
from consumer_coord.broker.shard import Shard
from consumer_coord.wire.offsets_topic import GroupMetadataKey


@attrs.frozen(eq=False)
class Coordination:
    """The objects that a coordinator's modules share; the first of ``assignors`` is the default."""

    config: BrokerConfig
    group_settings: GroupSettings
    store: GroupStore
    purgatory: Purgatory
    rebalance: Rebalance
    image: MetadataImage
    assignors: Mapping[str, ServerAssignor]
    random: Random
    wall_clock_ms: Callable[[], int]

    @property
    def default_assignor(self) -> str:
        """The assignor of a group in which no member names an assignor."""
        return next(iter(self.assignors))

    def new_member_id(self) -> str:
        """Return a UUID in Kafka's form: 22 characters of URL-safe base64."""
        drawn = uuid.UUID(int=self.random.getrandbits(128), version=4)
        return urlsafe_b64encode(drawn.bytes).rstrip(b"=").decode()


@attrs.define(eq=False)
class Change:
    """The records that a request writes to a shard, and the functions to call when the log has these records.

    ``before`` is called before the records are applied to the group, and ``after`` afterwards. If the log refuses the records,
    neither function is called. With ``replayed=False`` (a conversion to a classic group), the records are not applied, and
    ``after`` sets the new state.
    """

    shard: Shard
    records: list[Record] = attrs.field(factory=list)
    before: list[Callable[[], None]] = attrs.field(factory=list)
    after: list[Callable[[], None]] = attrs.field(factory=list)
    replayed: bool = True
    #: Records of classic groups, written after the other records and never replayed.
    encoded: list[tuple[bytes, bytes | None]] = attrs.field(factory=list)


def write(store: GroupStore, change: Change) -> asyncio.Future[int]:
    """Write a change to the log and apply it; return a future that receives the error code when the append ends.

    A change without records waits for the appends in progress, because the request may have read their state.
    """
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def written() -> None:
        for step in change.before:
            step()
        if change.replayed:
            for record in change.records:
                change.shard.apply(record)
                if isinstance(record[0], GroupMetadataKey):
                    change.shard.stored_groups.pop(record[0].group, None)
        for step in change.after:
            step()

    encoded = [*map(encode, change.records), *change.encoded]
    if encoded:
        store.append(change.shard, encoded, lambda error_code, _: complete(done, error_code), written=written)
    else:
        written()
        store.when_appended(change.shard, lambda error_code, _: complete(done, error_code))
    return done
