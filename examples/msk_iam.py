"""Read from Amazon MSK with IAM: a signed URL is the token.

``pip install aws-msk-iam-sasl-signer-python``, then ``python -m examples.msk_iam BOOTSTRAP REGION TOPIC GROUP``. The
credentials are those that botocore finds: variables, a profile, the role of a container or a machine. The role needs
``kafka-cluster:Connect``, ``DescribeGroup``, ``AlterGroup``, ``DescribeTopic`` and ``ReadData``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

from consumer_coord import GroupConsumer


def signed_token(region: str) -> Callable[[str | None], tuple[str, float]]:
    """Return an ``oauth_cb`` that signs a token for a region, valid for a quarter of an hour."""

    def oauth_cb(_config: str | None) -> tuple[str, float]:
        token, expires_at_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return token, expires_at_ms / 1000

    return oauth_cb


def settings(bootstrap: str, region: str, group: str) -> dict[str, Any]:
    """Return the settings of a consumer."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": signed_token(region),
    }


def main(bootstrap: str, region: str, topic: str, group: str) -> None:
    """Print the records of a topic, until Ctrl-C."""
    with GroupConsumer(settings(bootstrap, region, group)) as consumer:
        consumer.subscribe([topic])
        for message in consumer:
            print(message.partition(), message.offset(), message.value(), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:5])
    except KeyboardInterrupt:
        sys.exit(130)
