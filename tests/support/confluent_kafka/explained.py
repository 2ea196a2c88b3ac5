"""Every difference between the two consumers that remains, by the name of its program, with the reason."""

from __future__ import annotations

EXPLAINED: dict[str, str] = {
    "subscribe to a list of numbers": "confluent-kafka subscribes to a topic with the name `7`. `GroupConsumer` raises"
    " TypeError.",
    "subscribe to a tuple": "confluent-kafka accepts only lists. `GroupConsumer` accepts any collection of names.",
    "group metadata before joining": "With metadata without a generation, a transaction could commit offsets of partitions that"
    " another member holds. `GroupConsumer` raises until the group has assigned partitions.",
    "position after a seek": "confluent-kafka's position is unknown until the next message. `GroupConsumer` returns the offset"
    " of the seek.",
    "close during a poll": "confluent-kafka's `close()` in a second thread waits until the polling thread stops polling."
    " `GroupConsumer` closes within 0.1 s, and the poll raises RuntimeError (*Consumer closed*).",
    "a static member that was replaced": "Both return one message with the error `_FATAL`. In `GroupConsumer`, `fatal()` is"
    " also true.",
}
