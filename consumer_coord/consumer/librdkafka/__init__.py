"""librdkafka as the consumer's source of records: the handle, its errors about security, and its statistics."""
