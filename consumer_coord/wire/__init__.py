"""Kafka's wire protocol: tables of messages, and a codec compiled from them.

=====================  ==========================================================================================
``messages``           the tables: one attrs class per message or structure, in the words of Kafka's JSON schemas
``apis``               API keys, and the versions that the tables cover
``codec``              ``encode`` and ``decode`` for bodies, and the same for frames (header and body)
``schema``             the vocabulary of the tables
``decoder, encoder``   table -> Python source -> function, once per message and version (``source``, ``varint``)
``alike``              the decoder's short cut for long arrays whose elements differ in numbers only
``error_codes``        Kafka's error codes
``membership``         the consumer protocol: the subscriptions and assignments inside JoinGroup and SyncGroup
``offsets_topic``      the records of ``__consumer_offsets``
=====================  ==========================================================================================

To add a message, write its table; :mod:`consumer_coord.wire.messages` says how.  To add a version of one, extend the
table's fields and its range.
"""
