"""Measurements of this project. Run all with `make bench`, or run a single module."""
