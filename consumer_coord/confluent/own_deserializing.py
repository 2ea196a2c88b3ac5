"""The deserializing consumer of confluent-kafka 2.16 and its errors, for a process that has no confluent-kafka 2.x."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

from consumer_coord.confluent.own_types import Consumer, KafkaError, KafkaException, Message

_HOME = "consumer_coord.confluent"
_Consumer: Any = Consumer
#: How long a deserializer waits for the cluster's id, in seconds.
_CLUSTER_ID_S: Final = 60.0


class MessageField(StrEnum):
    """The part of a message that is deserialized."""

    __module__ = _HOME

    NONE = "none"
    KEY = "key"
    VALUE = "value"


class SerializationContext:
    """What a deserializer learns of a message: its topic, the field, and the headers."""

    __module__ = _HOME

    def __init__(self, topic: str, field: MessageField, headers: Any = None) -> None:
        self.topic = topic
        self.field = field
        self.headers = headers


class SerializationError(KafkaException):
    """The error of serializers and deserializers."""

    __module__ = _HOME


class ConsumeError(KafkaException):
    """A message with an error, or that cannot be deserialized: ``kafka_message``; ``exception`` is the cause, or None."""

    __module__ = _HOME

    def __init__(
        self, kafka_error: KafkaError, exception: Exception | None = None, kafka_message: Message | None = None
    ) -> None:
        super().__init__(kafka_error)
        self.exception = exception
        self.kafka_message = kafka_message

    @property
    def code(self) -> int:
        """The code of the :class:`KafkaError`."""
        return int(self.args[0].code())

    @property
    def name(self) -> str:
        """The name of the code."""
        return str(self.args[0].name())


class KeyDeserializationError(ConsumeError, SerializationError):
    """A key that its deserializer rejects."""

    __module__ = _HOME

    def __init__(self, exception: Exception | None = None, kafka_message: Message | None = None) -> None:
        super().__init__(_undeserialized("_KEY_DESERIALIZATION", exception), exception, kafka_message)


class ValueDeserializationError(ConsumeError, SerializationError):
    """A value that its deserializer rejects."""

    __module__ = _HOME

    def __init__(self, exception: Exception | None = None, kafka_message: Message | None = None) -> None:
        super().__init__(_undeserialized("_VALUE_DESERIALIZATION", exception), exception, kafka_message)


def _undeserialized(name: str, exception: Exception | None) -> KafkaError:
    return KafkaError(getattr(KafkaError, name), str(exception))


class DeserializingConsumer(_Consumer):  # type: ignore[misc]  # the consumer itself is another base of the subclass
    """The part of a deserializing consumer that deserializes; a subclass adds the consumer.

    ``key.deserializer`` and ``value.deserializer`` are functions of the bytes and a :class:`SerializationContext`. With
    ``.builder`` after these names, the consumer builds the deserializer, and closes it.
    """

    __module__ = _HOME

    def __init__(self, conf: Mapping[str, Any]) -> None:
        settings = dict(conf)
        given = [_given(settings, f"{what}.deserializer") for what in ("key", "value")]
        self._owned: list[Any] = []
        try:
            settings = self._build(given, settings)
            self._key_deserializer, self._value_deserializer = (deserializer for _, deserializer, _ in given)
            super().__init__(settings)
            resolver = functools.partial(self.cluster_id, timeout=_CLUSTER_ID_S)
            for one in (self._key_deserializer, self._value_deserializer):
                offer = getattr(one, "set_cluster_id_resolver", None)
                if callable(offer):
                    offer(resolver)
        except BaseException:
            self._close_owned()
            raise

    def _build(self, given: list[list[Any]], settings: dict[str, Any]) -> dict[str, Any]:
        """Run the builders, and return the settings that no builder has consumed."""
        left = settings
        for row in given:
            name, _, builder = row
            if builder is None:
                continue
            built = builder.build(dict(settings), name == "key.deserializer")
            if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[1], dict)):
                raise ValueError(f"{name}.builder must return (deserializer, configuration) from build(), not {built!r}")
            row[1] = built[0]
            self._owned.append(built[0])
            left = {key: value for key, value in built[1].items() if key in left}
        return left

    def close(self, *arguments: Any, **keywords: Any) -> None:
        """Close the consumer, then the deserializers that it built."""
        super().close(*arguments, **keywords)
        self._close_owned()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_owned(self) -> None:
        owned, self._owned = self._owned, []
        with contextlib.ExitStack() as every:
            for one in reversed(owned):
                every.callback(getattr(one, "close", _nothing))

    def poll(self, timeout: float = -1) -> Any:
        """Return the next message with its key and value deserialized, or None after ``timeout`` seconds.

        Raise :class:`ConsumeError` for a message with an error, and :class:`KeyDeserializationError` or
        :class:`ValueDeserializationError` for one that cannot be deserialized.
        """
        message = super().poll(timeout)
        if message is None:
            return None
        if message.error() is not None:
            raise ConsumeError(message.error(), kafka_message=message)
        context = SerializationContext(message.topic(), MessageField.KEY, message.headers())
        key = _deserialized(self._key_deserializer, message.key(), context, KeyDeserializationError, message)
        context.field = MessageField.VALUE
        value = _deserialized(self._value_deserializer, message.value(), context, ValueDeserializationError, message)
        message.set_key(key)
        message.set_value(value)
        return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Raise NotImplementedError, as confluent-kafka does; use :meth:`poll`."""
        raise NotImplementedError


def _nothing() -> None:
    """Stand in for the ``close`` that a deserializer does not have."""


def _given(settings: dict[str, Any], name: str) -> list[Any]:
    """Take a deserializer and its builder out of the settings: name, deserializer, builder."""
    deserializer, builder = settings.pop(name, None), settings.pop(f"{name}.builder", None)
    if deserializer is not None and builder is not None:
        raise ValueError(f"Cannot configure both {name} and {name}.builder; use one or the other")
    return [name, deserializer, builder]


def _deserialized(
    deserializer: Callable[[Any, SerializationContext], Any] | None,
    content: Any,
    context: SerializationContext,
    error: type[KeyDeserializationError | ValueDeserializationError],
    message: Any,
) -> Any:
    if deserializer is None:
        return content
    try:
        return deserializer(content, context)
    except Exception as cause:
        raise error(exception=cause, kafka_message=message) from cause
