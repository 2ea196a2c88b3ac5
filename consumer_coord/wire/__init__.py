"""Kafka's wire protocol: tables of messages, and a codec that is compiled from the tables.

==========================  ===============================================================================================
``messages``                the tables: one attrs class per message or structure, with the names of Kafka's JSON schemas
``apis``                    API keys, and the versions that the tables cover
``codec``                   ``encode`` and ``decode`` for bodies, and functions for frames (header and body)
``schema``                  the types and functions with which the tables are written
``decoder``, ``encoder``    table -> Python source -> function, for each message and version (``source``, ``varint``)
``uniform_arrays``          a fast way to decode long arrays whose elements differ only in numbers
``error_codes``             Kafka's error codes
``crc32c``                  the checksum of record batches
``embedded_protocol``       Java's ``ConsumerProtocol``: the subscriptions and assignments inside JoinGroup and SyncGroup
``offsets_topic``           the records of ``__consumer_offsets``
``consumer_group_records``  the records of KIP-848 groups in ``__consumer_offsets``
==========================  ===============================================================================================

To add a message, write its table as :mod:`consumer_coord.wire.messages` describes. To add a version of a message, extend the
table's fields and its range.
"""
