"""Kafka's wire protocol: a table-driven codec and the messages of the group protocol."""
