"""Programs of other people's clients, on the embedded Kafka, on franz-go's ``kfake``, and on Apache Kafka."""
