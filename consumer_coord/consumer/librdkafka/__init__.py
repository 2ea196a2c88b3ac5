"""librdkafka as the data plane: the handle, its security settings, its rows and its exceptions."""
