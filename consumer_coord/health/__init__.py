"""The health of a consumer: whether its partitions owe records, since when, and why.

``consumer.health()`` returns a :class:`Health`; :mod:`~consumer_coord.health.asgi` answers HTTP probes with it, and
:mod:`~consumer_coord.health.file` writes it to a file for exec probes.
"""

from consumer_coord.health.judging import judge
from consumer_coord.health.values import Facts, Health, Owed, PartitionFacts, PartitionHealth, Reason

__all__ = ["Facts", "Health", "Owed", "PartitionFacts", "PartitionHealth", "Reason", "judge"]
