"""A member of a group under churn: it consumes in batches, commits each of them and waits for the answer, and tells.

Its argument is an object in JSON: ``client`` (``ours`` or ``confluent-kafka``), ``config``, ``topic``, ``batch``.  It writes
lines of JSON: ``ready``; ``assigned``, ``revoked``, ``lost`` with ``partitions``; ``batch`` with ``ranges`` (partition ->
[first offset, last offset, count]) and ``generation`` as of the batch; then, of the same batch, ``committed`` with
``took_ms`` and ``refused`` (partition -> why the commit failed).  SIGTERM or the end of its input makes it leave.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition


def emit(event: str, **details: Any) -> None:
    """One line."""
    print(json.dumps({"event": event, "at_ns": time.monotonic_ns(), **details}), flush=True)


def generation_of(consumer: Any) -> int:
    """The member's generation as it sees it."""
    if isinstance(consumer, Consumer):
        # librdkafka's serialisation: b"CGMDv2:", then the generation as a native int32
        found: int = struct.unpack_from("=i", bytes(consumer.consumer_group_metadata()), 7)[0]
        return found
    return int(consumer.generation())


def commit(consumer: Any, topic: str, ranges: Mapping[int, Sequence[int]]) -> Mapping[int, str]:
    """Commit behind the batch; partition -> why not, for those that were refused."""
    rows = [TopicPartition(topic, partition, last + 1) for partition, (_, last, _) in ranges.items()]
    try:
        answered = consumer.commit(offsets=rows, asynchronous=False)
    except KafkaException as error:
        return dict.fromkeys(ranges, str(error))
    return {row.partition: str(row.error) for row in answered if row.error is not None}


def main() -> None:
    """Until told to leave."""
    setup = json.loads(sys.argv[1])
    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())

    def await_end_of_input() -> None:
        sys.stdin.read()
        leaving.set()

    threading.Thread(target=await_end_of_input, daemon=True).start()
    if setup["client"] == "ours":
        from consumer_coord import GroupConsumer

        consumer: Any = GroupConsumer(setup["config"])
    else:
        consumer = Consumer(setup["config"])

    def tell(what: str) -> Any:
        return lambda _, partitions: emit(what, partitions=[one.partition for one in partitions])

    consumer.subscribe([setup["topic"]], on_assign=tell("assigned"), on_revoke=tell("revoked"), on_lost=tell("lost"))
    emit("ready")
    while not leaving.is_set():
        try:
            messages = consumer.consume(setup["batch"], 0.1)
        except KafkaException as error:
            emit("error", error=str(error))
            continue
        generation = generation_of(consumer)
        ranges: dict[int, list[int]] = {}
        for message in messages:
            if message.error() is not None:
                emit("error", error=str(message.error()))
                continue
            row = ranges.setdefault(message.partition(), [message.offset(), message.offset(), 0])
            row[1] = message.offset()
            row[2] += 1
        if ranges:
            emit("batch", ranges=ranges, generation=generation)
            began = time.monotonic()
            refused = commit(consumer, setup["topic"], ranges)
            took_ms = (time.monotonic() - began) * 1000
            emit("committed", took_ms=took_ms, refused=refused)
    consumer.close()


if __name__ == "__main__":
    main()
