"""Queries in virtual time: the rules hold for the production planner, and each planted bug breaks one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs
import pytest

from consumer_coord.environment import now
from consumer_coord.simulation.scenario import Fault
from consumer_coord.spark import query as queries
from consumer_coord.spark.batch_ends import Answer, Ends, NothingNew, Unknown, plan
from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.ledger import NONE, Holding, Key, Ledger
from consumer_coord.spark.log_ends import EndOffsets
from consumer_coord.spark.query import Query
from consumer_coord.spark.topic_check import TopicCheck
from consumer_coord.topic_partition import TopicPartition
from tests.support.simulation.queries import CONTINUOUS, NOW, ONCE, QueryScenario, draw, play_queries

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(12))
def test_the_rules_hold(seed: int) -> None:
    outcome = play_queries(draw(seed))
    assert outcome.violation is None, "\n".join(outcome.lines[-40:])


def test_equal_scenarios_have_equal_timelines() -> None:
    assert play_queries(draw(3)).lines == play_queries(draw(3)).lines


#: Histories that went wrong once, or that a table of kinds does not bring about.
PLAYED: Mapping[str, Mapping[str, Any]] = {
    "created again while a leader was missing": {
        "seed": 1105,
        "triggers": (ONCE,),
        "faults": (Fault(10_652, "no leader", 0, 2, 12_000), Fault(17_562, "recreate", 1, 2, 4_000)),
    },
    "deleted while a killed member owned it": {
        "triggers": (CONTINUOUS,),
        "faults": (Fault(4_000, "delete", 0, 2, 9_000),),
        "killed_at": 50,
    },
    "deleted after its owner was killed": {
        "seed": 2,
        "triggers": (NOW,),
        "pattern": False,
        "faults": (Fault(4_000, "delete", 0, 2, 3_000),),
        "killed_at": 66,
    },
    "all brokers away for a minute": {"triggers": (CONTINUOUS,), "faults": (Fault(5_000, "all away", 0, 1, 60_000),)},
    "a run while all brokers are away for a minute": {"triggers": (NOW,), "faults": (Fault(500, "all away", 0, 1, 60_000),)},
    "a run while a partition has no leader": {"triggers": (NOW,), "faults": (Fault(100, "no leader", 0, 1, 10_000),)},
    "other ports, one broker after the other": {
        "triggers": (CONTINUOUS,),
        "faults": tuple(Fault(at_ms, "other port", number, 1, 3_000) for number, at_ms in enumerate((5_000, 15_000, 25_000))),
    },
}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("name", PLAYED)
def test_the_rules_hold_in_a_history(name: str, protocol: str) -> None:
    outcome = play_queries(scenario(protocol=protocol, **PLAYED[name]))
    assert outcome.violation is None, "\n".join(outcome.lines[-40:])


def test_a_run_waits_for_a_leader_and_reads_everything() -> None:
    """The topic's records are read although its partition got a leader only 10 s after the run had begun."""
    outcome = play_queries(scenario(**PLAYED["a run while a partition has no leader"]))
    first = next(line for line in outcome.lines if "query-0.1: ended well" in line)
    assert 10 < float(first.split()[0]) < 15, first


def test_a_query_goes_on_while_a_broker_gets_other_ports() -> None:
    faults = tuple(Fault(at_ms, "other port", 0, 1, 3_000) for at_ms in (5_000, 20_000, 35_000))
    outcome = play_queries(scenario(*faults, triggers=(CONTINUOUS,)))
    assert not [line for line in outcome.lines if "failed" in line]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("trigger", [NOW, ONCE, CONTINUOUS])
def test_a_kill_after_any_frame_of_the_first_run_loses_nothing(trigger: str, protocol: str) -> None:
    """In each phase: the look-ups before the join, the join, the targets, starts, commits, and end offsets of a batch."""
    for frame in range(5, 120, 23):
        outcome = play_queries(
            scenario(Fault(4_000, "delete", 0, 2, 9_000), triggers=(trigger,), protocol=protocol, killed_at=frame)
        )
        assert outcome.violation is None, "\n".join([f"killed after frame {frame}", *outcome.lines[-40:]])


def old_end_offsets(patch: pytest.MonkeyPatch) -> None:
    """An idle query plans from end offsets that are up to a second old (processAllAvailable returns too early)."""
    look, answer = EndOffsets.look, plan

    async def lazy(self: EndOffsets, positions: Mapping[TopicPartition, int], *rest: Any) -> bool:
        recent = now() - self.view.at_s < 1.0 and self.view.ends.keys() >= positions.keys()
        return recent or await look(self, positions, *rest)

    def unaware(ledger: Ledger, start: Offsets, ends: Ends, *rest: Any) -> Answer:
        return answer(ledger, start, attrs.evolve(ends, current=True), *rest)

    patch.setattr(EndOffsets, "look", lazy)
    patch.setattr(queries, "plan", unaware)


