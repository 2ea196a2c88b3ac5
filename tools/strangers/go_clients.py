"""Rows of the Go clients: franz-go with kadm, and Sarama; their program is ``tests/support/programs/go/strangers``."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from consumer_coord.testing.kafka_cluster import unique_name
from tests.support.go import go_program
from tools.strangers.rows import FRANZ, KADM, SARAMA, Program, row

#: The Go module of each client.
MODULES: Mapping[str, str] = {
    FRANZ: "github.com/twmb/franz-go",
    KADM: "github.com/twmb/franz-go/pkg/kadm",
    SARAMA: "github.com/IBM/sarama",
}
_DEADLINE_S = 110
_OPERATIONS = {
    (FRANZ, "produce with every compression; a group of two members, commits"): "group",
    (FRANZ, "the same in a group of the consumer protocol"): "consumer-group",
    (FRANZ, "transactions: commit, abort, fencing"): "transactions",
    (FRANZ, "exactly-once: read, process, write"): "exactly-once",
    (FRANZ, "a transaction that is not ended in time"): "timeout",
    (FRANZ, "a share group"): "share-group",
    (KADM, "topics, settings, partitions, records, offsets"): "admin-topics",
    (KADM, "groups: describe, lag, change and delete offsets"): "admin-groups",
    (KADM, "list and describe transactions"): "admin-transactions",
    (KADM, "producers of a partition; abort a hanging transaction"): "admin-producers",
    (KADM, "log directories"): "admin-log-dirs",
    (KADM, "elect leaders, move replicas"): "admin-leaders",
    (KADM, "features"): "admin-features",
    (KADM, "quotas of clients"): "admin-quotas",
    (KADM, "settings of a broker"): "admin-brokers",
    (SARAMA, "produce with every compression; a group, commits"): "sarama-group",
    (SARAMA, "transactions: commit, abort, offsets"): "sarama-transactions",
    (SARAMA, "admin: topics, settings, partitions, records"): "sarama-admin",
}


def _program(operation: str) -> Program:
    def run(servers: str) -> None:
        command = [str(go_program("strangers")), operation, servers, unique_name("go")]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        if ran.returncode != 0:
            said = ran.stderr.strip().splitlines() or ["no reason given"]
            # A panic ends with its stack.
            raise AssertionError(next((line for line in said if line.startswith("panic:")), said[-1]))

    return run


for (_client, _operation), _name in _OPERATIONS.items():
    row(_client, _operation)(_program(_name))
