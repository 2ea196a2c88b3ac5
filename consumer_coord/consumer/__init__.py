"""The application's half of a member: an engine over a data plane, and the consumers that applications use.

``engine.py`` is the only place that delivers records, keeps positions, commits offsets and revokes partitions.
``group_consumer.py`` adapts it to threads, ``async_consumer.py`` to asyncio.
"""
