"""Messages that set and describe the quotas of clients (KIP-546)."""

from __future__ import annotations

from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, FLOAT64, INT8, INT16, INT32, STRING, Struct, array, field


class QuotaComponent(Struct):
    """Element of ``DescribeClientQuotasRequest.components``; the type of the match is 0 (exact), 1 (default) or 2 (any)."""

    entity_type: str = field(STRING)
    match_type: int = field(INT8)
    match: str | None = field(STRING, nullable="0+")


class DescribeClientQuotasRequest(Struct, versions="0-1", flexible="1+"):
    """Request for quotas; ``strict``: of entities that have these types, and no other ones."""

    components: Sequence[QuotaComponent] = field(array(QuotaComponent))
    strict: bool = field(BOOL)


class QuotaEntity(Struct):
    """Element of an entity, with a type such as ``client-id``; None is the default of all names."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


class QuotaValue(Struct):
    key: str = field(STRING)
    value: float = field(FLOAT64)


class QuotaEntry(Struct):
    entity: Sequence[QuotaEntity] = field(array(QuotaEntity))
    values: Sequence[QuotaValue] = field(array(QuotaValue))


class DescribeClientQuotasResponse(Struct, versions="0-1", flexible="1+"):
    """Response with the quotas of each entity."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entries: Sequence[QuotaEntry] | None = field(array(QuotaEntry), nullable="0+")


class QuotaOperation(Struct):
    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOL)


class QuotaAlteration(Struct):
    entity: Sequence[QuotaEntity] = field(array(QuotaEntity))
    ops: Sequence[QuotaOperation] = field(array(QuotaOperation))


class AlterClientQuotasRequest(Struct, versions="0-1", flexible="1+"):
    """Request to set and remove quotas."""

    entries: Sequence[QuotaAlteration] = field(array(QuotaAlteration))
    validate_only: bool = field(BOOL)


class QuotaAlterationResult(Struct):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entity: Sequence[QuotaEntity] = field(array(QuotaEntity))


class AlterClientQuotasResponse(Struct, versions="0-1", flexible="1+"):
    """Response with the outcome for each entity."""

    throttle_time_ms: int = field(INT32)
    entries: Sequence[QuotaAlterationResult] = field(array(QuotaAlterationResult))
