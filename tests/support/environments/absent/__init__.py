"""No confluent-kafka."""
