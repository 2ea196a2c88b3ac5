"""The client's behaviours: the coordinator in virtual time, and the consumer on an embedded Kafka."""
