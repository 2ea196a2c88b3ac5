"""What the pages of docs/reference/ say about settings, metrics, log lines, errors and commands, drawn from the code.

A page has a line such as ``<!-- from the code: settings -->``; docs/conf.py puts :func:`settings` in its place.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from consumer_coord import cli, errors
from consumer_coord.config import _CLIENT_INTEGERS, _COORDINATOR_INTEGERS, ALIASES, parse
from consumer_coord.group import answers
from consumer_coord.group.metrics import NAMES
from consumer_coord.monitoring import opentelemetry, prometheus, source
from consumer_coord.setting_names import LIBRDKAFKA
from consumer_coord.wire import error_codes

ROOT = Path(__file__).resolve().parents[1]

#: setting -> what it does, and what it costs or when to change it.  A default here is one that config.py computes.
SETTINGS: Mapping[str, tuple[str, str]] = {
    "bootstrap.servers": ("Brokers to begin with: `host:port,host:port`. Required.", "Name two or three: one may be down."),
    "client.id": ("Names this client in the brokers' logs, quotas and member ids.", "Set it to the application's name."),
    "client.rack": (
        "The rack of this client, for rack-aware assignors and for fetching from the nearest replica.",
        "Set it where traffic between zones costs money; the brokers need `replica.selector.class` for the second part.",
    ),
    "group.id": ("The name of the consumer group. Required.", ""),
    "group.instance.id": (
        "Makes the member static: a restart within its session moves nothing, and closing does not leave (KIP-345).",
        "Each running member needs one of its own. A member that dies is missed only after `session.timeout.ms`.",
    ),
    "group.protocol": (
        "`classic`: a member of the group assigns. `consumer` (KIP-848): the broker does.",
        "`consumer` needs Kafka 4.0; there the broker assigns, and an assignor in Python is not used.",
    ),
    "group.remote.assignor": (
        "The broker's assignor, with `group.protocol=consumer`: one of the brokers' `group.consumer.assignors`.",
        "`range` where topics are joined partition by partition; else leave it to the brokers, whose first one is `uniform`.",
    ),
    "group.lease.enable": (
        "Hand out records only while the coordinator must still count this member.",
        "Off, a member reads on without a coordinator, and two members may read one partition.",
    ),
    "poll.raises.errors": (
        "`GroupConsumer.poll` and `consume` raise what goes wrong in the background; else: a message with `error()`.",
        "Programs written for confluent-kafka check `error()`; on, a forgotten check cannot hide an error.",
    ),
    "partition.assignment.strategy": (
        "Assignors, the favourite first: names, entry points, or `module:Class`.",
        "`cooperative-sticky` alone gives the better rebalances, once every member of the group has it.",
    ),
    "session.timeout.ms": (
        "Silence after which the coordinator drops the member.",
        "Lower: a dead member's partitions move sooner, and a pause of the process costs a rebalance. Brokers bound it.",
    ),
    "heartbeat.interval.ms": (
        "How often the coordinator is asked, and so how soon a rebalance is noticed. A third of a shorter session.",
        "Lower: faster rebalances, more requests: one per member and interval.",
    ),
    "max.poll.interval.ms": (
        "Time between two polls after which the member leaves the group (a static one falls silent).",
        "Raise it above your slowest batch. An application that hangs keeps its partitions that long.",
    ),
    "rebalance.timeout.ms": (
        "How long the group waits for this member in a rebalance; `max.poll.interval.ms` unless given.",
        "Lower it where batches are long and the group is cooperative: a member that hangs holds the others up less.",
    ),
    "release.linger.ms": (
        "After letting go of partitions, how long at most to wait for other members of this process before the second round.",
        "0 joins at once; a process with many consumers then makes more generations.",
    ),
    "assignor.timeout.ms": (
        "How long an assignor may take before the leader gives up and leaves.",
        "Raise it for a slow assignor, but keep it below `rebalance.timeout.ms`.",
    ),
    "enable.auto.commit": (
        "Commit what was finished at a poll, every so often, and before partitions are revoked.",
        "Off when you commit yourself, or in a transaction.",
    ),
    "auto.commit.interval.ms": (
        "How often automatic commits are sent.",
        "Lower: fewer records twice after a crash, more requests.",
    ),
    "auto.offset.reset": (
        "Where to begin without a commit: `earliest`, `latest`, `none` (an error), or `by_duration:PT1H`.",
        "`latest` skips what was written before the first poll: for most new groups `earliest` is meant.",
    ),
    "isolation.level": (
        "`read_committed` hides records of open and aborted transactions, `read_uncommitted` shows them.",
        "An open transaction holds up readers of committed records behind it.",
    ),
    "exclude.internal.topics": ("Leaves `__consumer_offsets` and the like out of patterns.", ""),
    "allow.auto.create.topics": (
        "Whether subscribing to a topic that does not exist may create it.",
        "Off: a misspelled name becomes no topic.",
    ),
    "default.api.timeout.ms": ("The time limit of blocking calls that take none.", ""),
    "socket.timeout.ms": (
        "How long a request may take (JoinGroup and SyncGroup wait longer). Java calls it `request.timeout.ms`.",
        "Lower: a dead broker is noticed sooner; below a slow broker's pauses requests fail for nothing.",
    ),
    "socket.connection.setup.timeout.ms": ("How long opening a connection may take, TLS and SASL included.", ""),
    "reconnect.backoff.ms": ("Pause before the second try to connect to a broker; it doubles with each try.", ""),
    "reconnect.backoff.max.ms": ("The longest such pause.", ""),
    "retry.backoff.ms": ("Pause before a failed request is tried again; it doubles with each try, with jitter.", ""),
    "retry.backoff.max.ms": ("The longest such pause.", ""),
    "metadata.max.age.ms": (
        "How old the cluster's metadata may become.",
        "Lower: new topics of a pattern and new partitions are found sooner, with more requests.",
    ),
    "metadata.recovery.rebootstrap.trigger.ms": (
        "When the known brokers have answered no request for metadata for this time, `bootstrap.servers` are asked, too.",
        "",
    ),
    "connections.max.idle.ms": ("An idle connection is closed after this time; 0 never.", ""),
}
#: Where the default is not the attribute's of that name.
_FIELDS = {"bootstrap.servers": None, "group.id": None, "partition.assignment.strategy": "strategy"}


@attrs.frozen
class Setting:
    """A setting of the control plane; ``default`` and ``bounds`` are Markdown, empty for none."""

    name: str
    default: str
    bounds: str
    plane: str
    what: str
    cost: str


def setting_list() -> Iterator[Setting]:
    """Every setting that the control plane knows."""
    for name, (what, cost) in SETTINGS.items():
        yield Setting(name, _default(name), _range(name), _plane(name), what, cost)


def settings() -> str:
    """Every setting that the control plane knows, with its default, its range and its plane."""
    parts = []
    for one in setting_list():
        facts = [f"default {one.default}" if one.default else "no default", one.bounds, f"plane: {one.plane}"]
        parts.append(f"### `{one.name}`\n\n*{'; '.join(filter(None, facts))}*\n\n{one.what}\n\n{one.cost}\n")
    return "\n".join(parts)


def _default(name: str) -> str:
    parsed = parse({"bootstrap.servers": "localhost:9092", "group.id": "g"})
    if name in _FIELDS:
        field = _FIELDS[name]
        return "" if field is None else f"`{','.join(getattr(parsed, field))}`"
    for part in (parsed.coordinator, parsed.client, parsed):
        field = _field(name, part)
        if field is not None:
            value = getattr(part, field)
            return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    raise LookupError(name)


def _field(name: str, part: Any) -> str | None:
    given = {**_COORDINATOR_INTEGERS, **_CLIENT_INTEGERS}.get(name)
    field = given[0] if given else name.replace(".", "_")
    return field if hasattr(part, field) else None


def _range(name: str) -> str:
    given = _COORDINATOR_INTEGERS.get(name) or _CLIENT_INTEGERS.get(name)
    return f"{given[1]} to {given[2]}" if given else ""


def _plane(name: str) -> str:
    """Whether librdkafka gets the setting as it is, seen by giving it one."""
    example = {"group.id": "x", "bootstrap.servers": "x:1", "client.id": "x", "client.rack": "x"}.get(name)
    if name in _COORDINATOR_INTEGERS or name in _CLIENT_INTEGERS:
        low = {**_COORDINATOR_INTEGERS, **_CLIENT_INTEGERS}[name][1]
        example = str(max(low, 60_000 if name == "session.timeout.ms" else 1_000))
    given: dict[str, Any] = {"bootstrap.servers": "h:1", "group.id": "g"}
    if example is not None:
        given[name] = example
    else:
        given[name] = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}.get(name, "true")
    if name == "partition.assignment.strategy":
        given[name] = "range"
    if name in ("group.protocol", "group.remote.assignor"):
        given |= {"group.protocol": "consumer", "group.remote.assignor": "uniform"}
    if name in ("reconnect.backoff.max.ms", "retry.backoff.max.ms"):
        given[name] = "10000"
    passed = parse(given).librdkafka
    return "both" if name in LIBRDKAFKA and str(passed.get(name)) == str(given[name]) else "control"


def aliases() -> str:
    """Java's and librdkafka's names for one setting."""
    return _table(["also called", "here"], [[f"`{name}`", f"`{ours}`"] for name, ours in sorted(ALIASES.items())])


def data_plane_settings() -> str:
    """What goes to librdkafka and is of no interest to the coordinator."""
    security = ("ssl.", "sasl.", "security.", "enable.ssl.", "enable.sasl.", "https.")
    ours = {*SETTINGS, *ALIASES, "group.protocol", "group.protocol.type", "group.remote.assignor", "oauth_cb"}
    names = sorted(name for name in LIBRDKAFKA - ours if not name.startswith(security))
    return ", ".join(f"`{name}`" for name in names) + "."


def metrics() -> str:
    """Every figure with its names in Prometheus and OpenTelemetry."""
    rows = [
        [
            f"`{name}`",
            source.unit(name),
            source.describe(name),
        ]
        for name in NAMES
    ]
    return _table(["figure", "unit", "what it tells"], rows)


def metric_names() -> str:
    """How a figure is called elsewhere."""
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
    """Every log line at INFO and above, by the text that it is made from."""
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
    """Every log line at INFO and above."""
    order = {level: number for number, level in enumerate(("error", "warning", "info"))}
    found = sorted(set(logged()), key=lambda line: (order[line.level], line.module, line.text))
    return _table(["level", "line", "logger"], [[one.level.upper(), f"`{one.text}`", f"`{one.module}`"] for one in found])


def exceptions() -> str:
    """The classes of :mod:`consumer_coord.errors`, as a tree."""
    lines: list[str] = []

    def tell(kind: type[BaseException], depth: int) -> None:
        said = " ".join((kind.__doc__ or "").split())
        lines.append(f"{'  ' * depth}* `{kind.__name__}`: {said.replace('``', '`')}")
        for below in sorted(kind.__subclasses__(), key=lambda one: one.__name__):
            if below.__module__ == errors.__name__:
                tell(below, depth + 1)

    tell(errors.CoordinatorError, 0)
    return "\n".join(lines)


#: What to do about an error code, where no table of the code says it.
REMEDIES: Mapping[int, str] = {
    error_codes.ILLEGAL_GENERATION: "None: the member joins again. A commit fails if its partitions moved meanwhile.",
    error_codes.UNKNOWN_MEMBER_ID: "None, once. Often: raise `session.timeout.ms`, or look for long pauses of the process.",
    error_codes.REBALANCE_IN_PROGRESS: "None: the member joins; commits of what it keeps are sent again by themselves.",
    error_codes.MEMBER_ID_REQUIRED: "None: the first answer to every new member (KIP-394).",
    error_codes.NOT_COORDINATOR: "None: the coordinator moved, and is looked up again.",
    error_codes.COORDINATOR_NOT_AVAILABLE: "Wait: a new cluster makes `__consumer_offsets`. If it lasts, look at the brokers.",
    error_codes.COORDINATOR_LOAD_IN_PROGRESS: "Wait: a broker is reading the groups it took over.",
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: "Create the topic, or correct its name. The member waits for it.",
    error_codes.OFFSET_METADATA_TOO_LARGE: "Shorten the commit's metadata, or raise the brokers' `offset.metadata.max.bytes`.",
    error_codes.UNSTABLE_OFFSET_COMMIT: "Wait: a transaction with offsets of this partition is open.",
    error_codes.SASL_AUTHENTICATION_FAILED: "Check `sasl.username`, `sasl.password`, or what `oauth_cb` returns.",
    error_codes.UNSUPPORTED_SASL_MECHANISM: "Set `sasl.mechanism` to one that the listener has; the message lists them.",
    error_codes.ILLEGAL_SASL_STATE: "The listener has no SASL: set `security.protocol` to `plaintext` or `ssl`.",
}


def error_code_table() -> str:
    """Kafka's error codes that a member meets, what it does by itself, and what is left to do."""
    rows = []
    advised = answers._ADVICE
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
        # Names of settings stay as they are.
        begins = advice if "." in advice.split(" ")[0] else advice[:1].upper() + advice[1:]
        remedy = REMEDIES.get(code) or f"{begins}."
        raises = f"`{kind.__name__}`" if kind is not None else ""
        rows.append([str(code), f"`{error_codes.error_name(code)}`", does, raises, remedy])
    return _table(["code", "name", "what the member does", "raises", "what to do"], rows)


