"""``kafka_group`` compared with Spark's own JVM connector: ``python -m benchmarks.spark``."""
