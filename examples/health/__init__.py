"""A consumer with probes, and its Kubernetes manifest."""
