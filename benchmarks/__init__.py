"""Measurements; `make bench` or the modules themselves run them."""
