"""Arrow arrays of numbers, bytes and text without `pa.array` and `pa.scalar`.

Where pandas is installed, these two import it, to learn whether their argument is a Series. That is
0.2 s in every process, most of them Spark's workers, which never have a Series.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_INT32_MAX = 2**31 - 1
_MANY = 10_000
"""As many values `pa.array` makes faster by half a millisecond, so there it may import."""


def number_array(
    values: npt.NDArray[np.generic], valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """The numbers, not copied if they are contiguous; null where `valid` is false."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid), buffer])


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """The values as pa.binary(), None as null."""
    if len(values) >= _MANY:
        return pa.array(values, pa.binary())
    valid = None
    present = values
    if None in values:
        valid = np.array([value is not None for value in values])
        present = [b"" if value is None else value for value in values]
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(list(map(len, present)), out=offsets[1:])  # type: ignore[arg-type]
    if offsets[-1] > _INT32_MAX:
        return pa.array(values, pa.binary())  # Its error, or several chunks.
    data = pa.py_buffer(b"".join(present))  # type: ignore[arg-type]
    buffers = [_bitmap(valid), pa.py_buffer(offsets.astype(np.int32)), data]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def repeated_text(text: str, length: int) -> pa.Array:
    """The same text in each row, as pa.string()."""
    data = text.encode()
    offsets = np.arange(length + 1, dtype=np.int64) * len(data)
    if offsets[-1] > _INT32_MAX:
        return pa.repeat(pa.scalar(text, pa.string()), length)  # Its error.
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data * length)]
    return pa.Array.from_buffers(pa.string(), length, buffers)


def _bitmap(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Arrow's validity bitmap; None: all are valid."""
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