def forgetful_restarts(patch: pytest.MonkeyPatch) -> None:
    """A restarted query promises nothing that its checkpoint names, so a topic that was deleted meanwhile is lost silently."""
    finish = Ledger.finish
    patch.setattr(Ledger, "finish", lambda self, finished, subscribed: finish(self, finished, ()))


def kept_targets(patch: pytest.MonkeyPatch) -> None:
    """A run waits for the records of a topic that is gone."""
    missed = Ledger.missed

    def keep(self: Ledger, keys: Collection[Key]) -> Ledger:
        return missed(self, [key for key in keys if not self.entries[key].unread])

    patch.setattr(Ledger, "missed", keep)


def unknown_is_nothing(patch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer has no new records."""

    def guess(*arguments: Any) -> Answer:
        answer = plan(*arguments)
        return NothingNew() if isinstance(answer, Unknown) else answer

    patch.setattr(queries, "plan", guess)


def unproven_commits(patch: pytest.MonkeyPatch) -> None:
    """What the checkpoint proves finished is not committed after the membership was lost."""
    accept = Ledger.accept

    def forget(self: Ledger, partition: TopicPartition, holding: Holding) -> Ledger:
        return accept(self, partition, attrs.evolve(holding, confirmed=NONE))

    patch.setattr(Ledger, "accept", forget)


def replays_go_further(patch: pytest.MonkeyPatch) -> None:
    """A batch that runs again also has what was written since."""

    async def replay(self: Query, end: Offsets) -> Offsets:
        self.core.application.record_poll()
        further: Mapping[str, Any] = {
            topic: attrs.evolve(part, spans={one: attrs.evolve(span, end=span.end + 1) for one, span in part.spans.items()})
            for topic, part in end.topics.items()
        }
        return attrs.evolve(end, topics=further)

    patch.setattr(Query, "check_replay", replay)


def hasty_batches(patch: pytest.MonkeyPatch) -> None:
    """A batch is planned before it is known whether a topic of the checkpoint is gone, and the next batch does not name it."""
    patch.setattr(TopicCheck, "undecided", lambda self, ledger: frozenset())


def scenario(*faults: Fault, **changes: Any) -> QueryScenario:
    base = QueryScenario(
        seed=1,
        protocol="classic",
        triggers=(NOW,),
        fail_on_data_loss=True,
        pattern=True,
        interval_s=0.2,
        max_offsets=None,
        max_poll_interval_ms=300_000,
        faults=faults,
    )
    return attrs.evolve(base, **changes)


#: Kills at many moments of the first runs.
KILLS = tuple(Fault(at_ms, "kill") for at_ms in range(700, 30_000, 900))

PLANTED = [
    pytest.param(old_end_offsets, scenario(triggers=(CONTINUOUS,)), "nothing new", id="old end offsets"),
    pytest.param(
        forgetful_restarts,
        scenario(*(Fault(at_ms, "delete", 0, 2, 9_000) for at_ms in range(3_000, 34_000, 10_000))),
        "silent loss",
        id="forgetful restarts",
    ),
    pytest.param(
        kept_targets,
        scenario(Fault(1_000, "delete", 0, 1, 40_000), fail_on_data_loss=False, max_offsets=7),
        "fails without a reason",
        id="kept targets",
    ),
    pytest.param(
        unknown_is_nothing,
        scenario(Fault(20_000, "hang", 0, 0, 12_000), Fault(20_000, "hang", 1, 0, 12_000), triggers=(CONTINUOUS,)),
        "nothing new",
        id="unknown is nothing new",
    ),
    pytest.param(
        unproven_commits,
        scenario(triggers=(CONTINUOUS,), max_poll_interval_ms=8_000, interval_s=12.0),
        "commits",
        id="unproven commits",
    ),
    pytest.param(
        hasty_batches,
        scenario(**PLAYED["created again while a leader was missing"]),
        "silent loss",
        id="hasty batches",
    ),
    pytest.param(replays_go_further, scenario(*KILLS, max_offsets=7), "same rows", id="replays go further"),
]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(("plant", "played", "rule"), PLANTED)
def test_a_planted_bug_breaks_a_rule(
    monkeypatch: pytest.MonkeyPatch, plant: Any, played: QueryScenario, rule: str, protocol: str
) -> None:
    played = attrs.evolve(played, protocol=protocol)
    sound = play_queries(played)
    assert sound.violation is None, "\n".join(sound.lines[-40:])
    plant(monkeypatch)
    outcome = play_queries(played)
    assert outcome.violation is not None
    assert outcome.violation.rule == rule, outcome.violation
