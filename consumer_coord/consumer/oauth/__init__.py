"""librdkafka's own ways to a token of OAUTHBEARER, for both planes: an identity provider (OIDC), and unsecured tokens.

:func:`with_oauth_callback` (``settings.py``) turns the settings into an ``oauth_cb`` that both planes share, so a process
has one token (``cached.py``).  ``endpoint.py`` asks the identity provider, ``assertion.py`` signs what some providers want
to see, ``unsecured.py`` makes tokens for tests.  Follows ``rdkafka_sasl_oauthbearer.c`` and ``rdkafka_sasl_oauthbearer_oidc.c``
of librdkafka.
"""
