"""Run the operators' commands: read the arguments, print lines or JSON, and return an exit code for scripts."""

from __future__ import annotations

import argparse
import enum
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from consumer_coord.admin import text
from consumer_coord.admin.documents import (
    DeleteDocument,
    DeletedOffset,
    DeleteOffsetsDocument,
    DescribeDocument,
    FailedGroup,
    ListDocument,
    ListedGroup,
    ResetDocument,
    ResetGroup,
    UnlistedBroker,
)
from consumer_coord.admin.groups import (
    INACTIVE,
    SHARE,
    GroupDescription,
    Listings,
    delete_groups,
    describe_groups,
    list_groups,
)
from consumer_coord.admin.lag_flags import lag_policy
from consumer_coord.admin.offset_access import (
    commit_offsets,
    delete_offsets,
    delete_start_offsets,
    set_start_offsets,
)
from consumer_coord.admin.report import GroupReport, report_groups
from consumer_coord.admin.reset import (
    Reset,
    Rule,
    commits_of,
    export_plan,
    parse_datetime,
    parse_duration_ms,
    parse_plan,
    partitions_of,
    plan_reset,
)
from consumer_coord.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ConfigurationError,
    CoordinatorError,
    RetriableError,
    UnknownTopicError,
)
from consumer_coord.log_text import printable, printable_json
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, grouped, listed
from consumer_coord.wire import error_codes as codes


class ExitCode(enum.IntEnum):
    """The exit code of a command."""

    DONE = 0
    #: A broker refused the request, for a reason without a separate exit code.
    FAILED = 1
    #: Invalid flags or settings.
    USAGE = 2
    #: A group, a topic or a partition does not exist.
    NOT_FOUND = 3
    #: The group has active members, but the command requires a group without active members.
    IN_USE = 4
    #: The credentials were refused, or the principal is not authorized.
    NOT_ALLOWED = 5
    #: No broker responded in time.
    TIMED_OUT = 6
    #: ``lag --max-lag``, ``lag --max-lag-seconds``: the lag of some partition is larger than the argument.
    BEHIND = 7
    #: Some brokers did not answer in time, so the result is incomplete.
    INCOMPLETE = 8


#: Exit codes for a partition that certainly has no lag to show.
_DEFINITE = frozenset({ExitCode.NOT_FOUND, ExitCode.NOT_ALLOWED})

_IN_USE = frozenset({codes.NON_EMPTY_GROUP, codes.UNKNOWN_MEMBER_ID, codes.GROUP_SUBSCRIBED_TO_TOPIC})


def exit_code(error: CoordinatorError) -> ExitCode:
    """Return the exit code for an error."""
    if isinstance(error, ConfigurationError):
        return ExitCode.USAGE
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return ExitCode.NOT_ALLOWED
    if isinstance(error, UnknownTopicError) or error.code == codes.GROUP_ID_NOT_FOUND:
        return ExitCode.NOT_FOUND
    if error.code in _IN_USE:
        return ExitCode.IN_USE
    return ExitCode.TIMED_OUT if isinstance(error, RetriableError) else ExitCode.FAILED


def warn(message: str) -> None:
    """Print a line to stderr, after an empty line if the message begins with a line feed."""
    line = message.removeprefix("\n")
    print("\n" * (line != message) + printable(line), file=sys.stderr)


def print_json(value: Mapping[str, object]) -> None:
    """Print the whole output of a command as one document."""
    print(printable_json(value, indent=2))


@attrs.frozen
class Chosen:
    """The groups that the arguments select; ``unlisted`` has the brokers whose groups are unknown (with ``--all-groups``)."""

    groups: tuple[str, ...]
    unlisted: Mapping[Broker, CoordinatorError] = attrs.field(factory=dict)

    def complete(self) -> tuple[str, ...]:
        """Return the groups for a command that changes them; raise the error of a broker whose groups are unknown."""
        Listings((), self.unlisted).complete()
        return self.groups


async def chosen_groups(cluster: ClusterClient, arguments: argparse.Namespace, deadline: Deadline) -> Chosen:
    """Return the groups that the arguments select; raise :class:`ConfigurationError` if the arguments select no group."""
    named = [*arguments.groups, *(arguments.group or ())]
    if arguments.all_groups:
        if named:
            raise ConfigurationError("--all-groups and the name of a group cannot be combined")
        found = await list_groups(cluster, deadline)
        return Chosen(tuple(listing.group_id for listing in found.groups if listing.is_consumer_group), found.unlisted)
    if not named:
        raise ConfigurationError("name a group, or give --all-groups")
    return Chosen(tuple(sorted(set(named))))


