"""The faults of a simulation run: each kind is one function, registered with :func:`kind`.

A :class:`~consumer_coord.simulation.scenario.Fault` begins at ``at_ms``. If its function returns an ending, the fault ends
``for_ms`` later. After the last fault everything heals (:meth:`Nemesis.heal`): links deliver frames, brokers run, and paused
processes continue. Killed processes do not restart.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs

from consumer_coord.broker.java_hash import partition_for
from consumer_coord.broker.topics import NO_LEADER
from consumer_coord.broker.transaction_coordinator import TRANSACTION_STATE_TOPIC
from consumer_coord.simulation.application import BESIDE, CUTS, TRIPS, MemberProcess, Stall, Trip
from consumer_coord.simulation.calls import Cut
from consumer_coord.simulation.member_spec import DRIFT
from consumer_coord.simulation.record_log import RecordedLog
from consumer_coord.simulation.scenario import Fault
from consumer_coord.simulation.transacting_member import STEPS, Suspension, TransactingMember
from consumer_coord.simulation.world import World
from consumer_coord.simulation.wrong_answers import EDITED, WRONG_ANSWERS, edited
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.apis import APIS

#: A function that ends a fault.
Ending: TypeAlias = Callable[[], None]
Happen: TypeAlias = Callable[[World, Fault], Ending | None]
HappenToMember: TypeAlias = Callable[[World, Fault, MemberProcess], Ending | None]


@attrs.frozen
class Kind:
    """A kind of fault: the description, the function, and the parameters for drawing faults of this kind (see :func:`kind`)."""

    what: str
    happen: Happen
    weight: int = 0
    churn: bool = False
    counts: tuple[int, ...] = ()
    lasts_ms: tuple[int, ...] = (0,)
    fetching: bool = False
    transactional: bool = False


#: name -> kind.
KINDS: dict[str, Kind] = {}


def kind(name: str, what: str, **drawn: Any) -> Callable[[Happen], Happen]:
    """Register a kind of fault. The function starts the fault, and may return a function that ends the fault.

    The number of faults of this kind in a simulation run is one of ``counts``. A separate generator draws the number, so that a
    new kind does not change the other faults of a seed. Each fault lasts for about one of ``lasts_ms``. The oldest kinds have a
    ``weight`` instead, and are drawn together; another kind with a weight would change the scenario of every seed. ``churn``
    marks the kinds with a weight that cause a rebalance. ``fetching`` marks the kinds that are drawn only if members send Fetch
    requests, and ``transactional`` those that are drawn only if members write in transactions.
    """

    def register(happen: Happen) -> Happen:
        assert name not in KINDS, name
        KINDS[name] = Kind(what, happen, **drawn)
        return happen

    return register


def member_kind(name: str, what: str, **drawn: Any) -> Callable[[HappenToMember], Happen]:
    """Register a kind of fault of one running member. If no member is running, nothing happens."""

    def register(happen: HappenToMember) -> Happen:
        def choose(world: World, fault: Fault) -> Ending | None:
            member = _member(world, fault)
            return None if member is None else happen(world, fault, member)

        return kind(name, what, **drawn)(choose)

    return register


#: Kinds whose faults never delay a rebalance, or a request of a member that is not the target.
_HARMLESS = frozenset(
    {"start", "stop", "enforce", "commit", "cut", "trip", "farewell", "evict", "beside", "quit", "by-hand", "commit-absent"}
)
_TROUBLE_S = 45.0


class Nemesis:
    """Applies the faults of one simulation run."""

    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        self._world = world
        self._faults = faults
        self._endings: dict[int, Ending] = {}
        self._healed = False

    def begin(self) -> None:
        """Set a timer for each fault."""
        for number, fault in enumerate(self._faults):
            self._world.loop.call_at(fault.at_ms / 1000, self._happen, number, fault)

    def heal(self) -> None:
        """End all faults that are still active."""
        self._world.history.note("nemesis", "heals")
        for number in sorted(self._endings):
            self._endings[number]()
        self._endings.clear()
        self._healed = True

    def _happen(self, number: int, fault: Fault) -> None:
        if self._healed:
            return
        if fault.kind not in _HARMLESS:
            # After the fault ends, requests and rebalances may still be delayed, for example until a session has expired.
            ends = self._world.loop.time() + fault.for_ms / 1000 + _TROUBLE_S
            self._world.stage.troubled_until = max(self._world.stage.troubled_until, ends)
        reach, members = self._world.stage.reach, self._world.members.values()
        reach.meets(fault.kind, members)
        ending = KINDS[fault.kind].happen(self._world, fault)
        reach.begins(fault.kind, lasts=ending is not None)
        if ending is not None:
            self._endings[number] = ending
            self._world.loop.call_later(fault.for_ms / 1000, self._end, number, fault)

    def _end(self, number: int, fault: Fault) -> None:
        ending = self._endings.pop(number, None)
        if ending is not None:
            _note(self._world, fault, "ends")
            self._world.stage.reach.ends(fault.kind, self._world.members.values())
            ending()


def _note(world: World, fault: Fault, what: str) -> None:
    world.history.note("nemesis", f"{fault.kind} {what}")


def _member(world: World, fault: Fault) -> MemberProcess | None:
    members = [member for member in world.members.values() if member.alive and not member.closing]
    return members[fault.target % len(members)] if members else None


def _broker(world: World, number: int) -> str:
    nodes = world.cluster.kafka.nodes
    return nodes[number % len(nodes)].host


# -- faults that make the group rebalance


@kind("start", "another member starts", weight=4, churn=True)
def _start(world: World, fault: Fault) -> None:
    _note(world, fault, "")
    world.start_another()


@member_kind("stop", "a member closes normally", weight=4, churn=True)
def _stop(world: World, fault: Fault, member: MemberProcess) -> None:
    if world.alive_count > 1:
        _note(world, fault, member.spec.name)
        member.stop()


@member_kind("kill", "a member is killed", weight=4, churn=True)
def _kill(world: World, fault: Fault, member: MemberProcess) -> None:
    if world.alive_count > 1:
        member.kill()


@member_kind(
    "restart",
    "a member is killed, and starts again after the duration; a static member keeps its instance id",
    weight=6,
    churn=True,
)
def _restart(world: World, fault: Fault, member: MemberProcess) -> Ending:
    member.kill()
    return lambda: world.start_again(member.spec.name)


@kind("usurp", "a process starts with the instance id of a static member that is frozen for the duration", weight=2, churn=True)
def _usurp(world: World, fault: Fault) -> Ending | None:
    static = [one for one in world.members.values() if one.alive and not one.closing and one.spec.instance_id]
    if not static:
        return None
    former = static[fault.target % len(static)]
    former.process.freeze()
    _note(world, fault, former.spec.name)
    world.start_again(former.spec.name)
    return former.process.thaw


@member_kind("subscribe", "a member subscribes to other topics", weight=3, churn=True)
def _subscribe(world: World, fault: Fault, member: MemberProcess) -> None:
    if member.spec.pattern is None:
        topics = world.topic_names
        member.subscribe(tuple(topic for index, topic in enumerate(topics) if fault.value >> index & 1) or topics[:1])


@member_kind("enforce", "a member requests a rebalance", weight=2, churn=True)
def _enforce(world: World, fault: Fault, member: MemberProcess) -> None:
    _note(world, fault, member.spec.name)
    member.enforce_rebalance()


# -- applications


@member_kind("hang", "a member is frozen for the duration, then continues", weight=6)
def _hang(world: World, fault: Fault, member: MemberProcess) -> Ending:
    _note(world, fault, member.spec.name)
    member.process.freeze()
    return member.process.thaw


@member_kind("absent", "an application does not poll for the duration", weight=3)
def _absent(world: World, fault: Fault, member: MemberProcess) -> Ending:
    _note(world, fault, member.spec.name)
    member.absent_until = world.loop.time() + fault.for_ms / 1000
    return lambda: None


@member_kind("slow", "an application processes slowly for the duration", weight=3)
def _slow(world: World, fault: Fault, member: MemberProcess) -> Ending:
    _note(world, fault, member.spec.name)
    member.slow_ms = 100 + fault.value * 4
    return lambda: setattr(member, "slow_ms", 0)


@member_kind("commit", "a member commits at this moment", weight=5)
def _commit(world: World, fault: Fault, member: MemberProcess) -> None:
    _note(world, fault, member.spec.name)
    member.commit_now()


# -- the network


def _block(world: World, fault: Fault, pairs: Sequence[tuple[str, str]]) -> Ending:
    _note(world, fault, ", ".join(f"{source} to {target}" for source, target in pairs))
    return world.stage.kafka.block(pairs)


@member_kind("lag", "frames between two hosts take longer for the duration", weight=4)
def _lag(world: World, fault: Fault, member: MemberProcess) -> Ending:
    host, broker = member.name, _broker(world, fault.value)
    _note(world, fault, f"{host} {broker}")
    return world.stage.kafka.lag(host, broker, 50 + fault.value * 2)


@member_kind("deaf", "no frame from one broker reaches one member for the duration", weight=3)
def _deaf(world: World, fault: Fault, member: MemberProcess) -> Ending:
    return _block(world, fault, [(_broker(world, fault.value), member.name)])


@member_kind("mute", "no frame from one member reaches one broker for the duration", weight=3)
def _mute(world: World, fault: Fault, member: MemberProcess) -> Ending:
    return _block(world, fault, [(member.name, _broker(world, fault.value))])


@member_kind("cut-off", "no frame travels between a member and any broker for the duration", weight=3)
def _cut_off(world: World, fault: Fault, member: MemberProcess) -> Ending:
    return _block(world, fault, world.stage.kafka.links(member.name))


@kind("reset", "all connections of a host break", weight=5)
def _reset(world: World, fault: Fault) -> None:
    member = _member(world, fault)
    host = _broker(world, fault.value) if member is None or fault.value % 3 == 0 else member.name
    _note(world, fault, f"{host}, {world.stage.network.disconnect(host)} connections")


# -- brokers


@kind("broker-stop", "a broker crashes and restarts after the duration", weight=4)
def _broker_stop(world: World, fault: Fault) -> Ending | None:
    cluster = world.cluster
    up = cluster.brokers_up()
    if len(up) < 2:
        return None
    # Prefer the coordinator, because the failure of another broker hardly matters to a group.
    node = cluster.coordinator_of(world.stage.group_id)
    index = up[fault.target % len(up)] if node is None or fault.value % 3 == 0 else node.broker_id
    _note(world, fault, cluster.kafka.nodes[index].host)
    cluster.stop_broker(index)
    return lambda: cluster.start_broker(index)


@kind("broker-pause", "a broker is frozen for the duration", weight=3)
def _broker_pause(world: World, fault: Fault) -> Ending | None:
    index = fault.target % len(world.cluster.processes)
    process = world.cluster.processes[index]
    if process.frozen:
        return None
    _note(world, fault, process.name)
    process.freeze()
    return process.thaw


@kind("move", "another broker coordinates the group", weight=5)
def _move(world: World, fault: Fault) -> None:
    cluster = world.cluster
    up = cluster.brokers_up()
    to = up[fault.target % len(up)]
    cluster.loading_ms = fault.value if fault.value % 2 else 0
    _note(world, fault, f"to {cluster.kafka.nodes[to].host}, loading takes {cluster.loading_ms} ms")
    cluster.kafka.move_coordinator(cluster.kafka.coordinator_partition(world.stage.group_id), to)


@kind("full", "brokers cannot write for the duration", weight=2)
def _full(world: World, fault: Fault) -> Ending:
    faults = world.cluster.kafka.faults
    faults.is_full = True
    _note(world, fault, "")
    return lambda: setattr(faults, "is_full", False)


# -- topics


@kind("grow", "a topic gets more partitions", weight=2)
def _grow(world: World, fault: Fault) -> None:
    names = [name for name in world.topic_names if name in world.cluster.kafka.topics.by_name]
    if names:
        name = names[fault.target % len(names)]
        count = len(world.cluster.kafka.topics.by_name[name].partitions) + 1 + fault.value % 4
        _note(world, fault, f"{name} to {count}")
        world.cluster.kafka.grow_topic(name, count)


@kind("delete", "a topic is deleted", weight=1)
def _delete(world: World, fault: Fault) -> None:
    names = [name for name in world.topic_names if name in world.cluster.kafka.topics.by_name]
    if len(names) > 1:
        name = names[fault.target % len(names)]
        _note(world, fault, name)
        world.delete_topic(name)


@kind("create", "a topic is created", weight=1)
def _create(world: World, fault: Fault) -> None:
    _note(world, fault, "")
    world.create_topic(1 + fault.value % 6)


# -- kinds that separate generators draw


@kind("trim", "retention deletes both committed and uncommitted records", counts=(0, 0, 0, 1, 4))
def _trim(world: World, fault: Fault) -> None:
    partitions = world.cluster.partitions()
    partition = partitions[fault.target % len(partitions)]
    end = world.cluster.end_offset(partition) or 0
    before = end * (fault.value % 11) // 10
    _note(world, fault, f"{partition} before {before} of {end}")
    world.cluster.trim(partition, before)
    world.checkers.trimmed(partition, before)


@member_kind("swallow", "a connection of a member loses all frames without an error from now on", counts=(0, 0, 0, 1, 2, 4))
def _swallow(world: World, fault: Fault, member: MemberProcess) -> None:
    there, back = ((True, True), (True, False), (False, True))[fault.value // 100 % 3]
    host = world.stage.network.swallow(member.name, fault.value, there=there, back=back)
    ways = " and ".join(way for way, dead in (("there", there), ("back", back)) if dead)
    _note(world, fault, f"{member.name}, to {host}, {ways}")


@kind(
    "recreate", "a topic is deleted and created again at once, with more or fewer records than before", counts=(0, 0, 0, 0, 1)
)
def _recreate(world: World, fault: Fault) -> None:
    names = [name for name in world.topic_names if name in world.cluster.kafka.topics.by_name]
    kafka = world.cluster.kafka
    # The commits of the deleted topic remain if the coordinator has crashed, is loading the group, or cannot write.
    forgets = all(node.up for node in kafka.nodes) and not kafka.faults.is_full
    if names and forgets and world.cluster.group(world.stage.group_id) is not None:
        name = names[fault.target % len(names)]
        _note(world, fault, name)
        world.recreate_topic(name, fault.value % 40)


def _starts_again(world: World, member: MemberProcess) -> Ending:
    """Return a function that restarts a member if the member has ended by the time of the call."""

    def again() -> None:
        if member.finished and world.members[member.spec.name] is member:
            world.start_again(member.spec.name)

    return again


@member_kind(
    "stall",
    "a process is frozen inside its next callback of a kind",
    counts=(0, 0, 1, 2, 4),
    lasts_ms=(4_000, 14_000),
)
def _stall(world: World, fault: Fault, member: MemberProcess) -> None:
    callback = ("on_assign", "on_revoke", "on_lost", "on_commit")[fault.value % 4]
    after_s = (0.0, 0.05, 0.5, 2.0)[fault.value // 4 % 4]
    member.stall = Stall(callback, fault.for_ms / 1000, after_s)
    _note(world, fault, f"{member.spec.name} in {callback}")


@member_kind(
    "linger",
    "a process is frozen inside its next on_commit, mostly for longer than its session, and may join again before it returns",
    counts=(0, 0, 1),
    lasts_ms=(14_000, 20_000),
)
def _linger(world: World, fault: Fault, member: MemberProcess) -> None:
    member.stall = Stall("on_commit", fault.for_ms / 1000, (4.0, 8.0)[fault.value % 2])
    _note(world, fault, member.spec.name)


@member_kind("cut", "a call of an application is cancelled at one of its awaits", counts=(0, 0, 2, 5, 10))
def _cut(world: World, fault: Fault, member: MemberProcess) -> None:
    call, step = CUTS[fault.value % len(CUTS)], fault.value // len(CUTS) % 40
    member.cut = Cut(call, step, (0.0, 0.0, 0.01, 0.3)[fault.target // 7 % 4])
    _note(world, fault, f"{member.spec.name} in {call}")


@member_kind(
    "trip", "an application raises an exception, or is cancelled, in processing", counts=(0, 0, 1, 3), lasts_ms=(2_000, 8_000)
)
def _trip(world: World, fault: Fault, member: MemberProcess) -> Ending:
    member.trip = Trip(TRIPS[fault.value % len(TRIPS)], fault.value // len(TRIPS))
    _note(world, fault, member.spec.name)
    return _starts_again(world, member)


@member_kind(
    "farewell", "members close at a step of a rebalance, often the leader, too", counts=(0, 0, 1, 2), lasts_ms=(2_000, 8_000)
)
def _farewell(world: World, fault: Fault, member: MemberProcess) -> Ending | None:
    if world.alive_count < 2:
        return None
    _note(world, fault, member.spec.name)
    world.close_in_rebalance(member.spec.name, fault.value)
    return _starts_again(world, member)


# -- wrong answers


_WRONG: dict[str, Any] = {"counts": (0, 0, 0, 1, 2), "lasts_ms": (300, 2_000, 8_000)}


@kind("lack", "responses to look-ups and commits lack the rows of some partitions for the duration", **_WRONG)
@kind("foreign", "responses to look-ups and commits have rows that were not asked for, for the duration", **_WRONG)
@kind("refuse", "look-ups of the offsets of some partitions are refused for the duration", **_WRONG)
@kind("senseless", "ListOffsets is answered with offset -1 for some partitions for the duration", **_WRONG)
@kind("groupless", "OffsetFetch is answered without the group, or for another group, for the duration", **_WRONG)
@kind("lack-fetch", "Fetch responses lack the rows of some partitions for the duration", fetching=True, **_WRONG)
@kind("foreign-fetch", "Fetch responses have rows that were not asked for, for the duration", fetching=True, **_WRONG)
def _answer_wrongly(world: World, fault: Fault) -> Ending:
    _note(world, fault, "every broker")
    return world.cluster.answer_wrongly(WRONG_ANSWERS[fault.kind](fault.value))


@kind("edit", "the responses to one kind of request are edited in one way for the duration (``edits.py``)")
def _edit(world: World, fault: Fault) -> Ending:
    api_key, edit = EDITED[fault.target % len(EDITED)]
    _note(world, fault, f"{APIS[api_key].name}: {edit}, by every broker")
    return world.cluster.answer_wrongly(edited(api_key, edit, fault.value))


# -- clocks of members, which a flag adds to a run


@member_kind("drift", "the clock of a member runs 5 % faster or slower than the brokers' for the duration")
def _drift(world: World, fault: Fault, member: MemberProcess) -> Ending:
    rate = 1 + DRIFT if fault.value % 2 else 1 - DRIFT
    _note(world, fault, f"{member.name}, {rate:g} seconds in a second")
    member.process.set_clock(rate)
    return lambda: member.process.set_clock(1.0)


@member_kind("leap", "the clock of a member jumps ahead, as when a suspended machine wakes")
def _leap(world: World, fault: Fault, member: MemberProcess) -> None:
    jump_s = (0.5, 3.0, 12.0, 40.0)[fault.value % 4]
    _note(world, fault, f"{member.name}, by {jump_s:g} s")
    member.process.set_clock(1.0, jump_s)


# -- calls of several tasks, which a flag adds to a run


@member_kind("beside", "another task seeks, pauses, unsubscribes or asks, whatever the application does at this moment")
def _beside(world: World, fault: Fault, member: MemberProcess) -> None:
    what = BESIDE[fault.value % len(BESIDE)]
    _note(world, fault, f"{member.name}: {what}")
    member.call_beside(what)


@member_kind("quit", "an application raises an exception in processing, unsubscribes in its handler, and subscribes again")
def _quit(world: World, fault: Fault, member: MemberProcess) -> None:
    member.trip = Trip("unsubscribe", fault.value)
    _note(world, fault, member.name)


@member_kind("commit-absent", "another task commits positions, and offsets of partitions that do not exist")
def _commit_absent(world: World, fault: Fault, member: MemberProcess) -> None:
    what = ("commit_absent", "commit_absent_later")[fault.value % 2]
    _note(world, fault, f"{member.name}: {what}")
    member.call_beside(what)


@kind("by-hand", "another program reads by hand; after the duration it is killed or closes, and starts again")
def _by_hand(world: World, fault: Fault) -> Ending:
    reader = world.start_reader()
    return lambda: reader.start_again(fault.value)


# -- partitions of the network, which a flag adds to a run


def _some(candidates: Sequence[str], number: int) -> Sequence[str]:
    """Return the candidates whose bits are set in ``number``, or one if there are none."""
    chosen = [one for index, one in enumerate(candidates) if number >> index % 10 & 1]
    return chosen or [candidates[number % len(candidates)]]


def _pairs(world: World, fault: Fault) -> Sequence[tuple[str, str]]:
    """Return each pair of the hosts of some running members and of some brokers."""
    members = [member.name for member in world.members.values() if member.alive and not member.closing]
    brokers = [node.host for node in world.cluster.kafka.nodes]
    some = _some(members, fault.target) if members else ()
    return [(member, broker) for member in some for broker in _some(brokers, fault.value // 2)]


@kind("one-way", "frames between some members and some brokers pass in one direction only, for the duration")
def _one_way(world: World, fault: Fault) -> Ending:
    pairs = _pairs(world, fault)
    return _block(world, fault, pairs if fault.value % 2 else [pair[::-1] for pair in pairs])


@kind("split", "no frame passes between some members and some brokers; the pairs heal one after the other, in the duration")
def _split(world: World, fault: Fault) -> Ending:
    pairs = _pairs(world, fault)
    left = {pair: _block(world, fault, [pair, pair[::-1]]) for pair in pairs}

    def heal(pair: tuple[str, str]) -> None:
        if (ending := left.pop(pair, None)) is not None:
            world.history.note("nemesis", f"split ends between {pair[0]} and {pair[1]}")
            ending()

    for number, pair in enumerate(sorted(pairs, key=lambda one: zlib.crc32(f"{one} {fault.value}".encode())), 1):
        world.loop.call_later(fault.for_ms / 1000 * number / len(pairs), heal, pair)

    def heal_all() -> None:
        for pair in pairs:
            heal(pair)

    return heal_all


# -- kinds for members that send Fetch requests


def _led(world: World, fault: Fault) -> TopicPartition | None:
    """Return a partition of a user topic whose leader runs."""
    topics = world.cluster.kafka.topics
    led = [one for one in world.cluster.partitions() if (found := topics.partition(*one)) and found.leader != NO_LEADER]
    return led[fault.target % len(led)] if led else None


@kind("lead", "another broker leads a partition", counts=(0, 2, 5, 10), fetching=True)
def _lead(world: World, fault: Fault) -> None:
    partition, up = _led(world, fault), world.cluster.brokers_up()
    if partition is not None:
        _note(world, fault, f"{partition} moves to broker-{up[fault.value % len(up)]}")
        world.cluster.kafka.move_leader(*partition, up[fault.value % len(up)])


@kind("truncate", "an unclean leader election: the new leader never had the last records", counts=(0, 0, 2, 6), fetching=True)
def _truncate(world: World, fault: Fault) -> None:
    partition, up, fetching = _led(world, fault), world.cluster.brokers_up(), world.scenario.fetching
    if partition is None or fetching is None or fetching.transactions:
        return
    log = world.cluster.log(partition)
    assert isinstance(log, RecordedLog)
    if log.batch_starts:
        # Usually remove few records, because a reader finds its offset again later if more records are removed.
        starts = log.batch_starts[-(1 + fault.value // 7 % 4) :]
        _note(world, fault, f"{partition} at {starts[0]} of {log.end_offset}, by broker-{up[fault.value % len(up)]}")
        world.cluster.kafka.move_leader(*partition, up[fault.value % len(up)], starts[0])
        world.checkers.truncated(partition, starts[0])


@kind("evict", "a broker forgets its fetch sessions", counts=(0, 0, 1, 4), fetching=True)
def _evict(world: World, fault: Fault) -> None:
    node = world.cluster.kafka.nodes[fault.target % len(world.cluster.kafka.nodes)]
    _note(world, fault, f"{node.host}, {len(node.fetch_sessions)} sessions")
    node.fetch_sessions.clear()


@kind("roll", "a broker restarts with a newer or an older release", counts=(0, 0, 1, 2), lasts_ms=(500, 4_000), fetching=True)
def _roll(world: World, fault: Fault) -> Ending | None:
    cluster = world.cluster
    up = cluster.brokers_up()
    if len(up) < 2:
        return None
    index = up[fault.target % len(up)]
    versions = (18, 18, 13, 12, 11)
    _note(world, fault, f"{cluster.kafka.nodes[index].host} to Fetch version {versions[fault.value % len(versions)]}")
    cluster.stop_broker(index)
    cluster.age(index, versions[fault.value % len(versions)])
    return lambda: cluster.start_broker(index)


# -- kinds for members that write in transactions


@member_kind(
    "suspend",
    "a process is suspended at a step of its next transaction, perhaps for longer than transaction.timeout.ms",
    counts=(0, 1, 3, 5),
    lasts_ms=(1_000, 8_000, 16_000, 30_000),
    transactional=True,
)
def _suspend(world: World, fault: Fault, member: MemberProcess) -> None:
    if isinstance(member, TransactingMember):
        member.suspension = Suspension(STEPS[fault.value % len(STEPS)], fault.for_ms / 1000)
        _note(world, fault, f"{member.name} before the step {member.suspension.step!r}")


#: Produce, InitProducerId, EndTxn, TxnOffsetCommit.
_LOSABLE = (0, 22, 26, 26, 28)


@member_kind("lose", "the broker's answer to a request of the producer gets lost", counts=(0, 1, 3, 6), transactional=True)
def _lose(world: World, fault: Fault, member: MemberProcess) -> None:
    if isinstance(member, TransactingMember):
        member.loses = _LOSABLE[fault.value % len(_LOSABLE)]
        _note(world, fault, f"{member.name}, API {member.loses}")


@member_kind(
    "rival",
    "a second process starts with the transactional id of a member, which goes on, perhaps after a pause",
    counts=(0, 0, 1, 2),
    lasts_ms=(100, 4_000, 14_000),
    transactional=True,
)
def _rival(world: World, fault: Fault, member: MemberProcess) -> Ending | None:
    if member.spec.instance_id is not None:
        return None
    _note(world, fault, member.name)
    world.start_again(member.spec.name)
    if fault.value % 2:
        return None
    member.process.freeze()
    return member.process.thaw


@member_kind("move-transactions", "another broker coordinates a transactional id", counts=(0, 1, 3), transactional=True)
def _move_transactions(world: World, fault: Fault, member: MemberProcess) -> None:
    kafka, up = world.cluster.kafka, world.cluster.brokers_up()
    to = up[fault.value % len(up)]
    _note(world, fault, f"{member.spec.name} to {kafka.nodes[to].host}")
    if TRANSACTION_STATE_TOPIC in kafka.topics.by_name:
        count = kafka.config.transaction_state_log_num_partitions
        kafka.move_leader(TRANSACTION_STATE_TOPIC, partition_for(member.spec.name, count), to)
