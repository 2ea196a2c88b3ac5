"""Operators' commands at brokers that edit their responses: each edit of the response to each request that a command sends.

A command prints what is true, or ends with an error within its time limit. It never says that a group or a topic does not exist
because a row is missing, and asks again with back-off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import pytest

from consumer_coord.admin import ask, groups, offset_access, reset
from consumer_coord.admin.commands import ExitCode
from consumer_coord.errors import UnsupportedVersionError
from consumer_coord.lag.log_offsets import topics_metadata
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.simulation.wrong_answers import edited, edits_of
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import APIS
from tests.support.simulation.operators import TIMEOUT_MS, Ran, run_commands

#: Longest time of a command after its time limit, and how often it may send one kind of request in a second, for three groups.
_SLACK_S: Final = 0.5
_MOST: Final = 20
#: A command may end with these; the other exit codes say what is certain, such as that a group does not exist.
_REFUSED: Final = frozenset({ExitCode.FAILED, ExitCode.TIMED_OUT, ExitCode.INCOMPLETE})

_Pairs = frozenset[tuple[str, str]]
#: Lists that only a broker knows: no client can notice that something is missing in them, or does not exist.
_LISTS: Final[_Pairs] = frozenset(
    {("Metadata", "omitted"), *(("ListGroups", how) for how in ("omitted", "emptied", "foreign"))}
)
_MEMBERS: Final[_Pairs] = frozenset({("DescribeGroups", "foreign"), ("ConsumerGroupDescribe", "foreign")})
_COMMITS: Final[_Pairs] = frozenset({("OffsetFetch", "foreign")})
#: Leader epochs that are unknown are printed as unknown.
_EPOCHS: Final[_Pairs] = frozenset({("OffsetFetch", "epochless"), ("OffsetFetch", "minus-one")})
_ASSIGNED: Final[_Pairs] = frozenset({("ConsumerGroupDescribe", "omitted")})
_SETTINGS: Final[_Pairs] = frozenset({("Metadata", "omitted"), ("DescribeConfigs", "omitted"), ("DescribeConfigs", "foreign")})

#: Command about groups with members -> the requests and edits of which it prints what the brokers say.
READING: Final[Mapping[str, _Pairs]] = {
    "list --state": _LISTS,
    "describe classic modern idle": _MEMBERS | _COMMITS | _EPOCHS | _ASSIGNED,
    "lag classic modern idle --seconds": _MEMBERS | _COMMITS,
    "migrate classic": _SETTINGS | {("DescribeGroups", "foreign")},
    "migrate modern --to classic": _SETTINGS | _ASSIGNED | {("ConsumerGroupDescribe", "foreign")},
}
#: The same of commands about a group without members, most of which change it.
CHANGING: Final[Mapping[str, _Pairs]] = {
    "reset idle --topic orders --to-earliest --execute": frozenset(),
    "reset idle --all-topics --to-latest --execute": _COMMITS | {("OffsetFetch", "omitted")},
    # A partition too many has no commit.
    "reset idle --topic orders --shift-by -2 --execute": frozenset({("Metadata", "foreign")}),
    "reset idle --topic orders --to-datetime 2000-01-01T00:00:00.000": frozenset(),
    "delete idle": frozenset(),
    "delete-offsets idle --topic orders": frozenset(),
}
_LINES: Final = {**READING, **CHANGING}


def _cells(line: str) -> Iterator[tuple[str, str, Ran, Ran]]:
    """Run a command with each edit; return (request, edit, what an honest broker leads to, what this one leads to)."""
    with_members, words = line in READING, line.split()
    honest = run_commands([(words, None)], members=with_members, shared=False)[0]
    assert honest.code is ExitCode.DONE
    cells = [(key, edit, value) for key in sorted(honest.asked) for edit in edits_of(key) for value in (0, 1)]
    wrong = [(words, edited(key, edit, value)) for key, edit, value in cells]
    # A command that only reads leaves the brokers as they are, so the next one may ask the same brokers.
    for (key, edit, _), ran in zip(cells, run_commands(wrong, members=with_members, shared=with_members), strict=True):
        yield APIS[key].name, edit, honest, ran


def _is_right(honest: Ran, ran: Ran) -> bool:
    return (ran.code, ran.document, ran.commits) == (honest.code, honest.document, honest.commits)


def wrong_cells(line: str) -> tuple[_Pairs, _Pairs]:
    """Return the requests and edits that the command survives neither with the truth nor with an error, and those in vain.

    The second: where it asks too often, or ends too late.
    """
    false, late = set(), set()
    for request, edit, honest, ran in _cells(line):
        if not _is_right(honest, ran) and ran.code not in _REFUSED:
            false.add((request, edit))
        if ran.took_s > TIMEOUT_MS / 1000 + _SLACK_S or ran.most > _MOST:
            late.add((request, edit))
    return frozenset(false), frozenset(late)


@pytest.mark.thorough
@pytest.mark.parametrize("line", _LINES)
def test_a_command_survives_an_edit_of_the_responses_to_each_request(line: str) -> None:
    told = _LINES[line]
    assert wrong_cells(line) == (told, frozenset())


# -- bugs put back

Patch = pytest.MonkeyPatch


def _an_absent_topic_does_not_exist(patch: Patch) -> None:
    patch.setattr(offset_access, "told_topics", topics_metadata)
    patch.setattr(reset, "told_topics", topics_metadata)


def _no_broker_has_no_groups(patch: Patch) -> None:
    async def brokers(cluster: ClusterClient, deadline: Deadline) -> Collection[Broker]:
        return (await cluster.refresh(deadline)).brokers.values()

    patch.setattr(groups, "all_brokers", brokers)


def _a_repeated_member_is_another(patch: Patch) -> None:
    patch.setattr(groups, "_once", tuple)


def _an_epoch_is_any_number(patch: Patch) -> None:
    patch.setattr(groups, "senseless_epoch", lambda group: None)


def _an_unknown_request_finds_no_group(patch: Patch) -> None:
    honest = ask.ask_coordinator

    async def asked(*arguments: Any) -> Any:
        try:
            return await honest(*arguments)
        except UnsupportedVersionError:
            raise ask.refused(error_codes.GROUP_ID_NOT_FOUND, "", "DescribeGroups") from None

    patch.setattr(groups, "ask_coordinator", asked)


#: Name -> the bug, the command that shows it, and the request and edit with which it does.
PLANTED: Final[Mapping[str, tuple[Callable[[Patch], None], str, tuple[str, str]]]] = {
    "an absent topic does not exist": (
        _an_absent_topic_does_not_exist,
        "delete-offsets idle --topic orders",
        ("Metadata", "emptied"),
    ),
    "no broker has no groups": (_no_broker_has_no_groups, "list --state", ("Metadata", "emptied")),
    "a repeated member is another": (
        _a_repeated_member_is_another,
        "describe classic modern idle",
        ("DescribeGroups", "doubled"),
    ),
    "an epoch is any number": (
        _an_epoch_is_any_number,
        "describe classic modern idle",
        ("ConsumerGroupDescribe", "minus-one"),
    ),
    "an unknown request finds no group": (
        _an_unknown_request_finds_no_group,
        "lag classic modern idle --seconds",
        ("ApiVersions", "omitted"),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, line, pair = PLANTED[name]
    plant(monkeypatch)
    false, _ = wrong_cells(line)
    assert pair in false - _LINES[line]
