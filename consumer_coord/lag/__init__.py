"""How far a group is behind, in records and in seconds: one reading for commands, ``watch``, metrics, consumers and assignors.

=======================  ==========================================================================================
``partition_lag.py``     the lag of a partition, from its commit, the ends of its log and its first unread record
``group_lag.py``         the lags of groups, with the requests for them
``log_offsets.py``       offsets of logs, with the reason for each offset that is not known
``first_unread.py``      the first record that a group has not read, with one small Fetch for each leader
=======================  ==========================================================================================
"""
