"""Draw a scenario from a seed: the group and its faults.

Each purpose has a separate random generator, so removing a fault does not change the other random choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import attrs

from consumer_coord.simulation.exactly_once import RELAY
from consumer_coord.simulation.faults import KINDS
from consumer_coord.simulation.member_spec import CONSUMER_SESSION_MS, MemberSpec
from consumer_coord.simulation.scenario import Fault, Fetching, Scenario

#: Pairs of assignor lists, as in a rolling upgrade: most of the members that are there at the start have the first list; the
#: others, and those that start or restart later, have the second.
ASSIGNOR_LISTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("cooperative-sticky",), ("cooperative-sticky",)),
    (("cooperative-sticky",), ("cooperative-sticky",)),
    (("cooperative-sticky",), ("cooperative-sticky",)),
    (("range",), ("range",)),
    (("roundrobin",), ("roundrobin",)),
    (("sticky",), ("sticky",)),
    (("range",), ("range", "cooperative-sticky")),
    (("range", "cooperative-sticky"), ("cooperative-sticky",)),
    (("sticky",), ("cooperative-sticky", "sticky")),
    (("cooperative-sticky", "sticky"), ("cooperative-sticky",)),
)


def draw_scenario(seed: int, *, members: int | None = None, faults: int | None = None, faults_end_ms: int = 55_000) -> Scenario:
    """Draw the scenario of a seed.

    ``members`` and ``faults`` replace the numbers that the seed would choose (``faults=0``: no faults).
    """
    random = Random(f"{seed}-scenario")
    topics = {f"topic-{index}": random.randint(1, 12) for index in range(random.randint(1, 3))}
    names = tuple(topics)
    count = random.randint(2, 12) if members is None else members
    lists = random.choice(ASSIGNOR_LISTS)
    specs = _draw_members(random, count, names, lists)
    drawn = draw_together(
        random,
        count=random.randint(3, 12) if faults is None else faults,
        churn=0 if faults == 0 else random.randint(3, 6),
        begin_ms=3_000,
        end_ms=faults_end_ms,
    )
    if faults != 0:
        specs = _unruly(Random(f"{seed}-applications"), specs)
        apart = draw_apart(seed, begin_ms=3_000, end_ms=faults_end_ms)
        drawn = tuple(sorted((*drawn, *apart), key=lambda fault: fault.at_ms))
    return Scenario(
        seed=seed,
        members=tuple(specs),
        later_assignors=lists[1],
        topics=topics,
        brokers=random.choice((1, 3, 3, 3)),
        faults=drawn,
        faults_end_ms=faults_end_ms,
        initial_rebalance_delay_ms=random.choice((0, 0, 500, 3_000)),
        latency_ms=random.choice((0.5, 2.0, 10.0)),
    )


def _draw_members(
    random: Random, count: int, names: Sequence[str], lists: tuple[tuple[str, ...], tuple[str, ...]]
) -> list[MemberSpec]:
    """Draw the members of a group.

    ``names`` are the topics. ``lists`` are the assignors of most members, and those of all other members.
    """
    session_ms = random.choice((6_000, 10_000, 15_000))
    # In this time, a member must receive a heartbeat response that reports the rebalance, poll, and run a callback.
    rebalance_ms = random.choice((10_000, 15_000, 30_000))
    static = random.choice((0.0, 0.0, 0.5, 1.0))
    patterns = random.choice((0.0, 0.0, 0.3))
    specs: list[MemberSpec] = []
    for number in range(count):
        is_static = random.random() < static
        wanted = names if random.random() < 0.7 else tuple(random.sample(names, random.randint(1, len(names))))
        specs.append(
            MemberSpec(
                name=f"member-{number + 1}",
                topics=tuple(sorted(wanted)),
                # Static members have no pattern, because a static member that returns with a changed subscription gets its old
                # assignment without a rebalance (Kafka's rule), so a topic created since then might have no owner.
                pattern="topic-.*" if random.random() < patterns and not is_static else None,
                assignors=lists[random.random() < 0.3],
                instance_id=f"instance-{number + 1}" if is_static else None,
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=session_ms // 3,
                rebalance_timeout_ms=rebalance_ms,
                max_poll_interval_ms=random.choice((8_000, 20_000, 60_000)),
                poll_every_ms=random.choice((150, 400, 1_000)),
                batch=random.choice((5, 20, 100)),
                commit=random.choice(("sync", "async", "interval", "revoke")),
                commit_every_ms=random.choice((500, 2_000, 5_000)),
                callback_ms=random.choice((0, 0, 0, 50, 500)),
            )
        )
    return specs


#: The protocols that ``with_protocol`` sets: for the first members, and for members that start later or again.
_PROTOCOLS = {
    "consumer": ("consumer", None),
    "mixed": (None, None),
    "upgrade": ("classic", "consumer"),
    "downgrade": ("consumer", "classic"),
}


def with_protocol(scenario: Scenario, protocol: str) -> Scenario:
    """Return the same simulation run with members of the consumer protocol (KIP-848).

    ``protocol`` decides who uses this protocol: ``consumer`` for all members, ``mixed`` for some, ``upgrade`` for members that
    start later or again, ``downgrade`` for the first members. With ``any`` the seed decides.
    """
    random = Random(f"{scenario.seed}-protocol")
    if protocol == "any":
        protocol = random.choice(("classic", "consumer", "consumer", *_PROTOCOLS))
    if protocol == "classic":
        return scenario
    first, later = _PROTOCOLS[protocol]
    members = tuple(
        attrs.evolve(
            spec,
            protocol=first or random.choice(("classic", "consumer")),
            # After a failover, Kafka applies the group's session timeout to classic members of a group with the consumer
            # protocol. These members do not know that timeout.
            session_timeout_ms=min(spec.session_timeout_ms, CONSUMER_SESSION_MS),
            heartbeat_interval_ms=min(spec.heartbeat_interval_ms, CONSUMER_SESSION_MS // 3),
        )
        for spec in scenario.members
    )
    return attrs.evolve(scenario, members=members, later_protocol=later)


def with_more_commits(scenario: Scenario) -> Scenario:
    """Return the same simulation run, but some applications with automatic commits also commit during each batch."""
    random = Random(f"{scenario.seed}-commits-too")
    members = tuple(
        attrs.evolve(spec, commits_too=spec.commit == "auto" and random.random() < 0.5) for spec in scenario.members
    )
    return attrs.evolve(scenario, members=members)


#: Drawn mode of commits -> the mode in runs with truncations, where members commit either with the leader epoch of each
#: position, or automatically.
_WITH_EPOCHS = {"store": "auto", "interval": "all", "revoke": "sync", "later": "async"}
#: Maximum number of members that send Fetch requests, because each member sends many requests.
_MOST_FETCHING = 5


def with_metrics(scenario: Scenario) -> Scenario:
    """Return the same simulation run; in a quarter of the seeds, the brokers subscribe to the members' metrics (KIP-714)."""
    return attrs.evolve(scenario, metrics=Random(f"{scenario.seed}-metrics").random() < 0.25)


