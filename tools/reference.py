"""The tables of docs/reference/ for settings, metrics, log lines, errors and commands, generated from the code.

A page has a line such as ``<!-- from the code: settings -->``; docs/conf.py replaces this line by the result of
:func:`settings`.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from consumer_coord import errors, final_errors, lazy_attrs
from consumer_coord.admin import documents, json_schema
from consumer_coord.command_table import COMMANDS, add_flags
from consumer_coord.config import Config, CoordinatorConfig
from consumer_coord.group import error_steps as answers
from consumer_coord.group.metrics import NAMES
from consumer_coord.monitoring import opentelemetry, prometheus, source
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.setting_names import LIBRDKAFKA
from consumer_coord.settings import ALIASES, SETTINGS, Integer
from consumer_coord.wire import error_codes

ROOT = Path(__file__).resolve().parents[1]


@attrs.frozen
class Setting:
    """A setting of the control plane. ``default`` and ``bounds`` are Markdown, or empty if there are none."""

    name: str
    default: str
    bounds: str
    plane: str
    effect: str
    advice: str


def setting_list() -> Iterator[Setting]:
    """Yield every setting of the control plane."""
    for name, row in SETTINGS.items():
        bounds = f"{row.kind.low} to {row.kind.high}" if isinstance(row.kind, Integer) else ""
        yield Setting(name, _default(row.field), bounds, row.plane.value, row.effect, row.advice)


def settings() -> str:
    """Return the table of the control plane's settings, with default, range and plane."""
    parts = []
    for one in setting_list():
        facts = [f"default {one.default}" if one.default else "no default", one.bounds, f"plane: {one.plane}"]
        parts.append(f"### `{one.name}`\n\n*{'; '.join(filter(None, facts))}*\n\n{one.effect}\n\n{one.advice}\n")
    return "\n".join(parts)


def _default(field: str) -> str:
    of = {one.name: one.default for kind in (Config, ClientConfig, CoordinatorConfig) for one in attrs.fields(kind)}
    default = of[field]
    if default in (attrs.NOTHING, lazy_attrs.NOTHING):
        return ""
    if isinstance(default, tuple):
        default = ",".join(default)
    return "none" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def aliases() -> str:
    """Return the table of settings with different names in Java and librdkafka."""
    return _table(["also called", "here"], [[f"`{name}`", f"`{ours}`"] for name, ours in sorted(ALIASES.items())])


def data_plane_settings() -> str:
    """Return the settings that the coordinator ignores and passes to librdkafka."""
    security = ("ssl.", "sasl.", "security.", "enable.ssl.", "enable.sasl.", "https.")
    ours = {*SETTINGS, *ALIASES, "group.protocol.type", "oauth_cb"}
    names = sorted(name for name in LIBRDKAFKA - ours if not name.startswith(security))
    return ", ".join(f"`{name}`" for name in names) + "."


def metrics() -> str:
    """Return the table of all figures, with unit and meaning."""
    rows = [
        [
            f"`{name}`",
            source.unit(name),
            source.describe(name),
        ]
        for name in NAMES
    ]
    return _table(["figure", "unit", "meaning"], rows)


def metric_names() -> str:
    """Return the table that shows how a figure is named in Prometheus and OpenTelemetry."""
    one = "join-time-max"
    rows = [
        ["Prometheus", f"`{prometheus.PREFIX}{one.replace('-', '_')}`", "`group`, `client_id`"],
        ["OpenTelemetry", f"`{opentelemetry.PREFIX}{one.replace('-', '_')}`", "`group`, `client-id`"],
    ]
    return _table(["in", f"`{one}` is", "labels"], rows)


_LEVELS = ("debug", "info", "warning", "error", "exception")


@attrs.frozen
class Line:
    """A log line of the code."""

    level: str
    text: str
    module: str


