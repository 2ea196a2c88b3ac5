"""A pipeline of Spark queries that share a Kafka consumer group; run it with ``make demo-spark``."""
