"""Messages about groups of Kafka Streams (KIP-1071) that operators' commands need."""

from __future__ import annotations

from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UINT16, Struct, array, field


class StreamsGroupDescribeRequest(Struct, versions="0-1", flexible="0+"):
    """Request for the state and the members of streams groups."""

    group_ids: Sequence[str] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL)
    include_topology_description: bool = field(BOOL, "1+", default=False)


class StreamsGroupDescribeKeyValue(Struct):
    """A client tag or a setting of a topic, as key and value."""

    key: str = field(STRING)
    value: str = field(STRING)


class StreamsGroupDescribeTopicInfo(Struct):
    """A changelog or repartition topic of a subtopology."""

    name: str = field(STRING)
    partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    topic_configs: Sequence[StreamsGroupDescribeKeyValue] = field(array(StreamsGroupDescribeKeyValue))


class StreamsGroupDescribeSubtopology(Struct):
    subtopology_id: str = field(STRING)
    source_topics: Sequence[str] = field(array(STRING))
    repartition_sink_topics: Sequence[str] = field(array(STRING))
    state_changelog_topics: Sequence[StreamsGroupDescribeTopicInfo] = field(array(StreamsGroupDescribeTopicInfo))
    repartition_source_topics: Sequence[StreamsGroupDescribeTopicInfo] = field(array(StreamsGroupDescribeTopicInfo))


class StreamsGroupDescribeTopology(Struct):
    """The structure in ``StreamsGroupDescribeGroup.topology``."""

    epoch: int = field(INT32)
    subtopologies: Sequence[StreamsGroupDescribeSubtopology] | None = field(
        array(StreamsGroupDescribeSubtopology), nullable="0+", default=None
    )


class StreamsGroupDescribeEndpoint(Struct):
    """The structure in ``StreamsGroupDescribeMember.user_endpoint``."""

    host: str = field(STRING)
    port: int = field(UINT16)


class StreamsGroupDescribeTaskOffset(Struct):
    subtopology_id: str = field(STRING)
    partition: int = field(INT32)
    offset: int = field(INT64)


class StreamsGroupDescribeTaskIds(Struct):
    """The tasks of one subtopology; each partition has one task."""

    subtopology_id: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class StreamsGroupDescribeAssignment(Struct):
    """The structure in ``StreamsGroupDescribeMember.assignment`` and ``target_assignment``."""

    active_tasks: Sequence[StreamsGroupDescribeTaskIds] = field(array(StreamsGroupDescribeTaskIds))
    standby_tasks: Sequence[StreamsGroupDescribeTaskIds] = field(array(StreamsGroupDescribeTaskIds))
    warmup_tasks: Sequence[StreamsGroupDescribeTaskIds] = field(array(StreamsGroupDescribeTaskIds))


class StreamsGroupDescribeMember(Struct):
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    topology_epoch: int = field(INT32)
    process_id: str = field(STRING)
    user_endpoint: StreamsGroupDescribeEndpoint | None = field(StreamsGroupDescribeEndpoint, nullable="0+", default=None)
    client_tags: Sequence[StreamsGroupDescribeKeyValue] = field(array(StreamsGroupDescribeKeyValue))
    task_offsets: Sequence[StreamsGroupDescribeTaskOffset] = field(array(StreamsGroupDescribeTaskOffset))
    task_end_offsets: Sequence[StreamsGroupDescribeTaskOffset] = field(array(StreamsGroupDescribeTaskOffset))
    assignment: StreamsGroupDescribeAssignment = field(StreamsGroupDescribeAssignment, default=StreamsGroupDescribeAssignment())
    target_assignment: StreamsGroupDescribeAssignment = field(
        StreamsGroupDescribeAssignment, default=StreamsGroupDescribeAssignment()
    )
    is_classic: bool = field(BOOL)


class TopologyDescriptionNode(Struct):
    """A node of a topology; ``node_type`` is 1 for a source, 2 for a processor and 3 for a sink."""

    name: str = field(STRING, "1+")
    node_type: int = field(INT8, "1+")
    source_topics: Sequence[str] = field(array(STRING), "1+")
    sink_topic: str | None = field(STRING, "1+", nullable="1+", default=None)
    stores: Sequence[str] = field(array(STRING), "1+")
    successors: Sequence[str] = field(array(STRING), "1+")


class TopologyDescriptionSubtopology(Struct):
    subtopology_id: str = field(STRING, "1+")
    nodes: Sequence[TopologyDescriptionNode] = field(array(TopologyDescriptionNode), "1+")


class TopologyDescriptionGlobalStore(Struct):
    source: TopologyDescriptionNode = field(TopologyDescriptionNode, "1+", default=TopologyDescriptionNode())
    processor: TopologyDescriptionNode = field(TopologyDescriptionNode, "1+", default=TopologyDescriptionNode())


class TopologyDescription(Struct):
    """The structure in ``StreamsGroupDescribeGroup.topology_description``."""

    subtopologies: Sequence[TopologyDescriptionSubtopology] = field(array(TopologyDescriptionSubtopology), "1+")
    global_stores: Sequence[TopologyDescriptionGlobalStore] = field(array(TopologyDescriptionGlobalStore), "1+")


class StreamsGroupDescribeGroup(Struct):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    topology: StreamsGroupDescribeTopology | None = field(StreamsGroupDescribeTopology, nullable="0+", default=None)
    members: Sequence[StreamsGroupDescribeMember] = field(array(StreamsGroupDescribeMember))
    authorized_operations: int = field(INT32, default=-2147483648)
    topology_description: TopologyDescription | None = field(TopologyDescription, "1+", nullable="1+", default=None)
    topology_description_status: int = field(INT8, "1+", default=0)
    assignor_name: str | None = field(STRING, "1+", nullable="1+", default=None, ignorable=True)


class StreamsGroupDescribeResponse(Struct, versions="0-1", flexible="0+"):
    """Response with the requested groups, one :class:`StreamsGroupDescribeGroup` for each."""

    throttle_time_ms: int = field(INT32)
    groups: Sequence[StreamsGroupDescribeGroup] = field(array(StreamsGroupDescribeGroup))
