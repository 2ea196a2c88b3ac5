"""What the commands print with ``--json``, as types; mypy checks the commands, and the JSON schemas are derived from them.

The text of an ``Annotated`` field is its description in the schema.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

_Code = Annotated[int, "Kafka's error code; -1 for an error that has none"]
_LagSeconds = Annotated[
    float | None, "with --seconds: the age of the first unread record; for a group, the maximum of its partitions"
]


class FailedGroup(TypedDict):
    """A group (in ``reset``: a group, or a group and a partition) that failed."""

    group: str
    error: str
    code: _Code
    exit_code: Annotated[int, "the exit code that this error alone would cause"]


class UnlistedBroker(TypedDict):
    """With ``--all-groups``: a broker that did not list its groups."""

    broker: int
    address: Annotated[str, "host:port"]
    error: str
    code: _Code


class LeftOutPartition(TypedDict):
    """A partition that a group's lag does not include."""

    topic: str
    partition: int
    error: str
    code: _Code


class ListedGroup(TypedDict):
    """A row of ``list``: a classic group, or one of the protocols for consumers, share groups and streams."""

    group: str
    type: str
    state: str


class ListDocument(TypedDict):
    """The document of ``list``."""

    groups: list[ListedGroup]
    unlisted: list[UnlistedBroker]


class Coordinator(TypedDict):
    """The broker that coordinates a group."""

    id: int
    host: str
    port: int


class Subscription(TypedDict):
    """A member's subscription, as the member reported it last."""

    topics: list[str]
    owned: Annotated[dict[str, list[int]], "topic -> partitions that the member reported as owned"]
    generation: Annotated[int, "the generation of these partitions; -1 if the member reports none"]
    rack: str | None
    pattern: str | None


class Member(TypedDict):
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: Annotated[dict[str, list[int]], "topic -> partitions; in a streams group, subtopology -> tasks"]
    subscription: Annotated[Subscription | None, "null while the group rebalances, and in a streams group"]
    epoch: Annotated[int | None, "only in groups of KIP-848, share groups and streams groups"]
    target: Annotated[dict[str, list[int]] | None, "the target assignment; only in groups of KIP-848 and streams groups"]


class DescribedPartition(TypedDict):
    """A partition with a commit, or with a member that owns it."""

    topic: str
    partition: int
    offset: Annotated[int | None, "the commit; in a share group, the start offset"]
    leader_epoch: int | None
    metadata: str | None
    start: Annotated[int | None, "only for a partition without a commit: the offset from which its lag counts"]
    end: Annotated[int | None, "the end of the log, by --isolation"]
    lag: Annotated[int | None, "null if it is unknown: see left_out"]
    lag_seconds: _LagSeconds
    member_id: Annotated[str | None, "the member that owns the partition"]


class DescribedGroup(TypedDict):
    """A group with members and partitions."""

    group: str
    type: str
    protocol_type: str
    state: str
    assignor: str
    coordinator: Coordinator
    epoch: Annotated[int | None, "only in groups of KIP-848, share groups and streams groups"]
    target_epoch: int | None
    members: list[Member]
    lag: Annotated[int, "the sum of the known lags"]
    lag_seconds: _LagSeconds
    partitions: list[DescribedPartition]
    left_out: Annotated[list[LeftOutPartition], "partitions that lag does not include: unknown, or the topic was deleted"]
    seconds_left_out: Annotated[list[LeftOutPartition], "partitions whose lag is known, but not in seconds"]


class DescribeDocument(TypedDict):
    """The document of ``describe``."""

    groups: list[DescribedGroup]
    errors: list[FailedGroup]
    unlisted: list[UnlistedBroker]


class LaggingPartition(TypedDict):
    """A partition in ``lag``."""

    topic: str
    partition: int
    lag: Annotated[int | None, "null if it is unknown: see left_out"]
    lag_seconds: _LagSeconds
    committed: Annotated[bool, "whether the group has a commit for this partition"]


