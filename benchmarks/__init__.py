"""Measurements; run them with `make bench` or as single modules."""
