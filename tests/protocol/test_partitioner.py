"""The partitioner against Kafka's vectors and against a slow scalar transcription of murmur2."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txnlog.protocol import partitioner
from txnlog.protocol.partitioner import (
    murmur2,
    partition_for_key,
    partition_for_keys,
    sticky_partition,
)

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
# With this many partitions a partition is the positive hash itself, but for one value.
PARTITIONS_MAX = 0x7FFFFFFF


def reference_partition(key: bytes, partitions: int) -> int:
    """Kafka's Utils.murmur2 and toPositive, statement by statement."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(key)) & mask
    for i in range(len(key) // 4):
        k = key[4 * i] + (key[4 * i + 1] << 8) + (key[4 * i + 2] << 16) + (key[4 * i + 3] << 24)
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = (h * m) & mask
        h ^= k
    left, whole = len(key) % 4, len(key) & ~3
    if left >= 3:
        h ^= key[whole + 2] << 16
    if left >= 2:
        h ^= key[whole + 1] << 8
    if left >= 1:
        h ^= key[whole]
        h = (h * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    h ^= h >> 15
    return (h & 0x7FFFFFFF) % partitions


def expected(keys: list[bytes | None], partitions: int) -> list[int]:
    return [-1 if key is None else reference_partition(key, partitions) for key in keys]


@pytest.mark.parametrize(("key", "wanted"), KAFKA_VECTORS.items())
def test_murmur2_of_kafkas_vectors_equals_kafka(key: bytes, wanted: int) -> None:
    """Hazard: a hash that differs from Kafka's parts equal keys of a moved-over job."""
    assert murmur2(key) == wanted


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_partition_for_keys_of_kafkas_vectors_equals_kafka(kind: pa.DataType) -> None:
    """Hazard: the vectorised hash drifts from the scalar one, which picks the shard of an id."""
    keys = pa.array([key.decode() for key in KAFKA_VECTORS]).cast(kind)
    wanted = [(value & 0x7FFFFFFF) % PARTITIONS_MAX for value in KAFKA_VECTORS.values()]
    assert partition_for_keys(keys, PARTITIONS_MAX).tolist() == wanted


@given(st.binary(max_size=70))
def test_murmur2_of_any_bytes_equals_the_reference(key: bytes) -> None:
    """Hazard: a length whose tail bytes are mixed wrongly."""
    assert (murmur2(key) & 0x7FFFFFFF) % PARTITIONS_MAX == reference_partition(key, PARTITIONS_MAX)
    assert partition_for_key(key, 12) == reference_partition(key, 12)


@given(
    keys=st.lists(st.none() | st.binary(max_size=40), max_size=150),
    partitions=st.sampled_from([1, 2, 4, 7, 1000, PARTITIONS_MAX]),
    wide=st.booleans(),
    cut=st.integers(0, 20),
)
@example(keys=[], partitions=4, wide=False, cut=0)
@example(keys=[None], partitions=4, wide=False, cut=0)
@example(keys=[b""], partitions=4, wide=True, cut=0)
@example(keys=[b"a"], partitions=4, wide=False, cut=0)
@example(keys=[b"abcd" * 9] * 70 + [b"abc"], partitions=PARTITIONS_MAX, wide=False, cut=3)
def test_partition_for_keys_of_any_slice_with_nulls_equals_the_reference(
    keys: list[bytes | None], partitions: int, wide: bool, cut: int
) -> None:
    """Hazard: a slice reads its neighbours' bytes, or a null gets a partition of its own."""
    column = pa.array(keys, type=pa.large_binary() if wide else pa.binary())
    left = min(cut, len(keys))
    sliced = column.slice(left, max(0, len(keys) - left - cut // 2))
    found = partition_for_keys(sliced, partitions)
    assert found.dtype == np.int32
    assert found.tolist() == expected(sliced.to_pylist(), partitions)


@pytest.mark.parametrize(
    ("shortest", "longest"),
    [
        pytest.param(0, 29, id="sorted"),
        pytest.param(0, 19, id="none to four blocks"),
        pytest.param(38, 54, id="all have nine blocks, some up to thirteen"),
        pytest.param(8, 8, id="no tail"),
        pytest.param(0, 0, id="empty"),
        pytest.param(1, 1, id="one byte each"),
        pytest.param(2, 2, id="two bytes each"),
        pytest.param(3, 3, id="three bytes each"),
        pytest.param(37, 37, id="all of one length"),
        pytest.param(1, 3, id="no block"),
    ],
)
def test_partition_for_keys_of_more_rows_than_a_stretch_equals_the_reference(
    shortest: int, longest: int
) -> None:
    """Hazard: rows are put back in the wrong place after sorting, or at a stretch's border."""
    rng = np.random.default_rng(7)
    rows = partitioner.ROWS_PER_STRETCH * 2 + 5
    keys = [rng.bytes(int(length)) for length in rng.integers(shortest, longest + 1, rows)]
    assert partition_for_keys(pa.array(keys), 1000).tolist() == expected(list(keys), 1000)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_partition_for_keys_at_both_ends_of_the_buffer_equals_the_reference(
    length: int, rows: int
) -> None:
    """Hazard: the last tails lie behind the last whole word of the buffer, or before its start."""
    keys = [bytes(range(at, at + length)) for at in range(rows + 2)]
    for first in range(3):
        sliced = pa.array(keys).slice(first, rows)
        assert partition_for_keys(sliced, 1000).tolist() == expected(sliced.to_pylist(), 1000)


def test_partition_for_keys_of_chunks_keeps_the_order_of_rows() -> None:
    """Hazard: chunks of a table's column overwrite each other."""
    chunks = [[b"a", None], [], [b"bcd", b"efghi"], [None]]
    column = pa.chunked_array([pa.array(chunk, type=pa.binary()) for chunk in chunks])
    flat = [key for chunk in chunks for key in chunk]
    assert partition_for_keys(column, 5).tolist() == expected(flat, 5)
    assert partition_for_keys(pa.chunked_array([], type=pa.binary()), 5).tolist() == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"ab", b"cd", None, b"ab"], type=pa.binary(2)),
        pa.array([b"ab", b"cd", None, b"ab"]).dictionary_encode(),
        pa.array([b"ab", b"cd", None, b"ab"], type=pa.binary_view()),
    ],
    ids=["fixed", "dictionary", "view"],
)
def test_partition_for_keys_in_another_layout_equals_the_reference(column: pa.Array) -> None:
    """Hazard: a layout without offsets is read as if it had them."""
    assert partition_for_keys(column, 9).tolist() == expected([b"ab", b"cd", None, b"ab"], 9)


