"""The quotas of clients (``ClientQuotaControlManager``, ``ClientQuotasImage``): kept and described, but without an effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from consumer_coord.broker.errors import RefusedError
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.quotas import QuotaComponent, QuotaEntity, QuotaOperation

_IP: Final = "ip"
_CLIENT_TYPES: Final = frozenset(("user", "client-id"))
#: Quota -> whether its value may be a fraction; these are for users and clients, the next for addresses.
_CLIENT_QUOTAS: Final[Mapping[str, bool]] = {
    "producer_byte_rate": False,
    "consumer_byte_rate": False,
    "request_percentage": True,
    "controller_mutation_rate": True,
}
_IP_QUOTAS: Final[Mapping[str, bool]] = {"connection_creation_rate": False}
#: How a component of a filter matches: one name, the default (no name), or any name.
_EXACT, _DEFAULT, _ANY = range(3)

#: (type, name) of each part, by type.
_Entity = tuple[tuple[str, str | None], ...]


class ClientQuotas:
    """The quotas of a cluster, by entity; refused requests raise :class:`~consumer_coord.broker.errors.RefusedError`."""

    def __init__(self) -> None:
        self._quotas: dict[_Entity, dict[str, float]] = {}

    def alter(self, entity: Sequence[QuotaEntity], changes: Sequence[QuotaOperation], *, validate_only: bool) -> None:
        """Set and remove quotas of an entity."""
        types = [part.entity_type for part in entity]
        if not types or len(set(types)) != len(types) or not (set(types) == {_IP} or set(types) <= _CLIENT_TYPES):
            raise _refused(f"an entity of quotas is a user, a client-id, a user with a client-id, or an ip, not {types}")
        known = _IP_QUOTAS if _IP in types else _CLIENT_QUOTAS
        key = tuple(sorted((part.entity_type, part.entity_name) for part in entity))
        changed = dict(self._quotas.get(key, {}))
        for change in changes:
            if change.key not in known:
                raise _refused(f"{change.key} is not a quota of {types}; the quotas are {', '.join(known)}")
            if change.remove:
                changed.pop(change.key, None)
            elif change.value <= 0 or not (known[change.key] or change.value.is_integer()):
                raise _refused(f"{change.key} must be a positive {'number' if known[change.key] else 'whole number'}")
            else:
                changed[change.key] = change.value
        if validate_only:
            return
        if changed:
            self._quotas[key] = changed
        else:
            self._quotas.pop(key, None)

    def described(self, components: Sequence[QuotaComponent], *, strict: bool) -> Iterator[tuple[_Entity, Mapping[str, float]]]:
        """Return the entities that match all components; ``strict``: and have no other part."""
        types = [one.entity_type for one in components]
        if len(set(types)) != len(types) or (_IP in types and len(types) > 1):
            raise _refused(f"a filter may name each entity type once, and 'ip' only alone, not {types}")
        for one in components:
            if one.entity_type not in (_IP, *_CLIENT_TYPES):
                raise RefusedError(
                    f"{one.entity_type!r} is not a type of entities with quotas", code=error_codes.UNSUPPORTED_VERSION
                )
            if one.match_type not in (_EXACT, _DEFAULT, _ANY) or (one.match is not None) != (one.match_type == _EXACT):
                raise _refused("a filter must name an entity if, and only if, the match is exact")
        return (
            (entity, quotas)
            for entity, quotas in self._quotas.items()
            if all(_matches(dict(entity), one) for one in components) and not (strict and len(entity) != len(components))
        )


def _matches(entity: Mapping[str, str | None], component: QuotaComponent) -> bool:
    if component.entity_type not in entity:
        return False
    return component.match_type == _ANY or entity[component.entity_type] == component.match


def _refused(message: str) -> RefusedError:
    return RefusedError(message, code=error_codes.INVALID_REQUEST)
