"""Programs that handle records in parallel, each with another library: ``benchmarks.parallel`` runs them side by side.

Each gets a :class:`~benchmarks.parallel_peers.calls.Task` as JSON. It prints one line of JSON when its time is over, or, if the
task names a log, appends what its handlers do to it, until SIGTERM.
"""
