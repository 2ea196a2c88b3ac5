"""How many replicas a group needs for its lag, for autoscalers: ``consumer-coord serve-metrics``.

======================  ==================================================================================
``wanted_replicas.py``  the formula: one pure function from readings of the lag to a number of replicas
``lag_csv.py``          a file of past lags, for ``simulate --lag``
``lag_export.py``       ``lag``, and ``lag --export``, which writes it
``reading.py``          what the formula reads of a group's report
``scaler.py``           readings of groups at intervals, and the figure of each group
``exposition.py``       the figures as JSON and in Prometheus' text format
``flags.py``            the flags of the formula
``server.py``           the figures over HTTP
``command.py``          the command
======================  ==================================================================================
"""
