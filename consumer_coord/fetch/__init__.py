"""Our own Fetch: reads partitions from their brokers as whole record batches, and decodes nothing.

=======================  ==========================================================================================
``fetcher.py``           the facade, and the theory of operation
``broker.py``            the requests to one broker, and what a response does to each partition
``sessions.py``          fetch sessions (KIP-227)
``leaders.py``           which broker leads a partition (KIP-951)
``buffer.py``            what was fetched and not taken yet
``batches.py``           how far the batches of a response reach
``errors.py``            what each error code requires
``values.py``            what goes in and what comes out; ``partition_state.py`` is what is known in between
=======================  ==========================================================================================
"""

from consumer_coord.fetch.fetcher import Fetcher
from consumer_coord.fetch.values import FetchConfig, FetchedRecords, FetchStart, Stopped, StopReason

__all__ = ["FetchConfig", "FetchStart", "FetchedRecords", "Fetcher", "StopReason", "Stopped"]
