"""Options of ``CREATE TABLE … USING kafka_group OPTIONS (…)``, for the queries of the table.

Spark passes these options to the source when it creates the table, but a query of the table gets only the table's schema, and
the options of the query itself (``SELECT … WITH (…)``, or ``spark.read.option(…).table(…)``). So the source keeps the table's
options in the metadata of the first column. Spark also writes this metadata to files, for example to Parquet, so secrets are
not kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from consumer_coord.spark.options import ALTERNATIVES, MissingOptionError, given_to_table, is_secret

_KEY: Final = "kafka_group.options"


def with_options(schema: StructType, given: Mapping[str, str]) -> StructType:
    """Return the schema of a table with its options, or ``schema`` itself if ``given`` are not the options of a table."""
    options = given_to_table(given)
    if options is None:
        return schema
    secrets = sorted(name for name, value in options.items() if is_secret(name, value))
    kept = {"options": {name: value for name, value in options.items() if name not in secrets}, "secrets": secrets}
    first, *others = schema.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {_KEY: json.dumps(kept)}), *others])


def options_of(schema: StructType, given: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``given``, the options of a query, with the options of its table, which ``given`` overrides.

    Raise ``MissingOptionError`` if the table was created with a secret that is not in ``given``.
    """
    texts = [field.metadata[_KEY] for field in schema.fields if _KEY in field.metadata]
    if not texts:
        return given
    kept: Any = json.loads(texts[0])
    own = {name.lower(): value for name, value in given.items()}
    missing = [name for name in kept["secrets"] if name not in own]
    if missing:
        raise MissingOptionError(
            f"a table does not keep the secret {', '.join(missing)}: pass it with each query, as in"
            " spark.read.option(name, value).table(table)"
        )
    replaced = {name for names in ALTERNATIVES if names & own.keys() for name in names}
    return {name: value for name, value in kept["options"].items() if name not in replaced} | own
