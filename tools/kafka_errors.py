"""Print ``consumer_coord/confluent/error_table.py`` from the installed confluent-kafka: ``python -m tools.kafka_errors``."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, libversion

_HEAD = '''"""The error codes of librdkafka {version} with their names and texts; made by ``python -m tools.kafka_errors``.

Codes below zero are librdkafka's own (``rd_kafka_resp_err_t``), the others are the protocol's.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Code -> (name, text).
ERRORS: Mapping[int, tuple[str, str]] = {{
'''


def installed() -> Mapping[int, tuple[str, str]]:
    """Return code -> (name, text) of the installed version."""
    codes = sorted(code for code in vars(KafkaError).values() if isinstance(code, int))
    return {code: (KafkaError(code).name(), KafkaError(code).str()) for code in codes}


def main() -> None:
    """Print the module."""
    print(_HEAD.format(version=libversion()[0]), end="")
    for code, (name, text) in installed().items():
        print(f'    {code}: ("{name}", {_quoted(text)}),')
    print("}")


def _quoted(text: str) -> str:
    return repr(text) if '"' in text else f'"{text}"'


if __name__ == "__main__":
    main()
