"""The tables of Kafka's messages: one class for each message and for each structure, which covers all versions.

To add a message, add a table: write its classes here with the names of Kafka's schema
(``clients/src/main/resources/common/message``), inner structures first, and add a line to :mod:`consumer_coord.wire.apis`. The
codec and its tests (round trips, fuzzing, comparison with other codecs) find the table there.

A structure without a docstring is the element of the array in the class below it that names the structure.

Every field has Kafka's default, and can be set by keyword. Arrays decode to tuples, ``records`` and ``bytes`` to
:class:`bytes`, error codes to integers (see :mod:`consumer_coord.wire.error_codes`). A table omits fields that occur only in
versions outside the table's range.

The package imports no tables, because each class takes half a millisecond to create, and a client uses only half of the
classes.
"""
