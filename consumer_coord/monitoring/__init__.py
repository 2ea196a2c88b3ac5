"""Adapters from ``metrics()`` of coordinators and consumers to monitoring systems; each needs a separate extra."""
