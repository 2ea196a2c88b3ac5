"""What operators do with groups: list, describe, reset, delete; the engine of the ``consumer-coord`` command.

Everything works on groups of any client.  Functions take a :class:`~consumer_coord.net.cluster.ClusterClient` and a
deadline, raise the package's errors, and print nothing.
"""
