"""The topic of a name: a change counts when brokers report it twice, and an old id is never accepted again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import attrs

from consumer_coord.net.metadata import NO_TOPIC_ID, Metadata, Topic
from consumer_coord.spark.identity import HeldIds, TopicIdentity, TopicIds

OLD, NEW = uuid.UUID(int=7), uuid.UUID(int=8)
HELD = {"orders": {OLD}}


def metadata(version: int, topic_id: uuid.UUID | None) -> Metadata:
    topics = {} if topic_id is None else {"orders": Topic("orders", topic_id, False, (1,), (1,), ((1,),))}
    return Metadata(version=version, topics=topics)


@attrs.define
class Brokers:
    """The brokers answer one after the other with these ids."""

    answers: Sequence[uuid.UUID | None]
    asked: int = 0

    def refresh(self) -> Metadata:
        self.asked += 1
        return metadata(100 + self.asked, self.answers[min(self.asked, len(self.answers)) - 1])


def recreated(
    identity: TopicIdentity, brokers: Brokers, known: Metadata, told: TopicIds | None = None, held: HeldIds | None = None
) -> TopicIds:
    return identity.recreated(HELD if held is None else held, known, told or {}, brokers.refresh)


def identity() -> TopicIdentity:
    return TopicIdentity(pause=lambda seconds: None)


def test_without_a_reason_nobody_is_asked() -> None:
    brokers = Brokers([OLD])
    one = identity()
    for version in (1, 1, 2):
        assert recreated(one, brokers, metadata(version, OLD), {"orders": OLD}) == {}
    assert recreated(one, brokers, metadata(3, None), {}) == {}, "a topic that is gone is not made again"
    assert brokers.asked == 0


def test_another_id_in_the_metadata_or_with_the_end_offsets_is_asked_for_twice() -> None:
    for known, told in ((metadata(1, NEW), {}), (metadata(1, OLD), {"orders": NEW})):
        brokers = Brokers([NEW])
        assert recreated(identity(), brokers, known, told) == {"orders": NEW}
        assert brokers.asked == 2


def test_a_partition_that_has_the_new_id_already_does_not_hide_one_that_has_the_old() -> None:
    brokers = Brokers([NEW])
    assert recreated(identity(), brokers, metadata(1, NEW), held={"orders": {OLD, NEW}}) == {"orders": NEW}
    assert recreated(identity(), brokers, metadata(1, NEW), held={"orders": {NEW}}) == {}


def test_a_hint_is_followed_once() -> None:
    one, brokers = identity(), Brokers([OLD])
    one.hint()
    assert recreated(one, brokers, metadata(1, OLD)) == {}
    assert recreated(one, brokers, metadata(1, OLD)) == {}
    assert brokers.asked == 1
    one.hint()
    assert recreated(one, Brokers([NEW]), metadata(1, OLD)) == {"orders": NEW}


def test_a_broker_that_lags_behind_changes_nothing() -> None:
    assert recreated(identity(), Brokers([OLD]), metadata(1, NEW)) == {}
    assert recreated(identity(), Brokers([NEW, OLD]), metadata(1, NEW)) == {}, "they do not agree yet"
    one, brokers = identity(), Brokers([OLD])
    one.replaced(OLD)
    assert recreated(one, brokers, metadata(1, OLD), {"orders": OLD}, {"orders": {NEW}}) == {}
    assert brokers.asked == 0, "the query knows that this one is gone"


def test_brokers_that_know_no_ids_say_nothing() -> None:
    brokers = Brokers([NO_TOPIC_ID])
    assert recreated(identity(), brokers, metadata(1, NO_TOPIC_ID)) == {}
    assert recreated(identity(), brokers, metadata(1, NEW), held={"orders": {NO_TOPIC_ID}}) == {}
    assert brokers.asked == 0
