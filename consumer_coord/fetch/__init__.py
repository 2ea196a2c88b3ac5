"""Fetch partitions from their brokers as whole record batches, without decoding them.

=======================  ==========================================================================================
``fetcher.py``           the facade, and the theory of operation
``shared_fetches.py``    the Fetches of all fetchers of one client
``broker_fetches.py``    the requests to one broker: when, how far ahead, and what a response changes
``lanes.py``             Fetches that wait at the broker, and Fetches that do not
``sessions.py``          fetch sessions (KIP-227)
``leaders.py``           the leader of each partition (KIP-951)
``buffer.py``            records that were fetched and not yet taken
``batches.py``           the end of the whole batches in a response
``chunk.py``             what was taken of one partition, with its decoder
``error_steps.py``       the fetcher's action after each error code
``values.py``            input and output of the fetcher; ``partition_state.py`` has its state of one partition
=======================  ==========================================================================================
"""

from consumer_coord.fetch.fetcher import Fetcher
from consumer_coord.fetch.values import FetchConfig, FetchedRecords, FetchStart, LogEnd, Stopped, StopReason

__all__ = ["FetchConfig", "FetchStart", "FetchedRecords", "Fetcher", "LogEnd", "StopReason", "Stopped"]
