"""Test your consumers on two Kafkas, the embedded one and Apache Kafka's own, with the same tests.

Begin with the fixture ``kafka`` of :mod:`consumer_coord.pytest_plugin`. ``under_test.py`` has what it returns; below are
Apache Kafka in processes (``real_kafka.py``), its jars (``jars.py``), its security (``security.py``), and a proxy that cuts
networks. Nothing of the client imports this package.

:func:`simulated` runs a program of yours in virtual time, in several simulated processes, with faults.
"""

from consumer_coord.simulation.programs.decorator import simulated as simulated
from consumer_coord.simulation.programs.world import SimulatedWorld as SimulatedWorld
from consumer_coord.testing.security import Acl as Acl
from consumer_coord.testing.under_test import KafkaOptions as KafkaOptions
from consumer_coord.testing.under_test import KafkaUnderTest as KafkaUnderTest
from consumer_coord.testing.under_test import UnsupportedError as UnsupportedError

__all__ = ["Acl", "KafkaOptions", "KafkaUnderTest", "SimulatedWorld", "UnsupportedError", "simulated"]