def logged(packages: Iterable[str] = ("group", "consumer", "net", "monitoring", "spark")) -> Iterator[Line]:
    """Yield every log line at INFO and above, as its format text."""
    for package in packages:
        for file in sorted((ROOT / "consumer_coord" / package).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for node in ast.walk(ast.parse(file.read_text())):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                    continue
                whose = ast.unparse(node.func.value)
                if node.func.attr not in _LEVELS[1:] or not whose.lower().endswith(("log", "logger")):
                    continue
                text = node.args[0]
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield Line({"exception": "error"}.get(node.func.attr, node.func.attr), text.value, module)


def log_lines() -> str:
    """Return every log line at INFO and above."""
    order = {level: number for number, level in enumerate(("error", "warning", "info"))}
    found = sorted(set(logged()), key=lambda line: (order[line.level], line.module, line.text))
    return _table(
        ["level", "line", "logger"], [[one.level.upper(), _logged_text(one.text), f"`{one.module}`"] for one in found]
    )


def _logged_text(text: str) -> str:
    """Return a line as code; its own backticks need two of them around it."""
    if text == "%s":
        return "the message of an error that the application will also receive, or of a setting that is ignored"
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def exceptions() -> str:
    """Return the classes of :mod:`consumer_coord.errors`, as a tree."""
    lines: list[str] = []

    def tell(kind: type[BaseException], depth: int) -> None:
        said = " ".join((kind.__doc__ or "").split())
        lines.append(f"{'  ' * depth}* `{kind.__name__}`: {said.replace('``', '`')}")
        for below in sorted(kind.__subclasses__(), key=lambda one: one.__name__):
            if below.__module__ == errors.__name__:
                tell(below, depth + 1)

    tell(errors.CoordinatorError, 0)
    return "\n".join(lines)


#: Error code -> remedy, for codes for which the code has no advice.
REMEDIES: Mapping[int, str] = {
    error_codes.ILLEGAL_GENERATION: "None: the member joins again. A commit fails if its partitions have moved.",
    error_codes.UNKNOWN_MEMBER_ID: "None, once. Often: raise `session.timeout.ms`, or look for long pauses of the process.",
    error_codes.REBALANCE_IN_PROGRESS: "None: the member joins, and repeats the commits of the partitions that it keeps.",
    error_codes.MEMBER_ID_REQUIRED: "None: the first answer to every new member (KIP-394).",
    error_codes.NOT_COORDINATOR: "None: the coordinator moved, and is looked up again.",
    error_codes.COORDINATOR_NOT_AVAILABLE: "Wait: a new cluster makes `__consumer_offsets`. If it lasts, check the brokers.",
    error_codes.COORDINATOR_LOAD_IN_PROGRESS: "Wait: a broker is loading the groups that it now coordinates.",
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: "Create the topic, or correct its name. The member waits for it.",
    error_codes.OFFSET_METADATA_TOO_LARGE: "Shorten the commit's metadata, or raise the brokers' `offset.metadata.max.bytes`.",
    error_codes.UNSTABLE_OFFSET_COMMIT: "Wait: a transaction with offsets of this partition is open.",
    error_codes.SASL_AUTHENTICATION_FAILED: "Check `sasl.username`, `sasl.password`, or what `oauth_cb` returns.",
    error_codes.UNSUPPORTED_SASL_MECHANISM: "Set `sasl.mechanism` to one that the listener has; the message lists them.",
    error_codes.ILLEGAL_SASL_STATE: "The listener has no SASL: set `security.protocol` to `plaintext` or `ssl`.",
}


def error_code_table() -> str:
    """Return the table of error codes that a member receives, with the member's reaction and the remaining action."""
    rows = []
    advised = final_errors._ADVICE
    for code in sorted({*advised, *REMEDIES}):
        steps = {
            name: answers.step_for(table, code).value
            for name, table in (
                ("JoinGroup", answers.JOIN_GROUP),
                ("SyncGroup", answers.SYNC_GROUP),
                ("Heartbeat", answers.HEARTBEAT),
            )
        }
        told = set(steps.values())
        does = told.pop() if len(told) == 1 else "; ".join(f"{name}: {step}" for name, step in steps.items())
        advice, kind = advised.get(code, ("", None))
        # Names of settings keep their case.
        begins = advice if "." in advice.split(" ")[0] else advice[:1].upper() + advice[1:]
        remedy = REMEDIES.get(code) or f"{begins}."
        raises = f"`{kind.__name__}`" if kind is not None else ""
        rows.append([str(code), f"`{error_codes.error_name(code)}`", does, raises, remedy])
    return _table(["code", "name", "what the member does", "raises", "what to do"], rows)


def commands() -> str:
    """Return every command with its flags."""
    parts = []
    for name, command in sorted(COMMANDS.items()):
        parser = argparse.ArgumentParser(name)
        add_flags(command, parser)
        parts.append(f"### {name}\n\n{command.help[:1].upper()}{command.help[1:]}.\n")
        rows = []
        for action in parser._actions:
            if action.help == argparse.SUPPRESS or "--help" in action.option_strings:
                continue
            flag = ", ".join(action.option_strings) or (action.metavar or action.dest)
            formatter = parser._get_formatter()
            value = formatter._format_args(action, action.dest.upper()) if action.option_strings else ""
            rows.append([f"`{f'{flag} {value}'.strip()}`", formatter._expand_help(action) if action.help else ""])
        parts.append(_table(["flag", "what it does"], rows) + "\n")
    return "\n".join(parts)


def json_documents() -> str:
    """Return the fields of every document that ``--json`` prints."""
    parts = []
    for name, schema in {**json_schema.schemas(), "lag --interval-ms": json_schema.schema_of(documents.LiveLine)}.items():
        title = "one line of " if " " in name else ""
        parts.append(f"### {title}{name} --json\n")
        parts.append(_table(["field", "type", "meaning"], _fields("", schema)) + "\n")
    return "\n".join(parts)


def _fields(path: str, schema: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield a row for each field, also of the objects inside."""
    for name, field in schema.get("properties", {}).items():
        choices = field.get("anyOf", [field])
        kinds = [f"array of {one['items']['type']}s" if one["type"] == "array" else one["type"] for one in choices]
        yield [f"`{path}{name}`", " or ".join(kinds), field.get("description", "")]
        for one in choices:
            inner = one.get("items", one)
            yield from _fields(f"{path}{name}{'[]' if 'items' in one else ''}.", inner)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(heads), line(["---"] * len(heads)), *map(line, rows)])


#: The parts that a page may name.
PARTS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "aliases": aliases,
    "data plane": data_plane_settings,
    "metrics": metrics,
    "metric names": metric_names,
    "log lines": log_lines,
    "exceptions": exceptions,
    "error codes": error_code_table,
    "commands": commands,
    "json documents": json_documents,
}
