"""Fetched records of one consumer: one queue of responses, from which messages and columns are taken.

Begin with ``reader.py``. The engine applies its plan to the :class:`~consumer_coord.consumer.reading.reader.Reader`; the
consumers take messages (``ready``), or decode columns (``chunks.py``) and then advance the reader. This package may use
``fetch`` and ``columns``, and nothing of the group's protocol.
"""