def _with_faults(scenario: Scenario, more: Sequence[Fault]) -> Scenario:
    """Return the same simulation run with further faults, in the order of their times."""
    return attrs.evolve(scenario, faults=tuple(sorted((*scenario.faults, *more), key=lambda fault: fault.at_ms)))


def with_answers(scenario: Scenario, answers: str) -> Scenario:
    """Return the same simulation run; with ``edited``, brokers also edit their responses to some kinds of requests."""
    if answers == "honest":
        return scenario
    random = Random(f"{scenario.seed}-answers")
    edits = [
        Fault(
            at_ms=random.randint(0, scenario.faults_end_ms),
            kind="edit",
            target=random.randrange(1_000_000),
            value=random.randrange(1_000),
            for_ms=random.choice((300, 2_000, 8_000)),
        )
        for _ in range(random.choice((1, 2, 4)))
    ]
    return _with_faults(scenario, edits)


#: Kind of fault of a clock -> how long it may last, in milliseconds.
_CLOCKS: Mapping[str, Sequence[int]] = {"drift": (3_000, 12_000, 40_000), "leap": (0,)}


def with_clocks(scenario: Scenario, clocks: str) -> Scenario:
    """Return the same simulation run; with ``drifting``, the clocks of some members drift and jump."""
    if clocks == "steady":
        return scenario
    random = Random(f"{scenario.seed}-clocks")
    more = []
    for _ in range(random.choice((1, 3, 5))):
        kind = random.choice(list(_CLOCKS))
        at_ms, for_ms = random.randint(0, scenario.faults_end_ms), random.choice(_CLOCKS[kind])
        more.append(Fault(at_ms, kind, random.randrange(1_000), random.randrange(1_000), for_ms))
    return _with_faults(scenario, more)


