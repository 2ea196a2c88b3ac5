"""Adapters that hand ``metrics()`` of coordinators and consumers to a monitoring system; each is an extra of its own."""
