"""Bugs planted in ``process`` are found by drawn histories. Without its bug the same history keeps every rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from consumer_coord.consumer.tracking import MemberTracking
from consumer_coord.finished_offsets_text import Ranges
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.process.asyncio_driver import AsyncProcess
from consumer_coord.process.dead_letters import LetterSender
from consumer_coord.process.failure_policy import FailurePolicy
from consumer_coord.process.offset_to_commit import Holding
from consumer_coord.process.processing import Processing
from consumer_coord.process.work import Lane, Record, Work
from consumer_coord.record_tracker import TrackedReading
from consumer_coord.simulation.drawing import draw_scenario, with_process, with_protocol
from consumer_coord.simulation.scenario import Scenario
from consumer_coord.topic_partition import TopicPartition
from tests.support.simulation.planting import assert_found, former

SEEDS = (*range(60), 52_000_176)

Patch = pytest.MonkeyPatch


def _commit_what_was_delivered(patch: Patch) -> None:
    """The committed offset is the position, whatever runs."""
    patch.setattr(Work, "to_commit", lambda self, holding: None)


def _ignore_the_metadata(patch: Patch) -> None:
    """The next owner handles what the former one had finished above the committed offset."""
    begin = former(Processing, "_begin")

    def ignorant(self: Processing, partition: TopicPartition, reading: TrackedReading) -> None:
        start = attrs.evolve(reading.start, metadata="")
        begin(self, partition, attrs.evolve(reading, start=start))

    patch.setattr(Processing, "_begin", ignorant)


def _let_keys_overtake(patch: Patch) -> None:
    """Records of one key, or of one partition, are handled at the same time."""
    lane_of = former(Work, "_lane")

    def shared(self: Work, holding: Holding, key: Any, *, exclusive: bool) -> Lane:
        lane: Lane = lane_of(self, holding, key, exclusive=False)
        return lane

    patch.setattr(Work, "_lane", shared)


def _name_one_offset_too_many(patch: Patch) -> None:
    """The last run of finished offsets in a commit's metadata has the offset after it, too."""
    ranges = Holding.ranges

    def generous(self: Holding) -> Ranges:
        found = list(ranges(self))
        return [*found[:-1], (found[-1][0], found[-1][1] + 1)] if found else found

    patch.setattr(Holding, "ranges", generous)


def _believe_that_a_letter_arrives(patch: Patch) -> None:
    """A record counts as finished when its letter is produced, before the broker has acknowledged it."""
    produce = former(LetterSender, "_produce")

    def hasty(self: LetterSender, letter: Any) -> None:
        produce(self, letter)
        self.take_answer(letter, None)

    patch.setattr(LetterSender, "_produce", hasty)


def _let_a_retry_wait_alone(patch: Patch) -> None:
    """While a record waits for its next attempt, later records of its key are handled."""
    retry = Work.retry

    def leaving(self: Work, record: Record, due: float) -> bool:
        counts = retry(self, record, due)
        if record.lane.busy is record:
            record.lane.busy = None
            former(Work, "_turn")(self, record.lane)
        return counts

    patch.setattr(Work, "retry", leaving)


def go_back_to_the_start_of_the_reading(patch: Patch) -> None:
    """The simulation found this bug in the real code: ``process`` begins again before what is finished in a partition."""

    def to_continue(self: Processing) -> Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]:
        found = {one: (holding.number, self.work.to_commit(holding)) for one, holding in self.work.holdings.items()}
        return {one: (number, at) for one, (number, at) in found.items() if at is not None}

    patch.setattr(Processing, "to_continue", to_continue)


def _give_up_early(patch: Patch) -> None:
    """The last step follows the first attempt."""
    patch.setattr(FailurePolicy, "delay_s", lambda self, *about: None)


def _do_not_commit_at_the_end(patch: Patch) -> None:
    """What was finished since the last commit of the interval is not committed when ``process`` ends."""

    async def commit(self: MemberTracking, timeout_s: float) -> bool:
        return True

    patch.setattr(MemberTracking, "commit", commit)


def _do_not_look_at_the_group(patch: Patch) -> None:
    """The simulation found this bug in the real code: a retry starts although its partition was lost in the same moment."""
    patch.setattr(AsyncProcess, "_go_on", former(AsyncProcess, "_fill"))


#: name -> the bug, and the rules that may be broken.
PLANTED: dict[str, tuple[Callable[[Patch], None], set[str]]] = {
    "commit what was delivered": (_commit_what_was_delivered, {"undone"}),
    "ignore the metadata": (_ignore_the_metadata, {"handled"}),
    "let keys overtake": (_let_keys_overtake, {"order"}),
    "name one offset too many": (_name_one_offset_too_many, {"undone"}),
    "believe that a letter arrives": (_believe_that_a_letter_arrives, {"undone", "order"}),
    "let a retry wait alone": (_let_a_retry_wait_alone, {"order"}),
    "go back to the start of the reading": (go_back_to_the_start_of_the_reading, {"handled", "rewind", "liveness"}),
    "give up early": (_give_up_early, {"undone", "order", "liveness"}),
    "do not look at the group": (_do_not_look_at_the_group, {"callbacks"}),
    "do not commit at the end": (_do_not_commit_at_the_end, {"agreement"}),
}

#: Where a finding was last: played first. When the drawing changes, all seeds are played until one finds it.
_FOUND_BY = {"give up early": 1, "do not look at the group": 52_000_176}


def scenario_of(seed: int) -> Scenario:
    """Return the history of a seed."""
    return with_process(with_protocol(draw_scenario(seed), "any"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    assert_found(name, PLANTED[name], scenario_of, SEEDS, _FOUND_BY.get(name), monkeypatch)
