"""Metrics of a consumer, pushed to the brokers if an operator of the cluster subscribes to them (KIP-714).

``push.py`` decides what is sent when, and ``otlp.py`` encodes it; ``consumer/metric_readings.py`` reads a consumer's metrics
under the names of Java's client. Nothing is imported from here before a broker says that it takes metrics.
"""
