"""Comparisons with Kafka's classes and broker, with other clients, and with other codecs."""
