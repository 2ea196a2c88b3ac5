"""What waits and locks for threads: blocking calls on a loop, their outcomes, and locks that a signal handler cannot break."""
