"""The testbed: brokers and members as separate processes, for the tests and the benchmarks.

``shared``                                                    services that the workers of a run share
``members``, ``driver``, ``clients``, ``churn``               members of groups, with any client, in a driver process
``java``, ``java_assignors``, ``codec_peers``                 other implementations to compare with
``line_process``, ``processes``, ``admin``                    the parts of the other modules
``programs``                                                  members and oracles in Java and Go

Apache Kafka itself, its jars and a proxy are in ``consumer_coord.testing``, which users have, too.

The packages contain the helpers of the tests of the same name, and programs to run by hand.

Benchmarks import nothing else from the tests; ``tests/test_structure.py`` checks this.
"""