def failures_as_json(failures: Mapping[str, CoordinatorError]) -> list[FailedGroup]:
    """Return a row for each group that failed."""
    return [
        {"group": group, "error": str(error), "code": error.code, "exit_code": int(exit_code(error))}
        for group, error in failures.items()
    ]


def unlisted_as_json(unlisted: Mapping[Broker, CoordinatorError]) -> list[UnlistedBroker]:
    """Return a row for each broker whose groups are unknown."""
    return [
        {"broker": broker.id, "address": broker.address, "error": str(error), "code": error.code}
        for broker, error in unlisted.items()
    ]


def report_unlisted(unlisted: Mapping[Broker, CoordinatorError]) -> ExitCode:
    """Print the brokers whose groups are unknown; return INCOMPLETE if there are any."""
    for broker, error in unlisted.items():
        warn(f"\nWarning: the groups of broker {broker.id} ({broker.address}) are unknown: {error}")
    return ExitCode.INCOMPLETE if unlisted else ExitCode.DONE


def report_failures(failures: Mapping[str, CoordinatorError], *, alone: bool = True) -> ExitCode:
    """Print each error, and return the exit code of the first error.

    If other groups were reported (not ``alone``), groups whose brokers did not answer make the result incomplete.
    """
    for group, error in failures.items():
        warn(f"\nError: group '{group}': {error}" if isinstance(error, RetriableError) else f"\nError: {error}")
    outcomes = [exit_code(error) for error in failures.values()]
    if not alone:
        outcomes = [ExitCode.INCOMPLETE if code is ExitCode.TIMED_OUT else code for code in outcomes]
    return next(iter(outcomes), ExitCode.DONE)


def split_reports(
    found: Mapping[str, GroupReport | CoordinatorError],
) -> tuple[list[GroupReport], dict[str, CoordinatorError]]:
    """Return the reports, and the errors by group."""
    reports = [one for one in found.values() if isinstance(one, GroupReport)]
    return reports, {group: one for group, one in found.items() if isinstance(one, CoordinatorError)}


def note_uncommitted(report: GroupReport, without_commit: str) -> None:
    """Print which partitions have no commit, and how their lag counts."""
    counts = "this lag counts from the beginning of the log" if without_commit == "earliest" else "this lag is 0"
    warn(f"\nNote: group '{report.group.group_id}' has no commit for {listed(report.uncommitted)}; {counts}")


def report_left_out(reports: Iterable[GroupReport], without_commit: str, named: Collection[str] = ()) -> ExitCode:
    """Print the partitions that the lags do not include; return the exit code of the first error.

    For an empty report of a group in ``named``, the exit code is NOT_FOUND, because brokers omit topics that the principal
    may not describe.
    """
    outcome = ExitCode.DONE
    for report in reports:
        name = report.group.group_id
        for partition, error in report.left_out.items():
            warn(f"\nWarning: {partition} is not included in the lag of group '{name}': {error}")
            found = exit_code(error)
            outcome = outcome or (found if found in _DEFINITE else ExitCode.INCOMPLETE)
        for partition, error in report.seconds_left_out.items():
            warn(f"\nWarning: {partition} is not included in the lag in seconds of group '{name}': {error}")
            outcome = outcome or ExitCode.INCOMPLETE
        if report.uncommitted:
            note_uncommitted(report, without_commit)
        if not report.rows and report.group.group_id in named:
            warn(
                f"\nWarning: group '{report.group.group_id}' has no assigned partitions, and no committed offsets that this"
                " principal may describe"
            )
            outcome = outcome or ExitCode.NOT_FOUND
    return outcome


# -- list, describe ------------------------------------------------------------------------------------------------


async def list_command(cluster: ClusterClient, arguments: argparse.Namespace, deadline: Deadline) -> ExitCode:
    """Run ``list``: the names of all groups, of every type."""
    found = await list_groups(cluster, deadline, states=arguments.state or (), types=arguments.type or ())
    if arguments.json:
        listed_groups: list[ListedGroup] = [
            {"group": one.group_id, "type": one.type, "state": one.state} for one in found.groups
        ]
        document: ListDocument = {"groups": listed_groups, "unlisted": unlisted_as_json(found.unlisted)}
        print_json(document)
    elif found.groups:
        print(text.listing_table(found.groups, state=arguments.state is not None, type_=arguments.type is not None))
    return report_unlisted(found.unlisted)


