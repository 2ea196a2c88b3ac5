"""A member of a group of Kafka Streams (KIP-1071), by hand, because no Kafka Streams is at hand."""

from __future__ import annotations

import socket
import struct
import uuid

_DEADLINE_S = 60.0
_STREAMS_GROUP_HEARTBEAT = 88


def _compact(text: str) -> bytes:
    """Return a short compact string."""
    return bytes([len(text) + 1]) + text.encode()


def streams_heartbeat(address: str, group: str, topic: str, *, member: str | None = None, epoch: int = 0) -> int:
    """Send one StreamsGroupHeartbeat (v0) for a member with one subtopology, which reads ``topic``.

    Epoch 0 joins, for a session of 45 s, and -1 leaves; return the member's new epoch.
    """
    subtopology = _compact("sub-0") + b"\x02" + _compact(topic) + b"\x01" * 5 + b"\x00"
    # The topology, and no tasks (active, standby, warm-up); a member sends them only when it joins.
    topology = b"\xff" if epoch else b"\x01" + struct.pack(">i", 0) + b"\x02" + subtopology + b"\x00"
    tasks = b"\x00\x00\x00" if epoch else b"\x01\x01\x01"
    process = b"\x00" if epoch else _compact("process-1")
    body = (
        *(_compact(group), _compact(member or str(uuid.uuid4())), struct.pack(">ii", epoch, 0)),
        # No instance id, no rack, the rebalance timeout.
        *(b"\x00\x00", struct.pack(">i", 60_000), topology, tasks, process),
        # No endpoint, no tags, no offsets, not at shutdown, no tagged fields.
        *(b"\xff", b"\x01", b"\x00\x00", b"\x00", b"\x00"),
    )
    header = struct.pack(">hhih", _STREAMS_GROUP_HEARTBEAT, 0, 1, len(b"streams-1")) + b"streams-1" + b"\x00"
    frame = header + b"".join(body)
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=_DEADLINE_S) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    # Correlation id, tag buffer, throttle time.
    (error,) = struct.unpack_from(">h", answer, 9)
    assert error == 0, answer
    # No error message, the length of the member id.
    assert answer[11] == 0
    (new_epoch,) = struct.unpack_from(">i", answer, 12 + answer[12])
    return int(new_epoch)
