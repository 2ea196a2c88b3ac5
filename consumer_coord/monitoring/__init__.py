"""Export the ``metrics()`` of coordinators and consumers to monitoring systems; each system needs a separate extra."""
