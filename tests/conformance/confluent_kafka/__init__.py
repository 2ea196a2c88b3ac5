"""GroupConsumer compared with confluent_kafka.Consumer: the same programs, the same settings, the same broker."""
