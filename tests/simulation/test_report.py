"""The report of a run shows the run in the form of a recording."""

from __future__ import annotations

from consumer_coord.simulation.deployment import Deployment, play_deployment
from consumer_coord.simulation.report import as_recording
from consumer_coord.watch.history import State


def test_the_report_tells_the_owners_the_rebalances_and_the_unowned_time_of_the_run() -> None:
    result = play_deployment(Deployment(members=4, topics={"orders": 8, "bills": 3}, churn="loss", session_timeout_ms=6_000))
    recording = as_recording(result)
    state = State()
    for message in recording.messages:
        state.apply(message)
    group = state.as_message()["groups"]["group"]
    told = {
        (topic, number): owner
        for topic, runs in group["owners"].items()
        for first, last, owner in runs
        for number in range(first, last + 1)
    }
    places = [(topic, number) for topic, count in result.deployment.topics.items() for number in range(count)]
    assert told == {places[each.partition]: each.member for each in result.ownerships if each.to is None}
    assert [row[0] for row in group["rebalances"]] == [generation for _, generation, _ in result.rebalances]
    assert sum(row[4] for row in group["rebalances"]) == sum(phase.moved for phase in result.phases) > 0
    assert group["unowned"][0] == 0
    assert abs(group["unowned"][1] - sum(phase.unowned_partition_s for phase in result.phases)) < 0.2
    # The member that was lost is gone.
    assert sorted(group["members"]) == sorted({str(each.member) for each in result.ownerships if each.to is None})
    assert recording.meta.table is not None
    assert [row[0] for row in recording.meta.table.rows] == ["start", "loss"]
    assert recording.messages[-1]["at"] == round(result.ended_s, 3)
