"""The consumers that applications use, and what is behind them: one engine for threads and asyncio.

``group_consumer.py`` and ``async_consumer.py`` are the faces, and ``shared_calls.py`` has the calls of both. Begin with
``partitions.py``, the states of a partition as a table, and ``reducer.py``, which compares that table with the group's
assignment; ``engine.py`` does what the reducer asks for, and looks up where partitions start (``start_offsets.py``).
Records come from a ``DataPlane`` (``data_plane.py``): ``fetch_plane.py`` over ``fetch/``, or ``librdkafka/``; ``worker.py``
keeps what was fetched and not yet delivered, and ``messages.py`` or ``arrow_reads.py`` deliver it.

A consumer uses the member in ``group/`` and never a request of its protocol. Nothing below this package imports it, but for
``process``, which reads through its consumer.
"""
