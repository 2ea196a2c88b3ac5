"""Connections to brokers, and the cluster behind them.

Begin with ``connection.py``, one connection with its requests in flight; ``connections.py`` keeps those of a process, and
``cluster.py`` finds leaders and coordinators, and retries. ``answers.py`` compares each response with its request.
``shared_clusters.py`` gives members with the same settings the same client. Below: ``tcp.py`` with ``receiving.py``,
``security.py`` with ``sasl.py``, ``scram.py``, ``kerberos.py`` and ``oauth/``.

This package knows the wire, and neither groups nor records.
"""
