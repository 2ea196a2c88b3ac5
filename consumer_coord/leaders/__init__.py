"""Requests to the leaders of partitions: ListOffsets and OffsetForLeaderEpoch."""
