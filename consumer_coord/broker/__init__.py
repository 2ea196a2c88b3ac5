"""The broker's half of the group protocol, and an embedded Kafka around it."""
