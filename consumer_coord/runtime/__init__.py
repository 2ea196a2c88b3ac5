"""The background thread with its loop, blocking calls on it, and locks that a signal handler cannot break."""
