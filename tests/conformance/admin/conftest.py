"""The command under test and Kafka's own tool."""

from __future__ import annotations

from tests.support.commands import kafka_tool, run, tool_server

__all__ = ["kafka_tool", "run", "tool_server"]
