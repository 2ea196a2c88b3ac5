"""Tests on Kafka's own broker, in Spark, and in a browser."""
