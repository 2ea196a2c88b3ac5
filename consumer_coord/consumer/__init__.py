"""The consumers that applications use, and what is behind them: one engine for threads and asyncio.

``group_consumer.py`` and ``async_consumer.py`` are the faces, and ``shared_calls.py`` has the calls of both. The first holds
``thread_turns.py`` (which thread may use the engine), ``thread_waits.py`` and ``thread_columns.py``; the second holds
``task_turns.py`` and ``task_columns.py``. Begin with
``partitions.py``, the states of a partition as a table, and ``reducer.py``, which decides from that table, the group's
assignment and the cluster's topics what happens next. It is a pure function, as are its parts (``recreated_topics.py``,
``start_lookups.py``) and ``offsets_to_commit.py``. ``engine.py`` does what the reducer asks for, and looks up where partitions
start (``start_offsets.py``).
``reading/`` keeps what ``fetch/`` has fetched and the application has not received, as messages or, with ``arrow_reads.py``, as
columns. ``librdkafka/`` fetches in its place, if a setting asks for it.

A consumer uses the member in ``group/`` and never a request of its protocol. Nothing below this package imports it, but for
``process``, which reads through its consumer.
"""
