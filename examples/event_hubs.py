"""Read from Azure Event Hubs with a token of Microsoft Entra ID.

``python -m examples.event_hubs NAMESPACE HUB GROUP``, with AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET of a
service principal that has the role *Azure Event Hubs Data Receiver*. On a machine of Azure with a managed identity, replace the
client's settings by ``sasl.oauthbearer.metadata.authentication.type=azure_imds``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from consumer_coord import GroupConsumer


def settings(namespace: str, group: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a consumer; the token is requested, shared by all connections, and renewed."""
    authority = environment.get("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com").rstrip("/")
    return {
        "bootstrap.servers": f"{namespace}.servicebus.windows.net:9093",
        "group.id": group,
        "auto.offset.reset": "earliest",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": f"{authority}/{environment['AZURE_TENANT_ID']}/oauth2/v2.0/token",
        "sasl.oauthbearer.client.id": environment["AZURE_CLIENT_ID"],
        "sasl.oauthbearer.client.secret": environment["AZURE_CLIENT_SECRET"],
        "sasl.oauthbearer.scope": f"https://{namespace}.servicebus.windows.net/.default",
    }


def main(namespace: str, hub: str, group: str) -> None:
    """Print the records of a hub, until Ctrl-C."""
    with GroupConsumer(settings(namespace, group, os.environ)) as consumer:
        consumer.subscribe([hub])
        for message in consumer:
            print(message.partition(), message.offset(), message.value(), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:4])
    except KeyboardInterrupt:
        sys.exit(130)
