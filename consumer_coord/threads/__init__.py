"""What threads share, made so that a signal handler which raises, Ctrl-C's for one, cannot break it."""
