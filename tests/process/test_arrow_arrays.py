"""Arrays that are built without `pa.array` are those that it builds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog.process.arrow_arrays import binary_array, number_array, repeated_text


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
