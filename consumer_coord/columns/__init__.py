"""Records of Fetch responses as Arrow columns, without a Python object per record.

``KERNEL`` names the kernel that decodes: ``"c"``, or ``"python"`` if the package was built without a C compiler.
"""

from consumer_coord.column_names import COLUMNS
from consumer_coord.columns.batch import (
    MAX_BATCH_BYTES,
    Appended,
    ArrowColumns,
    Columns,
    CompletedFetch,
    UnreadableRecordError,
)
from consumer_coord.columns.kernel import KERNEL

__all__ = [
    "COLUMNS",
    "KERNEL",
    "MAX_BATCH_BYTES",
    "Appended",
    "ArrowColumns",
    "Columns",
    "CompletedFetch",
    "UnreadableRecordError",
]
