"""librdkafka as the consumer's source of records: the handle, its security settings, its rows and its exceptions."""