#: How long a partition of the network may last, in milliseconds.
_LINKS_MS: Sequence[int] = (1_000, 6_000, 12_000, 20_000)


def with_links(scenario: Scenario, links: str) -> Scenario:
    """Return the same simulation run; with ``partitioned``, some members and brokers do not reach each other for a while."""
    if links == "whole":
        return scenario
    random = Random(f"{scenario.seed}-links")
    more = []
    for _ in range(random.choice((1, 3, 5))):
        kind, at_ms = random.choice(("one-way", "split")), random.randint(0, scenario.faults_end_ms)
        for_ms = int(random.choice(_LINKS_MS) * random.uniform(0.5, 1.5))
        more.append(Fault(at_ms, kind, random.randrange(1_000), random.randrange(1_000), for_ms))
    return _with_faults(scenario, more)


def with_calls(scenario: Scenario, calls: str) -> Scenario:
    """Return the same simulation run; with ``several``, other tasks of some members make calls at any moment.

    In a third of the seeds, half of the members also call ``assign`` in ``on_assign``.
    """
    if calls == "one":
        return scenario
    random = Random(f"{scenario.seed}-calls")
    more = []
    for _ in range(random.choice((3, 10, 30))):
        kind, at_ms = random.choice(("beside", "beside", "beside", "quit")), random.randint(0, scenario.faults_end_ms)
        more.append(Fault(at_ms, kind, random.randrange(1_000), random.randrange(1_000)))
    by_hand = Random(f"{scenario.seed}-by-hand")
    for _ in range(by_hand.choice((0, 1, 1, 2))):
        begin_ms, for_ms = by_hand.randint(0, scenario.faults_end_ms - 5_000), by_hand.randint(3_000, 30_000)
        for_ms = min(for_ms, scenario.faults_end_ms - begin_ms)
        more.append(Fault(begin_ms, "by-hand", 0, by_hand.randrange(1_000), for_ms))
    for _ in range(by_hand.choice((0, 2, 6))):
        at_ms = by_hand.randint(0, scenario.faults_end_ms)
        more.append(Fault(at_ms, "commit-absent", by_hand.randrange(1_000), by_hand.randrange(1_000)))
    assigning = Random(f"{scenario.seed}-assigns")
    share = assigning.choice((0.0, 0.0, 0.5))
    members = tuple(attrs.evolve(spec, assigns=assigning.random() < share) for spec in scenario.members)
    return _with_faults(attrs.evolve(scenario, members=members, calm_calls=True), more)


def with_reads(scenario: Scenario, reads: str) -> Scenario:
    """Return the same simulation run with members that read columns, and so send Fetch requests.

    ``reads``: ``columns`` for all or some members, ``messages`` for no member. With ``any`` the seed decides.
    """
    if reads == "any":
        reads = Random(f"{scenario.seed}-any-reads").choice(("messages", "columns"))
    if reads == "messages":
        return scenario
    random = Random(f"{scenario.seed}-reads")
    kind = random.choice(("mixed", "transactions", "truncations", "truncations"))
    aged = random.choice((11, 12, 13, 18))
    small = random.random() < 0.5
    fetching = Fetching(
        versions=tuple(random.choice((aged, aged, 18)) for _ in range(scenario.brokers)),
        transactions=kind == "transactions",
        session_slots=random.choice((1_000, 1_000, 2, 0)),
        racks=random.random() < 0.3,
        # If fetch_max_bytes is small, use 1, because a response below fetch_min_bytes arrives only after fetch_wait_max_ms.
        fetch_min_bytes=1 if small else random.choice((1, 1, 300)),
        fetch_wait_max_ms=random.choice((500, 2_000, 5_000)),
        fetch_max_bytes=random.choice((300, 1_000)) if small else 50 << 20,
        max_partition_fetch_bytes=random.choice((150, 600)) if small else 1 << 20,
        queued_max_messages_kbytes=random.choice((1, 64 << 10)),
    )
    bounded = Random(f"{scenario.seed}-bounded").choice((0, 20, 100))
    members = []
    for spec in scenario.members[: random.randint(2, _MOST_FETCHING)]:
        columns = kind != "mixed" or random.random() < 0.6
        changes: dict[str, Any] = {
            "bounded": bounded,
            "rack": f"rack-{random.randrange(scenario.brokers)}",
            "batch": random.choice((1, 3, 20, 100)),
        }
        if kind == "truncations":
            changes["commit"] = _WITH_EPOCHS.get(spec.commit, spec.commit)
            changes["reset"] = "earliest" if spec.reset == "none" else spec.reset
        members.append(attrs.evolve(spec, columns=columns, **(changes if columns else {})))
    faults = scenario.faults
    if kind == "truncations":
        # After a failure, the application commits the offset of the failed record, which has no leader epoch.
        faults = tuple(fault for fault in faults if fault.kind != "trip")
    apart = draw_apart(scenario.seed, begin_ms=3_000, end_ms=scenario.faults_end_ms, fetching=True)
    if kind != "truncations":
        apart = tuple(fault for fault in apart if fault.kind != "truncate")
    faults = tuple(sorted((*faults, *apart), key=lambda fault: fault.at_ms))
    return attrs.evolve(scenario, members=tuple(members), faults=faults, fetching=fetching)


