"""confluent-kafka's types, arguments and exceptions, as this package's consumers accept and return them."""
