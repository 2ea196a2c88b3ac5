"""What goes wrong, and when: data that is drawn from the seed, printed, shrunk, and replayed.

A :class:`Fault` begins at ``at_ms`` and, where that makes sense, ends ``for_ms`` later.  After the last one
everything heals (:meth:`Nemesis.heal`): links pass, brokers run, processes go on.  What was killed stays dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from consumer_coord.simulation.scenario import World

#: kind -> (what it does, how likely it is to be drawn).
KINDS: dict[str, tuple[str, int]] = {
    # churn: each of these makes the group rebalance
    "start": ("another member starts", 4),
    "stop": ("a member closes in an orderly way", 4),
    "kill": ("a member is killed", 4),
    "restart": ("a member is killed, and starts again (a static one with its instance id) after the time", 6),
    "usurp": ("a second process starts with the instance id of a static member that stands still for the time", 2),
    "subscribe": ("a member subscribes to other topics", 3),
    "enforce": ("a member asks for a rebalance", 2),
    # applications
    "hang": ("a member stands still for the time, and wakes", 6),
    "absent": ("an application does not poll for the time", 3),
    "slow": ("an application processes slowly for the time", 3),
    "commit": ("a member commits at this very moment", 5),
    # the network
    "lag": ("frames between two hosts take longer for the time", 4),
    "deaf": ("nothing gets from a broker to a member for the time", 3),
    "mute": ("nothing gets from a member to a broker for the time", 3),
    "cut-off": ("nothing gets from a member to any broker, nor back, for the time", 3),
    "reset": ("all connections of a host break", 5),
    # Drawn apart, by draw_swallows: what the others draw stays.
    "trim": ("retention deletes records, committed or not", 0),
    "swallow": ("a connection of a member is dead from now on, and nobody is told", 0),
    # brokers
    "broker-stop": ("a broker crashes and comes back after the time", 4),
    "broker-pause": ("a broker stands still for the time", 3),
    "move": ("another broker coordinates the group", 5),
    "full": ("brokers cannot write for the time", 2),
    # topics
    "grow": ("a topic gets more partitions", 2),
    "delete": ("a topic vanishes", 1),
    "create": ("a topic appears", 1),
}

CHURN = ("start", "stop", "kill", "restart", "usurp", "subscribe", "enforce")


@attrs.frozen
class Fault:
    """One of :data:`KINDS`; ``target`` and ``value`` are numbers that pick a member, a broker, a topic, by remainder, so
    that every fault means something whatever became of the others."""

    at_ms: int
    kind: str
    target: int = 0
    value: int = 0
    for_ms: int = 0

    def __str__(self) -> str:
        during = f" for {self.for_ms} ms" if self.for_ms else ""
        return f"{self.at_ms:>7} ms  {self.kind} target={self.target} value={self.value}{during}"


def draw(random: Random, *, count: int, churn: int, begin_ms: int, end_ms: int) -> tuple[Fault, ...]:
    """``churn`` faults that make the group rebalance and ``count`` of any kind, in their order."""
    kinds = list(KINDS)
    weights = [weight for _, weight in KINDS.values()]
    drawn = random.choices(CHURN, [KINDS[kind][1] for kind in CHURN], k=churn) + random.choices(kinds, weights, k=count)
    faults = []
    for kind in drawn:
        at_ms = random.randrange(begin_ms, end_ms)
        # Short ones that nobody notices, and long ones that outlast a session.
        for_ms = int(random.choice((200, 1_000, 4_000, 12_000, 25_000)) * random.uniform(0.5, 1.5))
        faults.append(Fault(at_ms, kind, random.randrange(1_000), random.randrange(1_000), min(for_ms, end_ms - at_ms)))
    if random.random() < 0.5 and faults:
        # Trouble comes in bursts: what happens within a second finds more than what happens within a minute.
        middle = random.choice(faults).at_ms
        faults = [
            attrs.evolve(fault, at_ms=min(end_ms - 1, middle + random.randrange(1_500))) if random.random() < 0.5 else fault
            for fault in faults
        ]
    return tuple(sorted(faults, key=lambda fault: (fault.at_ms, fault.kind, fault.target)))


def draw_trims(random: Random, *, begin_ms: int, end_ms: int) -> tuple[Fault, ...]:
    """Records that are deleted by retention; in most histories none."""
    return tuple(
        Fault(random.randrange(begin_ms, end_ms), "trim", random.randrange(1_000), random.randrange(1_000))
        for _ in range(random.choice((0, 0, 0, 1, 4)))
    )


def draw_swallows(random: Random, *, begin_ms: int, end_ms: int) -> tuple[Fault, ...]:
    """Connections that die without a sign of it; in half of the histories none."""
    return tuple(
        Fault(random.randrange(begin_ms, end_ms), "swallow", random.randrange(1_000), random.randrange(1_000))
        for _ in range(random.choice((0, 0, 0, 1, 2, 4)))
    )


class Nemesis:
    """Lets the faults of one history happen."""

    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        self._world = world
        self._faults = faults
        self._endings: dict[int, Callable[[], None]] = {}
        self._healed = False

    def begin(self) -> None:
        """Set the timers."""
        for number, fault in enumerate(self._faults):
            self._world.loop.call_at(fault.at_ms / 1000, self._happen, number, fault)

    def heal(self) -> None:
        """Everything that still goes on ends now."""
        self._world.history.note("nemesis", "heals")
        for number in sorted(self._endings):
            self._endings[number]()
        self._endings.clear()
        self._healed = True

    def _happen(self, number: int, fault: Fault) -> None:
        if self._healed:
            return
        ending = getattr(self, "_" + fault.kind.replace("-", "_"))(fault)
        if ending is not None:
            self._endings[number] = ending
            self._world.loop.call_later(fault.for_ms / 1000, self._end, number, fault)

    def _end(self, number: int, fault: Fault) -> None:
        ending = self._endings.pop(number, None)
        if ending is not None:
            self._note(fault, "ends")
            ending()

    def _note(self, fault: Fault, what: str) -> None:
        self._world.history.note("nemesis", f"{fault.kind} {what}")

    def _member(self, fault: Fault) -> str | None:
        names = [name for name, member in self._world.members.items() if member.alive and not member.closing]
        return names[fault.target % len(names)] if names else None

    def _broker(self, number: int) -> str:
        nodes = self._world.cluster.kafka.nodes
        return nodes[number % len(nodes)].host

    # -- churn ------------------------------------------------------------------------------------------------------

    def _start(self, fault: Fault) -> None:
        self._note(fault, "")
        self._world.start_another()

    def _stop(self, fault: Fault) -> None:
        name = self._member(fault)
        if name is not None and self._world.alive_count > 1:
            self._note(fault, name)
            self._world.members[name].stop()

    def _kill(self, fault: Fault) -> None:
        name = self._member(fault)
        if name is not None and self._world.alive_count > 1:
            self._world.members[name].kill()

    def _restart(self, fault: Fault) -> Callable[[], None] | None:
        name = self._member(fault)
        if name is None:
            return None
        self._world.members[name].kill()
        return lambda: self._world.start_again(name)

    def _usurp(self, fault: Fault) -> Callable[[], None] | None:
        members = self._world.members.items()
        names = [name for name, member in members if member.alive and not member.closing and member.spec.instance_id]
        if not names:
            return None
        name = names[fault.target % len(names)]
        former = self._world.members[name]
        former.process.freeze()
        self._note(fault, name)
        self._world.start_again(name)
        return former.process.thaw

    def _subscribe(self, fault: Fault) -> None:
        name = self._member(fault)
        if name is None or self._world.members[name].spec.pattern is not None:
            return
        topics = self._world.topic_names
        wanted = tuple(topic for index, topic in enumerate(topics) if fault.value >> index & 1) or topics[:1]
        self._world.members[name].subscribe(wanted)

    def _enforce(self, fault: Fault) -> None:
        name = self._member(fault)
        if name is not None:
            self._note(fault, name)
            self._world.members[name].enforce_rebalance()

    # -- applications -----------------------------------------------------------------------------------------------

    def _hang(self, fault: Fault) -> Callable[[], None] | None:
        name = self._member(fault)
        if name is None:
            return None
        self._note(fault, name)
        process = self._world.members[name].process
        process.freeze()
        return process.thaw

    def _absent(self, fault: Fault) -> Callable[[], None] | None:
        name = self._member(fault)
        if name is None:
            return None
        self._note(fault, name)
        self._world.members[name].absent_until = self._world.loop.time() + fault.for_ms / 1000
        return lambda: None

    def _slow(self, fault: Fault) -> Callable[[], None] | None:
        name = self._member(fault)
        if name is None:
            return None
        self._note(fault, name)
        member = self._world.members[name]
        member.slow_ms = 100 + fault.value * 4

        def over() -> None:
            member.slow_ms = 0

        return over

    def _commit(self, fault: Fault) -> None:
        name = self._member(fault)
        if name is not None:
            self._note(fault, name)
            self._world.members[name].commit_now()

    # -- the network ------------------------------------------------------------------------------------------------

    def _lag(self, fault: Fault) -> Callable[[], None] | None:
        name = self._member(fault)
        if name is None:
            return None
        host, broker, network = self._world.members[name].name, self._broker(fault.value), self._world.network
        self._note(fault, f"{host} {broker}")
        network.slow(host, broker, 50 + fault.value * 2)
        network.slow(broker, host, 50 + fault.value * 2)

        def over() -> None:
            network.slow(host, broker, 0)
            network.slow(broker, host, 0)

        return over

    def _block(self, fault: Fault, pairs: Sequence[tuple[str, str]]) -> Callable[[], None]:
        self._note(fault, ", ".join(f"{source} to {target}" for source, target in pairs))
        for source, target in pairs:
            self._world.network.block(source, target)

        def over() -> None:
            for source, target in pairs:
                self._world.network.unblock(source, target)

        return over

    def _deaf(self, fault: Fault) -> Callable[[], None] | None:
        name = self._member(fault)
        if name is None:
            return None
        return self._block(fault, [(self._broker(fault.value), self._world.members[name].name)])

    def _mute(self, fault: Fault) -> Callable[[], None] | None:
        name = self._member(fault)
        if name is None:
            return None
        return self._block(fault, [(self._world.members[name].name, self._broker(fault.value))])

    def _cut_off(self, fault: Fault) -> Callable[[], None] | None:
        name = self._member(fault)
        if name is None:
            return None
        host = self._world.members[name].name
        brokers = [node.host for node in self._world.cluster.kafka.nodes]
        return self._block(fault, [(host, broker) for broker in brokers] + [(broker, host) for broker in brokers])

    def _reset(self, fault: Fault) -> None:
        name = self._member(fault)
        host = self._broker(fault.value) if name is None or fault.value % 3 == 0 else self._world.members[name].name
        self._note(fault, f"{host}, {self._world.network.disconnect(host)} connections")

    def _swallow(self, fault: Fault) -> None:
        name = self._member(fault)
        if name is None:
            return
        there, back = ((True, True), (True, False), (False, True))[fault.value // 100 % 3]
        host = self._world.network.swallow(self._world.members[name].name, fault.value, there=there, back=back)
        ways = " and ".join(way for way, dead in (("there", there), ("back", back)) if dead)
        self._note(fault, f"{self._world.members[name].name}, to {host}, {ways}")

    # -- brokers ----------------------------------------------------------------------------------------------------

    def _broker_stop(self, fault: Fault) -> Callable[[], None] | None:
        cluster = self._world.cluster
        up = cluster.brokers_up()
        if len(up) < 2:
            return None
        # Rather the coordinator than any broker: the others matter little to a group.
        node = cluster.coordinator_of(self._world.group_id)
        index = up[fault.target % len(up)] if node is None or fault.value % 3 == 0 else cluster.index_of(node)
        self._note(fault, cluster.kafka.nodes[index].host)
        cluster.stop_broker(index)
        return lambda: cluster.start_broker(index)

    def _broker_pause(self, fault: Fault) -> Callable[[], None] | None:
        index = fault.target % len(self._world.cluster.processes)
        process = self._world.cluster.processes[index]
        if process.frozen:
            return None
        self._note(fault, process.name)
        process.freeze()
        return process.thaw

    def _move(self, fault: Fault) -> None:
        cluster = self._world.cluster
        up = cluster.brokers_up()
        to = up[fault.target % len(up)]
        cluster.loading_ms = fault.value if fault.value % 2 else 0
        self._note(fault, f"to {cluster.kafka.nodes[to].host}, loading takes {cluster.loading_ms} ms")
        cluster.kafka.move_coordinator(cluster.kafka.coordinator_partition(self._world.group_id), to)

    def _full(self, fault: Fault) -> Callable[[], None]:
        faults = self._world.cluster.kafka.faults
        faults.is_full = True
        self._note(fault, "")

        def over() -> None:
            faults.is_full = False

        return over

    # -- topics -----------------------------------------------------------------------------------------------------

    def _grow(self, fault: Fault) -> None:
        world = self._world
        names = [name for name in world.topic_names if name in world.cluster.kafka.topics.by_name]
        if names:
            name = names[fault.target % len(names)]
            count = len(world.cluster.kafka.topics.by_name[name].partitions) + 1 + fault.value % 4
            self._note(fault, f"{name} to {count}")
            world.cluster.kafka.grow_topic(name, count)

    def _trim(self, fault: Fault) -> None:
        partitions = self._world.cluster.partitions()
        partition = partitions[fault.target % len(partitions)]
        end = self._world.cluster.end_offset(partition) or 0
        before = end * (fault.value % 11) // 10
        self._note(fault, f"{partition} before {before} of {end}")
        self._world.cluster.trim(partition, before)
        self._world.checkers.trimmed(partition, before)

    def _delete(self, fault: Fault) -> None:
        names = [name for name in self._world.topic_names if name in self._world.cluster.kafka.topics.by_name]
        if len(names) > 1:
            name = names[fault.target % len(names)]
            self._note(fault, name)
            self._world.delete_topic(name)

    def _create(self, fault: Fault) -> None:
        self._note(fault, "")
        self._world.create_topic(1 + fault.value % 6)
