"""librdkafka's sources of OAUTHBEARER tokens, for all connections: an identity provider (OIDC), and unsecured tokens.

:func:`with_oauth_callback` turns the settings (``settings.py``) into an ``oauth_cb`` that the coordinator and librdkafka both
use, so a process has one token (``cached.py``). ``endpoint.py`` sends requests to the identity provider, ``assertion.py`` signs
assertions that some providers require, ``unsecured.py`` creates tokens for tests. This package follows
``rdkafka_sasl_oauthbearer.c`` and ``rdkafka_sasl_oauthbearer_oidc.c`` of librdkafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIXES = ("sasl.oauthbearer.", "enable.sasl.oauthbearer.")


def with_oauth_callback(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which an ``oauth_cb`` replaces librdkafka's own token settings.

    The modules that request tokens, and their HTTP client, are imported only if a setting names OAUTHBEARER.
    """
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms")
    if str(mechanism).upper() != "OAUTHBEARER" and not any(name.startswith(_PREFIXES) for name in given):
        return dict(given)
    from consumer_coord.net.oauth.settings import with_oauth_callback as convert

    return convert(given)
