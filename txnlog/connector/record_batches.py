"""Arrow record batches, combined."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def combined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all; a single batch is returned without a copy."""
    if len(batches) == 1:
        return batches[0]
    # pa.concat_batches does the same from pyarrow 19 on.
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