class LaggingGroup(TypedDict):
    """A group in ``lag``."""

    group: str
    state: str
    lag: Annotated[int, "the sum of the known lags"]
    lag_seconds: _LagSeconds
    partitions: list[LaggingPartition]
    left_out: Annotated[list[LeftOutPartition], "partitions that lag does not include: unknown, or the topic was deleted"]
    seconds_left_out: Annotated[list[LeftOutPartition], "partitions whose lag is known, but not in seconds"]


class LagDocument(TypedDict):
    """The document of ``lag``; with ``--interval-ms`` or ``--count``, each line is a :class:`LiveLine`."""

    groups: list[LaggingGroup]
    errors: list[FailedGroup]
    unlisted: list[UnlistedBroker]


class LiveLine(TypedDict):
    """A line of ``lag --interval-ms MS --json``: one topic of one group."""

    group: str
    state: str
    members: int | None
    topic: str
    partitions: int | None
    lag: Annotated[int | None, "the sum of the known lags; null if none is known"]
    unknown: Annotated[int, "number of partitions whose lag is unknown"]
    lag_seconds: _LagSeconds
    read_per_s: Annotated[float | None, "records read per second since the last query"]
    written_per_s: Annotated[float | None, "records written per second since the last query"]
    caught_up_in_s: Annotated[float | None, "seconds until the lag is 0 at these rates; null if the lag does not shrink"]


class ResetPartition(TypedDict):
    """The old and the new offset of a partition."""

    topic: str
    partition: int
    old_offset: int | None
    new_offset: int


class ResetGroup(TypedDict):
    """The plan for one group; with ``--execute``, the partitions that were reset."""

    group: str
    partitions: list[ResetPartition]


class ResetDocument(TypedDict):
    """The document of ``reset``."""

    executed: bool
    groups: list[ResetGroup]
    warnings: list[str]
    errors: list[FailedGroup]


class DeleteDocument(TypedDict):
    """The document of ``delete``."""

    deleted: list[str]
    errors: list[FailedGroup]


class DeletedOffset(TypedDict):
    """The outcome for one partition."""

    topic: str
    partition: int
    error: str | None
    code: Annotated[int, "Kafka's error code; 0 without an error"]


class DeleteOffsetsDocument(TypedDict):
    """The document of ``delete-offsets``."""

    group: str
    partitions: list[DeletedOffset]


class MigratingClient(TypedDict):
    """What a member's client id tells of its client."""

    name: str
    version: str | None


class MigratingMember(TypedDict):
    """A member of a group that moves."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    client: Annotated[MigratingClient | None, "as far as the client id tells; null if it does not"]
    protocol: str
    subscription_version: int | None
    user_data_bytes: int | None
    assignment_user_data_bytes: int | None
    topics: list[str]
    pattern: str | None
    assigned: Annotated[list[str], "TOPIC-PARTITION"]
    owned_when_joined: list[str] | None
    epoch: int | None


class MigratingBroker(TypedDict):
    """The settings of a broker that concern a move, or why they are unknown."""

    broker: int
    address: Annotated[str, "host:port"]
    settings: dict[str, str] | None
    error: str | None


class MigrationProgress(TypedDict):
    """How far a move has come."""

    type: str
    state: str
    assignor: str
    epoch: int | None
    moved: Annotated[int, "members that have moved"]
    members: int
    complete: bool
    wait: Annotated[str | None, "why no member may be restarted now; null if the next one may be"]
    back: Annotated[str | None, "how going back is safe now; null if it is not"]
    back_refused: Annotated[str | None, "why going back is not safe; null if it is"]


class MigrateDocument(TypedDict):
    """The document of ``migrate``."""

    group: str
    type: str
    protocol_type: str
    state: str
    assignor: str
    epoch: int | None
    coordinator: Annotated[int, "the broker's id"]
    members: list[MigratingMember]
    brokers: list[MigratingBroker]
    group_settings: dict[str, str]
    to: str
    possible: bool
    blocks: Annotated[list[str], "what prevents the move"]
    loses: Annotated[list[str], "what the group loses"]
    note: list[str]
    steps: list[str]
    order: Annotated[list[str], "member ids, in the order of the restarts"]
    progress: MigrationProgress
