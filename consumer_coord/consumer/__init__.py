"""The application's half of a member: an engine over a data plane, and the consumers that applications hold.

``engine.py`` is the one place where records are handed out, positions kept, offsets committed and partitions handed over;
``group_consumer.py`` is its skin for threads, ``async_consumer.py`` the one for asyncio.
"""
