"""Arrow arrays and scalars without `pa.array` and `pa.scalar`.

Where pandas is installed, these two import it, to learn whether their argument is a Series, and so
does `to_numpy`, for which there is `np.from_dlpack`. That is 0.2 s in every process, most of them
Spark's workers, which never have a Series; in a producer it is the thread that makes checkpoints,
and commits wait for the interpreter's lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

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


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values as `pa.array` takes them, None as null: text, numbers, booleans, and structs (as
    dicts), lists and maps (as lists of pairs) of them.
    """
    if len(values) >= _MANY:
        return pa.array(values, kind)
    is_there = [value is not None for value in values]
    if pa.types.is_string(kind):
        encoded = [None if value is None else value.encode() for value in values]
        return binary_array(encoded).view(kind)
    valid = None if all(is_there) else np.array(is_there, dtype=bool)
    if pa.types.is_struct(kind):
        fields = list(kind)
        columns = [
            array_of([None if one is None else one.get(field.name) for one in values], field.type)
            for field in fields
        ]
        return pa.Array.from_buffers(kind, len(values), [_bitmap(valid)], children=columns)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        ends = np.cumsum([0, *(0 if one is None else len(one) for one in values)], dtype=np.int32)
        flat = list(chain.from_iterable(one for one in values if one is not None))
        if pa.types.is_map(kind):
            pairs = pa.struct([kind.key_field, kind.item_field])
            columns = [
                array_of([key for key, _ in flat], kind.key_type),
                array_of([item for _, item in flat], kind.item_type),
            ]
            items = pa.Array.from_buffers(pairs, len(flat), [None], children=columns)
        else:
            items = array_of(flat, kind.value_type)
        buffers = [_bitmap(valid), pa.py_buffer(ends)]
        return pa.Array.from_buffers(kind, len(values), buffers, children=[items])
    dtype = np.dtype(kind.to_pandas_dtype())
    numbers = np.array([0 if value is None else value for value in values], dtype=dtype)
    if pa.types.is_boolean(kind):
        buffers = [_bitmap(valid), _bitmap(numbers)]
        return pa.Array.from_buffers(kind, len(values), buffers)
    return number_array(numbers, valid)


def scalar_of(value: bool | int, kind: pa.DataType) -> pa.Scalar:
    """The value as `pa.scalar`."""
    return array_of([value], kind)[0]


def places_where(mask: pa.BooleanArray) -> npt.NDArray[np.int64]:
    """The indexes at which a mask without nulls is true."""
    if not len(mask):
        return np.zeros(0, dtype=np.int64)
    bits = np.unpackbits(np.frombuffer(mask.buffers()[1], dtype=np.uint8), bitorder="little")
    return np.flatnonzero(bits[mask.offset : mask.offset + len(mask)])


def _bitmap(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Arrow's validity bitmap; None: all are valid."""
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
