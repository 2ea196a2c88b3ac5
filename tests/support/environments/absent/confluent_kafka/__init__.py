"""Raise the error of a package that is not installed."""

raise ModuleNotFoundError("No module named 'confluent_kafka'", name="confluent_kafka")
