"""The names of confluent-kafka 4.4."""