async def describe_command(cluster: ClusterClient, arguments: argparse.Namespace, deadline: Deadline) -> ExitCode:
    """Run ``describe``: members, assignor, owned partitions, offsets, lag."""
    offsets = arguments.json or not (arguments.members or arguments.state)
    chosen = await chosen_groups(cluster, arguments, deadline)
    policy = lag_policy(arguments) if offsets else None
    reports, failures = split_reports(await report_groups(cluster, chosen.groups, deadline, policy))
    if arguments.json:
        document: DescribeDocument = {
            "groups": [report.as_json() for report in reports],
            "errors": failures_as_json(failures),
            "unlisted": unlisted_as_json(chosen.unlisted),
        }
        print_json(document)
    else:
        for report in reports:
            _print_report(report, arguments)
    left_out = report_left_out(reports, arguments.without_commit)
    return report_failures(failures, alone=not reports) or left_out or report_unlisted(chosen.unlisted)


def _print_report(report: GroupReport, arguments: argparse.Namespace) -> None:
    group = report.group
    if group.state == "Empty":
        warn(f"\n{group.kind.capitalize()} '{group.group_id}' has no active members.")
    elif group.state != "Stable":
        warn(f"\nWarning: {group.kind.capitalize()} '{group.group_id}' is rebalancing.")
    if arguments.members:
        print("\n" + text.members_table(report, verbose=arguments.verbose))
    elif arguments.state:
        print("\n" + text.state_table(report, verbose=arguments.verbose))
    elif report.rows:
        print("\n" + text.offsets_table(report, verbose=arguments.verbose, seconds=arguments.seconds))


# -- reset ----------------------------------------------------------------------------------------------------------


def chosen_rule(arguments: argparse.Namespace) -> tuple[Rule, Any]:
    """Return the one reset rule among the arguments, with its value."""
    values = {
        Rule.EARLIEST: arguments.to_earliest or None,
        Rule.LATEST: arguments.to_latest or None,
        Rule.CURRENT: arguments.to_current or None,
        Rule.OFFSET: arguments.to_offset,
        Rule.SHIFT: arguments.shift_by,
        Rule.DATETIME: arguments.to_datetime,
        Rule.DURATION: arguments.by_duration,
        Rule.FILE: arguments.from_file,
    }
    given = [(rule, value) for rule, value in values.items() if value is not None]
    if len(given) != 1:
        raise ConfigurationError("choose one of these rules: " + ", ".join(rule.value for rule in Rule))
    return given[0]


def check_reset(arguments: argparse.Namespace) -> None:
    """Raise :class:`ConfigurationError` for contradictory flags, before any request is sent."""
    rule, value = chosen_rule(arguments)
    if arguments.execute and arguments.dry_run:
        raise ConfigurationError("--execute and --dry-run cannot be combined")
    if arguments.all_topics and arguments.topic:
        raise ConfigurationError("--all-topics and --topic cannot be combined")
    if rule is Rule.FILE and arguments.topic:
        raise ConfigurationError(
            "--from-file resets all partitions in the file: remove --topic, or the other lines of the file"
        )
    if rule is not Rule.FILE and not arguments.all_topics and not arguments.topic:
        raise ConfigurationError("choose the partitions to reset: give --all-topics, or --topic with a name or with name:0,1,2")
    if rule is Rule.OFFSET and value < 0:
        raise ConfigurationError("--to-offset must be 0 or greater")
    if rule is Rule.DATETIME:
        parse_datetime(value)
    if rule is Rule.DURATION:
        parse_duration_ms(value)


