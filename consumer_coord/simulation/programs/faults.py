"""The faults of one run of a program; ``spec.py`` lists their kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from consumer_coord.simulation.programs.handled import Trouble
from consumer_coord.simulation.programs.spec import MOMENTS
from consumer_coord.simulation.scenario import Fault

if TYPE_CHECKING:
    from consumer_coord.simulation.programs.lives import Life, Lives
    from consumer_coord.simulation.virtual_kafka import VirtualKafka

#: Kinds that may begin at an event.
_AT_EVENTS: Final = ("kill", "stop", "suspend", "cut-off", "reset")
#: The number of events that a fault lets pass is below this.
_MOST_EVENTS: Final = 20

Ending: TypeAlias = Callable[[], None]


class ProgramFaults:
    """Begins and ends the faults of a run."""

    def __init__(
        self, kafka: VirtualKafka, lives: Lives, note: Callable[[str, str], None], tell: Callable[[Trouble], None]
    ) -> None:
        """``note`` receives (actor, event) for the story, ``tell`` receives what may be the reason of a repetition."""
        self._kafka = kafka
        self._lives = lives
        self._note = note
        self._tell = tell
        self._endings: dict[int, Ending] = {}
        #: Faults that wait for an event, with the number of such events that they let pass.
        self._armed: dict[int, tuple[Fault, int]] = {}
        self._healed = False

    def begin(self, faults: tuple[Fault, ...]) -> None:
        """Begin each fault at its time from now on."""
        for number, fault in enumerate(faults):
            self._kafka.loop.call_later(fault.at_ms / 1000, self._happen, number, fault)

    def heal(self) -> None:
        """End all faults that are still active; no other begins."""
        self._healed = True
        self._armed.clear()
        for number in sorted(self._endings):
            self._endings.pop(number)()
        self._note("faults", "end")

    def event(self, moment: str, process: str) -> str | None:
        """Begin a fault that waits for this event: "handles", "has handled", or "committed".

        Return its kind. It begins in the next step of the run, because a process cannot be stopped in its own step.
        """
        for number, (fault, left) in list(self._armed.items()):
            if MOMENTS[fault.value % len(MOMENTS)] != moment:
                continue
            self._armed[number] = fault, left - 1
            life = self._lives.named(process) if left <= 0 else None
            if life is not None:
                del self._armed[number]
                self._note("faults", f"{process} {moment} a record, when:")
                self._kafka.loop.call_soon(self._strike, number, fault, life)
                return fault.kind
        return None

    def _happen(self, number: int, fault: Fault) -> None:
        if self._healed:
            return
        if fault.kind in _AT_EVENTS and fault.value % len(MOMENTS):
            self._armed[number] = fault, fault.value // len(MOMENTS) % _MOST_EVENTS
            return
        self._strike(number, fault, self._lives.running(fault.target))

    def _strike(self, number: int, fault: Fault, life: Life | None) -> None:
        ending = self._begun(fault, life)
        if ending is not None:
            self._endings[number] = ending
            self._kafka.loop.call_later(fault.for_ms / 1000, self._end, number)

    def _end(self, number: int) -> None:
        ending = self._endings.pop(number, None)
        if ending is not None:
            ending()

    def _trouble(self, process: str | None, fault: Fault, what: str, where: str) -> None:
        begins_s = self._kafka.loop.time()
        for_s = fault.for_ms / 1000
        self._tell(Trouble(process, what, begins_s, begins_s + for_s))
        self._note("faults", f"{where} {what}" + (f" for {for_s:.1f} s" if for_s else ""))

    def _begun(self, fault: Fault, life: Life | None) -> Ending | None:
        """Begin a fault; return what ends it."""
        if fault.kind in ("broker-kill", "broker-suspend", "move", "full"):
            return self._of_brokers(fault)
        kafka, lives = self._kafka, self._lives
        if fault.kind == "scale":
            return lives.add_one()
        if life is None:
            return None
        name, broker = life.name, kafka.cluster.kafka.nodes[fault.value % len(kafka.cluster.kafka.nodes)].host
        if fault.kind in ("kill", "stop"):
            return lives.end(life, kill=fault.kind == "kill")
        if fault.kind == "suspend":
            self._trouble(name, fault, "was suspended", name)
            life.process.freeze()
            return life.process.thaw
        if fault.kind == "lag":
            self._trouble(name, fault, f"had a slow network to {broker}", name)
            return kafka.lag(name, broker, 50 + fault.value * 2)
        if fault.kind == "cut-off":
            self._trouble(name, fault, "was cut off from the brokers", name)
            return kafka.block(kafka.links(name))
        if fault.kind == "deaf":
            self._trouble(name, fault, f"received nothing from {broker}", name)
            return kafka.block([(broker, name)])
        assert fault.kind == "reset", fault
        self._trouble(name, fault, "lost its connections", name)
        kafka.network.disconnect(name)
        return None

    def _of_brokers(self, fault: Fault) -> Ending | None:
        cluster = self._kafka.cluster
        up = cluster.brokers_up()
        index = up[fault.target % len(up)]
        host = cluster.kafka.nodes[index].host
        if fault.kind == "broker-kill":
            if len(up) < 2:
                return None
            self._trouble(None, fault, f"lost {host}", "the cluster")
            cluster.stop_broker(index)
            return lambda: cluster.start_broker(index)
        if fault.kind == "broker-suspend":
            process = cluster.processes[index]
            if process.frozen:
                return None
            self._trouble(None, fault, f"had to do without {host}, which stood still", "the cluster")
            process.freeze()
            return process.thaw
        if fault.kind == "move":
            self._trouble(None, fault, f"moved the coordinators of all groups to {host}", "the cluster")
            for group in self._lives.groups():
                cluster.kafka.move_coordinator(cluster.kafka.coordinator_partition(group), index)
            return None
        assert fault.kind == "full", fault
        self._trouble(None, fault, "accepted no commits", "the cluster")
        cluster.kafka.faults.is_full = True
        return lambda: setattr(cluster.kafka.faults, "is_full", False)
