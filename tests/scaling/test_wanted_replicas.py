"""The formula for the wanted number of replicas: its bounds, its smoothing, and when it holds its figure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.scaling.wanted_replicas import Limits, Reading, Wanted, advance, hold, needed

LIMITS = Limits(lag_per_replica=100, least=2, most=20, up_after_s=60, down_after_s=300)


def reading(at: float, lag: int, *, partitions: int = 50, members: int = 5, unknown: int = 0) -> Reading:
    return Reading(at=at, lag=lag, partitions_with_lag=min(partitions, lag), members=members, unknown=unknown)


def after(readings: Sequence[Reading], limits: Limits = LIMITS) -> Wanted:
    wanted = Wanted()
    for one in readings:
        wanted = advance(wanted, one, limits)
    return wanted


def test_a_replica_for_each_share_of_the_lag_within_the_bounds() -> None:
    assert needed(reading(0, 501), LIMITS) == 6
    assert needed(reading(0, 500), LIMITS) == 5
    assert needed(reading(0, 0), LIMITS) == 2
    assert needed(reading(0, 1_000_000), LIMITS) == 20
    assert needed(reading(0, 1_000_000, partitions=7), LIMITS) == 7
    assert needed(reading(0, 1_000_000, partitions=1), LIMITS) == 2, "least is the stronger bound"
    assert needed(reading(0, 0), attrs.evolve(LIMITS, least=0)) == 0
    two = attrs.evolve(LIMITS, members_per_replica=2)
    assert needed(reading(0, 1_000_000, partitions=7), two) == 4
    assert needed(attrs.evolve(reading(0, 1_000_000, partitions=3), shared=True), LIMITS) == 20


def test_the_first_figure_is_what_runs() -> None:
    assert after([reading(0, 0, members=9)]).replicas == 9
    assert after([reading(0, 0, members=9)], attrs.evolve(LIMITS, members_per_replica=2)).replicas == 5
    assert after([reading(0, 0, members=90)]).replicas == 20
    assert after([reading(0, 400, members=0)]).replicas == 4, "no rebalance is to be spared"


def test_it_rises_to_the_least_and_falls_to_the_most_that_all_readings_needed() -> None:
    begun = [reading(0, 500), reading(30, 900), reading(60, 700), reading(80, 1900)]
    assert after(begun).replicas == 5
    assert after([*begun, reading(90, 1900)]).replicas == 7, "30 to 90 s needed 9, 7, 19, 19"
    ending = [reading(0, 500), reading(30, 200), reading(200, 300), reading(329, 200)]
    assert after(ending).replicas == 5
    assert after([*ending, reading(330, 200)]).replicas == 3
    assert after([*ending[:3], reading(210, 500), reading(220, 200), reading(519, 200)]).replicas == 5, "the wait began again"


def test_a_need_that_swings_changes_nothing() -> None:
    swinging = [reading(0, 500), reading(30, 900), reading(60, 200), reading(90, 900)]
    assert after(swinging).replicas == 5
    assert after([*swinging, reading(149, 900)]).replicas == 5
    assert after([*swinging, reading(150, 900)]).replicas == 9


def test_a_rebalance_and_a_missing_answer_hold_the_figure_and_begin_the_wait_again() -> None:
    begun = [reading(0, 500), reading(30, 900)]
    rebalancing = attrs.evolve(reading(60, 5000), settled=False)
    held = after([*begun, rebalancing])
    assert (held.replicas, held.held, held.confirmed_at) == (5, "the group rebalances", 30)
    assert after([*begun, rebalancing, reading(95, 900), reading(154, 900)]).replicas == 5
    assert after([*begun, rebalancing, reading(95, 900), reading(155, 900)]).replicas == 9
    silent = hold(after(begun), "the coordinator does not answer")
    assert (silent.replicas, silent.held) == (5, "the coordinator does not answer")
    assert advance(silent, reading(95, 900), LIMITS).replicas == 5
    assert after([rebalancing]).replicas is None
    assert hold(Wanted(), "nobody answers").replicas is None


def test_an_unknown_lag_is_not_zero() -> None:
    held = after([reading(0, 500), *(reading(at, 10, unknown=3) for at in range(30, 3000, 30))])
    assert (held.replicas, held.held) == (5, "the lag of 3 partitions is unknown")
    assert after([reading(0, 500), reading(30, 900, unknown=3), reading(90, 900, unknown=3)]).replicas == 9


LIMITED = st.builds(
    lambda per, least, more, up, down, members: Limits(
        lag_per_replica=per,
        least=least,
        most=max(1, least + more),
        up_after_s=up,
        down_after_s=down,
        members_per_replica=members,
    ),
    st.integers(1, 1000),
    st.integers(0, 5),
    st.integers(0, 30),
    st.integers(0, 120),
    st.integers(0, 600),
    st.integers(1, 4),
)
#: None: no answer.
READ = st.one_of(
    st.none(),
    st.builds(
        lambda lag, partitions, members, unknown, settled, shared: Reading(
            at=0,
            lag=lag,
            partitions_with_lag=min(lag, partitions),
            members=members,
            unknown=unknown,
            settled=settled,
            shared=shared,
        ),
        st.integers(0, 20_000),
        st.integers(1, 40),
        st.integers(0, 20),
        st.sampled_from((0, 0, 0, 2)),
        st.sampled_from((True, True, True, False)),
        st.just(False),
    ),
)


@given(LIMITED, st.lists(st.tuples(st.integers(1, 90), READ), max_size=60))
def test_every_change_rests_on_all_readings_of_its_wait(limits: Limits, course: list[tuple[int, Reading | None]]) -> None:
    """The bounds hold always; nothing but settled, complete readings in a row for the whole wait changes the figure."""
    wanted, at = Wanted(), 0.0
    #: The readings since the last hold or change.
    row: list[Reading] = []
    for gap, found in course:
        at += gap
        before = wanted
        one = None if found is None else attrs.evolve(found, at=at)
        wanted = hold(wanted, "no answer") if one is None else advance(wanted, one, limits)
        if one is None or not one.settled:
            assert wanted.replicas == before.replicas
            assert wanted.held is not None
            row.clear()
            continue
        assert wanted.replicas is not None
        assert limits.least <= wanted.replicas <= limits.most
        if wanted.held is not None:
            assert one.unknown
            assert before.replicas in (None, wanted.replicas)
            row.clear()
            continue
        assert wanted.confirmed_at == at
        row.append(one)
        running = min(limits.most, max(limits.least, math.ceil(one.members / limits.members_per_replica)))
        figure = running if before.replicas is None else before.replicas
        if wanted.replicas == figure:
            continue
        up = wanted.replicas > figure
        wait_s = limits.down_after_s if not up else 0 if one.members == 0 else limits.up_after_s
        agreed = [each for each in row if each.at >= at - wait_s]
        assert at - row[0].at >= wait_s
        for each in agreed:
            need = needed(each, limits)
            assert need >= wanted.replicas if up else need <= wanted.replicas
            assert up or not each.unknown
            cap = max(limits.least, math.ceil(each.partitions_with_lag / limits.members_per_replica))
            assert not up or wanted.replicas <= cap
        row.clear()


@given(LIMITED, st.integers(0, 5000), st.integers(1, 20), st.integers(1, 60))
def test_a_lag_that_stays_gets_what_it_needs_in_one_step(limits: Limits, lag: int, members: int, every_s: int) -> None:
    wanted, figures = Wanted(), set()
    for number in range(600 // every_s + 3):
        wanted = advance(wanted, reading(number * every_s, lag, members=members), limits)
        figures.add(wanted.replicas)
    assert wanted.replicas == needed(reading(0, lag, members=members), limits)
    assert len(figures) <= 2
