"""Every difference between the two consumers that remains, by the name of its program, with the reason."""

from __future__ import annotations

EXPLAINED: dict[str, str] = {
    "subscribe to a list of numbers": "confluent-kafka subscribes to the name `7`, which no topic has by intention; ours raises"
    " TypeError.",
    "subscribe to a tuple": "confluent-kafka accepts lists only; ours accepts any collection of names.",
    "group metadata before joining": "Metadata without a generation would fence nothing: a transaction could commit offsets of"
    " partitions that another member has. Ours raises until the group has assigned partitions.",
    "position after a seek": "confluent-kafka's position is unknown until the next message. Ours is where the application"
    " sought.",
    "close during a poll": "confluent-kafka's `close()` in a second thread waits until the polling thread stops"
    " polling. Ours closes at the next slice of waiting, and the poll raises RuntimeError (*Consumer closed*).",
    "a static member that was replaced": "Both return one message with the error `_FATAL`; ours has `fatal()` set too.",
}
