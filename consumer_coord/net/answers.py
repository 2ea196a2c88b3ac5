"""Compare a response with its request, because only a row is an answer.

A broker, or a proxy in front of it, may omit the row of a partition, add rows of other partitions, or send values that have
no meaning. Code that reads a response row by row takes an absent row for "no commit" or "no error", and skips records. So every
request with several rows goes through :meth:`AnswerCheck.match`, which returns the rows of what was asked, and an error for
everything else that was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, IncompleteResponseError, RetriableError
from consumer_coord.log_text import get_logger
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

K = TypeVar("K", bound=Hashable)
Row = TypeVar("Row")
V = TypeVar("V")

#: Interval between two log messages with the same text, in seconds. A look-up that is repeated with back-off logs once.
_REPEAT_S = 60.0
#: Maximum number of texts that are remembered, and of names in one text.
_MOST_TEXTS, _MOST_NAMES = 100, 10


@attrs.frozen
class Results(Generic[V]):
    """The result of a look-up for each partition that was asked for: a value, or the partition's own error.

    A retriable error is the last one before the time limit. Any other error is a broker's refusal, which ended the look-up of
    this partition only.
    """

    found: Mapping[TopicPartition, V] = attrs.field(factory=dict)
    failed: Mapping[TopicPartition, CoordinatorError] = attrs.field(factory=dict)

    @property
    def retriable(self) -> bool:
        """Whether another look-up may find values that this one did not find."""
        return any(isinstance(error, RetriableError) for error in self.failed.values())

    def complete(self) -> Mapping[TopicPartition, V]:
        """Return the values of all partitions; raise the error of a partition without a value, a refusal first."""
        if self.failed:
            errors = list(self.failed.values())
            raise next((one for one in errors if not isinstance(one, RetriableError)), errors[0])
        return self.found


@attrs.frozen
class Matched(Generic[K, Row]):
    """A response, compared with its request; each key that was asked for is in exactly one of the two mappings."""

    #: Asked key -> its row. The row may still have an error code.
    rows: dict[K, Row]
    #: Asked key -> why the response has no usable row for it.
    unanswered: dict[K, IncompleteResponseError]


class AnswerCheck:
    """Matches the responses of one cluster with the requests, and logs each kind of wrong response once a minute."""

    def __init__(self) -> None:
        """Remember no response."""
        self._logged: dict[str, float] = {}

    def match(
        self,
        request: str,
        sender: str,
        asked: Collection[K],
        rows: Iterable[tuple[K, Row]],
        senseless: Callable[[K, Row], str | None] = lambda _, __: None,
    ) -> Matched[K, Row]:
        """Return the rows of the ``asked`` keys, and the errors of asked keys without a usable row.

        ``request`` is the request's name and ``sender`` the broker's address, for texts. ``senseless`` returns why the values
        of a row have no meaning, or None; it gets rows with an error code, too. Two different rows for one key contradict each
        other, so neither is used. Rows that were not asked for are dropped.
        """
        found: dict[K, Row] = {}
        wrong: dict[K, str] = {}
        foreign: dict[K, None] = {}
        for key, row in rows:
            if key not in asked:
                foreign[key] = None
            elif (why := senseless(key, row)) is not None:
                wrong[key] = why
            elif (other := found.setdefault(key, row)) is not row and other != row:
                wrong[key] = "two rows that contradict each other"
        missing = [key for key in asked if key not in found and key not in wrong]
        if not (wrong or foreign or missing):
            return Matched(found, {})
        unanswered = {key: _error(request, sender, key, "no row") for key in missing}
        unanswered |= {key: _error(request, sender, key, why) for key, why in wrong.items()}
        self._note(request, sender, missing, wrong, foreign)
        return Matched({key: row for key, row in found.items() if key not in wrong}, unanswered)

    def senseless(self, request: str, sender: str, key: object, why: str) -> None:
        """Log a row whose values have no meaning, if the caller finds that out after :meth:`match`."""
        self._note(request, sender, (), {key: why}, ())

    def _note(
        self, request: str, sender: str, missing: Collection[object], wrong: Mapping[Any, str], foreign: Collection[object]
    ) -> None:
        parts = [f"no row for {_named(missing)}"] if missing else []
        parts += [
            f"{why} for {_named([key for key, one in wrong.items() if one == why])}" for why in dict.fromkeys(wrong.values())
        ]
        parts += [f"a row for {_named(foreign)}, which was not asked for and is ignored"] if foreign else []
        text = f"the response of {sender} to {request} has {', and '.join(parts)}"
        moment = now()
        if moment < self._logged.get(text, float("-inf")) + _REPEAT_S:
            return
        if len(self._logged) >= _MOST_TEXTS:
            self._logged.clear()
        self._logged[text] = moment
        logger.warning("%s%s", text, "; asking again" if missing or wrong else "")


def _error(request: str, sender: str, key: object, why: str) -> IncompleteResponseError:
    return IncompleteResponseError(f"the response of {sender} to {request} has {why} for {key}")


def _named(keys: Collection[object]) -> str:
    names = sorted(map(str, keys))
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
