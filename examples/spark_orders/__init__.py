"""A pipeline on Spark whose queries share a Kafka consumer group; run it with ``make demo-spark``."""
