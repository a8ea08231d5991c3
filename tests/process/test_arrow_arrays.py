"""Arrays that are built without `pa.array` are those that it builds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog.process.arrow_arrays import (
    array_of,
    binary_array,
    number_array,
    places_where,
    repeated_text,
    scalar_of,
)


@given(st.lists(st.none() | st.binary(max_size=5)))
def test_bytes_and_nulls(values: list[bytes | None]) -> None:
    found = binary_array(values)
    found.validate(full=True)
    assert found.equals(pa.array(values, pa.binary()))


def test_many_values() -> None:
    """Built by `pa.array` itself."""
    values = [b"a", None] * 5_000
    assert binary_array(values).equals(pa.array(values, pa.binary()))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(values=st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_numbers(dtype: type[np.generic], values: list[int]) -> None:
    numbers = np.array(values, dtype=dtype)
    for piece in (numbers, numbers[::2]):
        found = number_array(piece)
        found.validate(full=True)
        assert found.equals(pa.array(piece))


@given(st.lists(st.integers(-5, 5)))
def test_numbers_with_nulls(values: list[int]) -> None:
    numbers = np.array(values, dtype=np.int64)
    found = number_array(numbers, valid=numbers >= 0)
    found.validate(full=True)
    assert found.to_pylist() == [value if value >= 0 else None for value in values]


@given(st.text(max_size=5), st.integers(0, 20))
def test_text(text: str, length: int) -> None:
    found = repeated_text(text, length)
    found.validate(full=True)
    assert found.equals(pa.array([text] * length, pa.string()))


MAP = pa.map_(pa.string(), pa.string())
TEXT = st.text(max_size=3)
OF_KIND = {
    pa.string(): TEXT,
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.list_(pa.string()): st.lists(st.none() | TEXT, max_size=3),
    MAP: st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=3),
    pa.struct({"a": pa.int64(), "b": pa.struct({"c": MAP})}): st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 9)},
        optional={"b": st.fixed_dictionaries({"c": st.lists(st.tuples(TEXT, TEXT), max_size=2)})},
    ),
}


@pytest.mark.parametrize("kind", OF_KIND, ids=str)
@given(data=st.data())
def test_values_of_every_kind_in_a_checkpoint(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | OF_KIND[kind], max_size=10))
    found = array_of(values, kind)
    found.validate(full=True)
    assert found.equals(pa.array(values, kind))


@given(st.lists(st.none() | st.booleans(), max_size=20), st.integers(0, 20))
def test_places(values: list[bool | None], start: int) -> None:
    mask = pa.array(values, pa.bool_()).slice(start).is_valid()
    places = [at for at, value in enumerate(values[start:]) if value is not None]
    assert places_where(mask).tolist() == places
    all_there = pa.array([value is not None for value in values], pa.bool_()).slice(start)
    assert places_where(all_there).tolist() == places


def test_scalars() -> None:
    assert scalar_of(2**63 - 1, pa.int64()).equals(pa.scalar(2**63 - 1, pa.int64()))
    assert scalar_of(True, pa.bool_()).equals(pa.scalar(True))


def test_number_that_is_too_large_is_refused() -> None:
    """A checkpoint with another number than the log would be wrong for ever."""
    with pytest.raises(OverflowError):
        array_of([2**63], pa.int64())