#: Kinds of faults that mean nothing to an application that calls ``process``, or that make offsets ambiguous.
_NOT_PROCESSED = frozenset({"recreate", "cut", "trip", "absent", "truncate", "beside", "quit", "by-hand", "commit-absent"})
_MOST_PROCESSING = 6


#: Applications that only poll and commit: what is drawn for them is what they do with the records.
_STEADY: Mapping[str, Any] = {
    "commit": "sync",
    "reset": "earliest",
    "unruly": 0,
    "eof": False,
    "columns": False,
    "bounded": 0,
    "commits_too": False,
    "assigns": False,
}


def with_process(scenario: Scenario, order: str = "any") -> Scenario:
    """Return the same simulation run with members that call ``process`` with an ``order``; with ``any`` the seed decides."""
    random = Random(f"{scenario.seed}-process")
    order = random.choice(("key", "key", "partition", "none")) if order == "any" else order
    members = tuple(
        attrs.evolve(
            spec,
            process=order,
            on_failure=random.choice(("letters", "letters", "skip", "stop")),
            batch=random.choice((5, 10, 50)),
            **_STEADY,
            poll_timeout_ms=0,
        )
        for spec in scenario.members[:_MOST_PROCESSING]
    )
    faults = tuple(fault for fault in scenario.faults if fault.kind not in _NOT_PROCESSED)
    return attrs.evolve(scenario, members=members, faults=faults, calm_calls=False)


#: Kinds of faults after which it is open what exactly-once means, and those of applications that do not use transactions.
_NOT_TRANSACTED = frozenset(
    {
        "recreate",
        "cut",
        "trip",
        "truncate",
        "trim",
        "delete",
        "subscribe",
        "commit",
        "beside",
        "quit",
        "by-hand",
        "commit-absent",
    }
)
_MOST_TRANSACTING = 5


def is_transactional(seed: int) -> bool:
    """Return whether the members of a seed write in transactions, if the seed decides."""
    return Random(f"{seed}-any-transactions").random() < 0.25


def with_transactions(scenario: Scenario) -> Scenario:
    """Return the same simulation run with members that read, process and write in transactions."""
    random = Random(f"{scenario.seed}-transactions")
    topics = {name: min(count, 4) for name, count in list(scenario.topics.items())[:2]}
    timeout_ms = random.choice((6_000, 10_000, 20_000))
    polls = random.choice((1, 1, 3, 5))
    members = tuple(
        attrs.evolve(
            spec,
            topics=(*topics, RELAY),
            pattern=None,
            transactions=polls,
            transaction_timeout_ms=timeout_ms,
            batch=random.choice((3, 10, 30)),
            poll_every_ms=random.choice((100, 300, 800)),
            **_STEADY,
            waits_for_all=False,
            poll_timeout_ms=random.choice((0, 300, 1_000)),
        )
        for spec in scenario.members[:_MOST_TRANSACTING]
    )
    apart = draw_apart(scenario.seed, begin_ms=3_000, end_ms=scenario.faults_end_ms, transactional=True)
    kept = (fault for fault in scenario.faults if fault.kind not in _NOT_TRANSACTED)
    return attrs.evolve(
        scenario,
        members=members,
        topics=topics,
        faults=tuple(sorted((*kept, *(apart if scenario.faults else ())), key=lambda fault: fault.at_ms)),
        # Some records of the topics, too, belong to transactions, which commit or abort.
        fetching=Fetching(transactions=True),
        calm_calls=False,
    )


