"""Process the records of a group in parallel: in order by key, with commits that never pass an unfinished record.

``consumer.process(handle)`` calls a handler for each record. Inside it, :func:`context` tells whether the result still counts.
The state is in ``work.py`` and ``offset_to_commit.py``, which do no I/O; ``processing.py`` connects it to the consumer, and a
driver runs the handlers.
"""

from consumer_coord.process.context import Context as Context
from consumer_coord.process.context import context as context
from consumer_coord.process.failure_policy import DeadLetterError as DeadLetterError
from consumer_coord.process.failure_policy import DeadLetters as DeadLetters
from consumer_coord.process.failure_policy import FailurePolicy as FailurePolicy
from consumer_coord.process.failure_policy import RetryTopics as RetryTopics
from consumer_coord.process.processing import Batches as Batches
from consumer_coord.process.processing import Counts as Counts
from consumer_coord.process.processing import ProcessOptions as ProcessOptions

__all__ = [
    "Batches",
    "Context",
    "Counts",
    "DeadLetterError",
    "DeadLetters",
    "FailurePolicy",
    "ProcessOptions",
    "RetryTopics",
    "context",
]
