"""The application's half of a group member: the consumers that applications use, and the engine behind the consumers.

``engine.py`` is the only place that delivers records, keeps positions, commits offsets and revokes partitions.
``group_consumer.py`` adapts the engine to threads, ``async_consumer.py`` to asyncio.
"""