def commands() -> str:
    """Every command with its flags."""
    parts = []
    for name, (parser, help_) in sorted(parsers().items()):
        parts.append(f"### {name}\n\n{help_[:1].upper()}{help_[1:]}.\n")
        rows = []
        for action in parser._actions:
            if action.help == argparse.SUPPRESS or "--help" in action.option_strings:
                continue
            flag = ", ".join(action.option_strings) or (action.metavar or action.dest)
            value = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
            choices = f" ({', '.join(map(str, action.choices))})" if action.choices else ""
            rows.append([f"`{flag}{value}`", f"{(action.help or '').replace('%%', '%')}{choices}"])
        parts.append(_table(["flag", "what it does"], rows) + "\n")
    return "\n".join(parts)


def parsers() -> Mapping[str, tuple[argparse.ArgumentParser, str]]:
    """Command -> its parser and what it does in a line."""
    found: dict[str, tuple[argparse.ArgumentParser, str]] = {}
    for asked in ("", *cli.ELSEWHERE):
        for action in cli.build_parser([asked])._actions:
            if isinstance(action, argparse._SubParsersAction):
                helps = {one.dest: one.help or "" for one in action._choices_actions}
                for name, one in action.choices.items():
                    if name == asked or name not in found:
                        found[name] = (one, helps[name])
    return found


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(heads), line(["---"] * len(heads)), *map(line, rows)])


#: What a page may ask for.
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
}
