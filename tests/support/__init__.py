"""The testbed: brokers and members as processes of their own, for the tests and for the benchmarks.

``real_kafka``, ``kafka_cluster``, ``kafka_jars``, ``shared``  Apache Kafka
``members``, ``driver``, ``clients``, ``churn``               members of groups, of every client, in one driver process
``java``, ``java_assignors``, ``codec_peers``                 other implementations to compare with
``line_process``, ``processes``, ``proxy``, ``admin``         what the others are made of
``programs``                                                  members and oracles in Java and Go

The packages have the helpers of the tests of the same name, and programs that are run by hand.

Benchmarks import nothing else of the tests; ``tests/test_structure.py`` holds this.
"""
