"""``kafka_group`` side by side with Spark's own JVM connector: ``python -m benchmarks.spark``."""