async def reset_command(cluster: ClusterClient, arguments: argparse.Namespace, deadline: Deadline) -> ExitCode:
    """Run ``reset``: a dry run unless ``--execute`` is given. Refuse to reset a group that has active members."""
    check_reset(arguments)
    groups = (await chosen_groups(cluster, arguments, deadline)).complete()
    resets = _resets(cluster, arguments, groups)
    plans: dict[str, Mapping[TopicPartition, int]] = {}
    before: dict[str, Mapping[TopicPartition, int]] = {}
    notes: list[str] = []
    failures: dict[str, CoordinatorError] = {}
    outcome = ExitCode.DONE
    described = await describe_groups(cluster, groups, deadline)
    for group_id, found in described.items():
        refused = _why_not_reset(arguments, group_id, found, resets)
        share = isinstance(found, GroupDescription) and found.type == SHARE
        if refused is None:
            given = frozenset() if arguments.all_topics else await partitions_of(cluster, arguments.topic or (), deadline)
            committed = await commits_of(cluster, group_id, deadline, partitions=given, share=share)
            if arguments.all_topics and arguments.from_file is None and not committed:
                refused = BrokerError(
                    f"consumer group '{group_id}' has no committed offsets that this principal may describe; give"
                    " --topic instead of --all-topics",
                    code=codes.GROUP_ID_NOT_FOUND,
                )
        if refused is not None:
            failures[group_id] = refused
            refusal = report_failures({group_id: refused})
            outcome = outcome or refusal
            continue
        before[group_id] = {partition: one.offset for partition, one in committed.items()}
        scope = frozenset(committed) if arguments.all_topics else given
        plan = await plan_reset(cluster, group_id, resets[group_id], scope, deadline, share=share)
        notes += plan.warnings
        plans[group_id] = plan.offsets
    if arguments.execute:
        # Every group has its plan before the first commit, so an error in a plan changes no group.
        for group_id, offsets in plans.items():
            found = described[group_id]
            share = isinstance(found, GroupDescription) and found.type == SHARE
            plans[group_id], failed = await _execute(cluster, group_id, offsets, deadline, share=share)
            failures.update(failed)
            outcome = outcome or next(map(exit_code, failed.values()), ExitCode.DONE)
    _print_reset(arguments, plans, before, notes, failures)
    return outcome


async def _execute(
    cluster: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, int], deadline: Deadline, *, share: bool
) -> tuple[Mapping[TopicPartition, int], Mapping[str, CoordinatorError]]:
    """Commit the new offsets of one group, and print each error; return the committed offsets and the errors."""
    if not offsets:
        return offsets, {}
    try:
        committing = await (set_start_offsets if share else commit_offsets)(cluster, group_id, offsets, deadline)
    except CoordinatorError as error:
        warn(f"\nError: {error}")
        return {}, {group_id: error}
    failed = {partition: why for partition, why in committing.items() if why is not None}
    for partition, why in failed.items():
        warn(f"\nError: {partition} of group '{group_id}' was not reset: {why}")
    committed = {partition: offset for partition, offset in offsets.items() if partition not in failed}
    return committed, {f"{group_id}: {partition}": why for partition, why in failed.items()}


def _why_not_reset(
    arguments: argparse.Namespace,
    group_id: str,
    found: GroupDescription | CoordinatorError,
    resets: Mapping[str, Reset],
) -> CoordinatorError | None:
    """Return the reason why a group cannot be reset, or None if the reset is possible."""
    if isinstance(found, CoordinatorError):
        # A group that does not exist may get initial offsets. But it has no topics, so --all-topics is an error.
        missing = found.code == codes.GROUP_ID_NOT_FOUND
        if not missing or (arguments.all_topics and arguments.from_file is None):
            return found
    elif found.state not in INACTIVE:
        return BrokerError(
            f"Assignments can only be reset if the group '{group_id}' is inactive, but the current state is {found.state}.",
            code=codes.NON_EMPTY_GROUP,
        )
    if group_id not in resets:
        return BrokerError(f"No reset plan for group {group_id} found", code=codes.GROUP_ID_NOT_FOUND)
    return None


def _resets(cluster: ClusterClient, arguments: argparse.Namespace, groups: Sequence[str]) -> Mapping[str, Reset]:
    rule, value = chosen_rule(arguments)
    if rule is Rule.FILE:
        try:
            # Spreadsheets begin a file with a byte order mark.
            content = Path(value).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise ConfigurationError(f"--from-file {value}: {reason}") from None
        plans = parse_plan(content, groups)
        return {group: Reset(rule, offsets=plans[group]) for group in groups if plans[group]}
    if rule is Rule.DATETIME:
        number = parse_datetime(value)
    elif rule is Rule.DURATION:
        number = cluster.environment.wall_clock_ms() - parse_duration_ms(value)
    else:
        number = int(value)
    return dict.fromkeys(groups, Reset(rule, number))