def _unruly(random: Random, specs: Sequence[MemberSpec]) -> list[MemberSpec]:
    """Make applications unruly in two thirds of the runs: they cancel calls and raise exceptions in callbacks."""
    if random.random() < 0.33:
        return list(specs)
    per_mille = random.choice((10, 50, 150, 400))
    reset = random.choice(("earliest", "earliest", "earliest", "latest", "none", "by_duration:PT1S"))
    return [
        attrs.evolve(
            spec,
            unruly=random.choice((0, per_mille, per_mille)),
            reset=reset,
            commit=random.choice((spec.commit, "auto", "auto", "store", "all", "later")),
            poll_timeout_ms=random.choice((0, 0, 70, 500, 3_000, 12_000)),
            waits_for_all=random.random() < 0.3,
            batch=random.choice((spec.batch, 1)),
            eof=_reports_ends(random),
            close_ms=random.choice((5_000, 500, 1_500)),
        )
        for spec in specs
    ]


def _reports_ends(random: Random) -> bool:
    # The first number was for a setting that is gone. Without it, a seed would draw another scenario than it always drew.
    random.randrange(3)
    return random.random() < 0.2


def draw_together(random: Random, *, count: int, churn: int, begin_ms: int, end_ms: int) -> tuple[Fault, ...]:
    """Draw ``churn`` faults that cause a rebalance, and ``count`` faults of any kind that has a weight; return them by time."""
    weights = {name: kind.weight for name, kind in KINDS.items() if kind.weight}
    churning = {name: weight for name, weight in weights.items() if KINDS[name].churn}
    drawn = random.choices(list(churning), list(churning.values()), k=churn)
    drawn += random.choices(list(weights), list(weights.values()), k=count)
    faults = []
    for kind in drawn:
        at_ms = random.randrange(begin_ms, end_ms)
        # Some faults are short and have no consequences; other faults last longer than a session timeout.
        for_ms = int(random.choice((200, 1_000, 4_000, 12_000, 25_000)) * random.uniform(0.5, 1.5))
        faults.append(Fault(at_ms, kind, random.randrange(1_000), random.randrange(1_000), min(for_ms, end_ms - at_ms)))
    if random.random() < 0.5 and faults:
        # Faults close to each other find more bugs than the same faults spread over a minute.
        middle = random.choice(faults).at_ms
        faults = [
            attrs.evolve(fault, at_ms=min(end_ms - 1, middle + random.randrange(1_500))) if random.random() < 0.5 else fault
            for fault in faults
        ]
    return tuple(sorted(faults, key=lambda fault: (fault.at_ms, fault.kind, fault.target)))


def draw_apart(
    seed: int, *, begin_ms: int, end_ms: int, fetching: bool = False, transactional: bool = False
) -> tuple[Fault, ...]:
    """Draw the faults whose kinds have separate generators, so that a new kind does not change the faults of other kinds.

    ``fetching`` and ``transactional``: draw the kinds for members that send Fetch requests, or that write in transactions,
    instead of all other kinds.
    """
    drawn: list[Fault] = []
    for name, kind in KINDS.items():
        if kind.counts and kind.fetching is fetching and kind.transactional is transactional:
            random = Random(f"{seed}-{name}s")
            of_kind = [
                Fault(random.randrange(begin_ms, end_ms), name, random.randrange(1_000), random.randrange(1_000))
                for _ in range(random.choice(kind.counts))
            ]
            for fault in of_kind:
                for_ms = int(random.choice(kind.lasts_ms) * random.uniform(0.5, 1.5))
                drawn.append(attrs.evolve(fault, for_ms=min(for_ms, end_ms - fault.at_ms)))
    return tuple(drawn)