def test_partition_for_keys_of_a_null_column_gives_no_partition() -> None:
    """Hazard: a DataFrame with lit(None) as key has Arrow's null type, and no buffers at all."""
    assert partition_for_keys(pa.nulls(3), 4).tolist() == [-1, -1, -1]


def test_partition_for_keys_of_all_null_keys_gives_no_partition() -> None:
    """Hazard: a column of nulls may come without a data buffer."""
    nulls = pa.array([None] * 70, type=pa.binary())
    assert partition_for_keys(nulls, 4).tolist() == [-1] * 70


def test_partition_for_keys_of_text_hashes_its_utf8_bytes() -> None:
    """Hazard: text keys hashed by characters instead of the bytes Kafka would be sent."""
    text = ["Zürich", "東京", ""]
    wanted = expected([name.encode() for name in text], 100)
    assert partition_for_keys(pa.array(text), 100).tolist() == wanted


def test_partition_for_keys_of_numbers_is_refused() -> None:
    """Hazard: a number column hashed by its memory layout."""
    with pytest.raises(TypeError, match="int64"):
        partition_for_keys(pa.array([1, 2]), 4)


@pytest.mark.parametrize("partitions", [0, -1])
def test_partitioner_without_partitions_is_refused(partitions: int) -> None:
    """Hazard: a remainder by zero is 0 in numpy, with a warning no one reads."""
    with pytest.raises(ValueError, match="partitions"):
        partition_for_keys(pa.array([b"a"]), partitions)
    with pytest.raises(ValueError, match="partitions"):
        sticky_partition(1, partitions)


def test_partition_for_keys_with_few_long_keys_equals_the_reference() -> None:
    """Hazard: the long keys' own path disagrees with the common one where it takes over."""
    keys = [b"x" * 9] * 100 + [bytes(range(256)) * 5 + b"tail"[:left] for left in range(4)]
    assert partition_for_keys(pa.array(keys), 1000).tolist() == expected(list(keys), 1000)


@given(seed=st.integers(), partitions=st.integers(1, 1000))
def test_sticky_partition_of_any_seed_is_a_partition(seed: int, partitions: int) -> None:
    """Hazard: a negative random number gives a partition that does not exist."""
    assert 0 <= sticky_partition(seed, partitions) < partitions


def test_sticky_partition_of_consecutive_seeds_takes_partitions_in_turn() -> None:
    """Hazard: all tasks of a micro-batch stick to one partition."""
    assert [sticky_partition(seed, 4) for seed in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