def _print_reset(
    arguments: argparse.Namespace,
    plans: Mapping[str, Mapping[TopicPartition, int]],
    before: Mapping[str, Mapping[TopicPartition, int]],
    notes: Iterable[str],
    failures: Mapping[str, CoordinatorError],
) -> None:
    if arguments.json:
        groups: list[ResetGroup] = [
            {
                "group": group,
                "partitions": [
                    {
                        "topic": partition.topic,
                        "partition": partition.partition,
                        "old_offset": before[group].get(partition),
                        "new_offset": offset,
                    }
                    for partition, offset in sorted(offsets.items())
                ],
            }
            for group, offsets in plans.items()
        ]
        document: ResetDocument = {
            "executed": arguments.execute,
            "groups": groups,
            "warnings": list(notes),
            "errors": failures_as_json(failures),
        }
        print_json(document)
        return
    for note in notes:
        warn(f"\nWarning: {note}")
    if arguments.export:
        print(export_plan(plans), end="")
    elif plans:
        print("\n" + text.reset_table(plans))
    if plans and not arguments.execute and not arguments.dry_run:
        warn("\nA dry run: nothing was changed. Add --execute to set these offsets.")


# -- delete ---------------------------------------------------------------------------------------------------------


async def delete_command(cluster: ClusterClient, arguments: argparse.Namespace, deadline: Deadline) -> ExitCode:
    """Run ``delete``: delete empty groups with their offsets."""
    groups = (await chosen_groups(cluster, arguments, deadline)).complete()
    described = await describe_groups(cluster, groups, deadline)
    outcome = await delete_groups(cluster, groups, deadline)
    failures = {group: error for group, error in outcome.items() if error is not None}
    deleted = [group for group in outcome if group not in failures]
    if arguments.json:
        document: DeleteDocument = {"deleted": deleted, "errors": failures_as_json(failures)}
        print_json(document)
    else:
        _print_deleted(deleted, described)
    return report_failures(failures)


def _print_deleted(deleted: Iterable[str], described: Mapping[str, GroupDescription | CoordinatorError]) -> None:
    kinds = grouped(
        (found.kind if isinstance(found := described[group], GroupDescription) else "consumer group", group)
        for group in deleted
    )
    for kind, groups in kinds.items():
        names = printable(", ".join(f"'{group}'" for group in groups))
        print(f"Deletion of requested {kind}s ({names}) was successful.")


async def delete_offsets_command(cluster: ClusterClient, arguments: argparse.Namespace, deadline: Deadline) -> ExitCode:
    """Run ``delete-offsets``: delete a group's committed offsets of some topics."""
    groups = (await chosen_groups(cluster, arguments, deadline)).complete()
    if len(groups) != 1 or not arguments.topic:
        raise ConfigurationError("delete-offsets takes one group, and one or more --topic flags")
    found = (await describe_groups(cluster, groups, deadline))[groups[0]]
    if isinstance(found, RetriableError):
        # The offsets of a share group are deleted by another request.
        raise found
    partitions = await partitions_of(cluster, arguments.topic, deadline)
    outcome: Mapping[TopicPartition, CoordinatorError | None]
    if isinstance(found, GroupDescription) and found.type == SHARE:
        if any(":" in topic for topic in arguments.topic):
            raise ConfigurationError(f"'{groups[0]}' is a share group, whose offsets are deleted by topic: name no partitions")
        by_name = await delete_start_offsets(cluster, groups[0], set(arguments.topic), deadline)
        outcome = {partition: by_name[partition.topic] for partition in sorted(partitions)}
    else:
        outcome = await delete_offsets(cluster, groups[0], partitions, deadline)
    failures = {str(partition): error for partition, error in outcome.items() if error is not None}
    if arguments.json:
        rows: list[DeletedOffset] = [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "error": None if error is None else str(error),
                "code": 0 if error is None else error.code,
            }
            for partition, error in outcome.items()
        ]
        document: DeleteOffsetsDocument = {"group": groups[0], "partitions": rows}
        print_json(document)
    else:
        status = {one: "Successful" if error is None else f"Error: {error}" for one, error in outcome.items()}
        print("\n" + text.deletion_table(status))
    return next(map(exit_code, failures.values()), ExitCode.DONE)
