"""Kafka's default partitioner: murmur2 over the key, a sticky partition for records without one.

Mirrors ``Utils.murmur2``, ``Utils.toPositive`` and ``BuiltInPartitioner.partitionForKey`` of Apache
Kafka, so a key lands in the partition a Kafka producer would have chosen. Whole Arrow columns are
hashed with numpy: no Python runs per record.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "murmur2",
    "partition_for_key",
    "partition_for_keys",
    "sticky_partition",
    "sticky_partitions",
]

KeyArray: TypeAlias = pa.Array
KeyColumn: TypeAlias = "pa.Array | pa.ChunkedArray"
UInt32s: TypeAlias = npt.NDArray[np.uint32]
Int64s: TypeAlias = npt.NDArray[np.int64]

NO_PARTITION = -1
SEED = 0x9747B28C
M = 0x5BD1E995
R = 24
MASK_32 = 0xFFFFFFFF
MASK_POSITIVE = 0x7FFFFFFF

# So many rows that their hashes, positions and gathered blocks stay in the processor's cache.
ROWS_PER_STRETCH = 32_768
# Below this many rows a numpy call per block costs more than a Python step per block and row, so
# that one key of a megabyte among short ones does not cost a quarter of a million numpy calls.
ROWS_PER_BLOCK_MIN = 64
# Keys whose numbers of blocks differ by more are sorted first, which costs as much as four blocks.
UNSORTED_BLOCKS_MAX = 4

# For k bytes left over after the last whole block: the bits of a little-endian word they fill.
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)


def murmur2(data: bytes) -> int:
    """Hash bytes as Kafka's ``Utils.murmur2`` does: a signed 32-bit integer, as in Java."""
    length = len(data)
    h = (SEED ^ length) & MASK_32
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * M & MASK_32
        k = (k ^ (k >> R)) * M & MASK_32
        h = (h * M & MASK_32) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * M & MASK_32
    h = (h ^ (h >> 13)) * M & MASK_32
    h ^= h >> 15
    return h - (1 << 32) if h > MASK_POSITIVE else h


def partition_for_key(key: bytes, partitions: int) -> int:
    """Give the partition of one key among ``partitions``, as Kafka's default partitioner does."""
    _check_partitions(partitions)
    return (murmur2(key) & MASK_POSITIVE) % partitions


def partition_for_keys(keys: KeyColumn, partitions: int) -> npt.NDArray[np.int32]:
    """Give the partition of each key, -1 where the key is null, as one int32 per row.

    Takes binary or string columns of any offset width, sliced, chunked, dictionary-encoded or of
    type null. Strings hash as their UTF-8 bytes. The cost follows the bytes, not the number of
    distinct lengths.

    Raises:
        TypeError: the column holds neither bytes nor text.
        ValueError: ``partitions`` is below 1.
    """
    _check_partitions(partitions)
    found = np.empty(len(keys), dtype=np.int32)
    at = 0
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else (keys,):
        part = found[at : at + len(chunk)]
        at += len(chunk)
        if pa.types.is_null(chunk.type):
            part[:] = NO_PARTITION
            continue
        _hash_array(_plain(chunk), part.view(np.uint32))
        np.bitwise_and(part, MASK_POSITIVE, out=part)
        if partitions & (partitions - 1):
            np.remainder(part, np.int32(partitions), out=part)
        else:
            np.bitwise_and(part, np.int32(partitions - 1), out=part)
        if chunk.null_count:
            part[chunk.is_null().to_numpy(zero_copy_only=False)] = NO_PARTITION
    return found


def sticky_partition(seed: int, partitions: int) -> int:
    """Give the one partition that all keyless records of a task or batch go to.

    ``seed`` is the caller's randomness: a random integer spreads evenly, and seeds that follow one
    another (the tasks of a micro-batch) take the partitions in turn.

    Raises:
        ValueError: ``partitions`` is below 1.
    """
    _check_partitions(partitions)
    return seed % partitions


def sticky_partitions(
    sizes_bytes: Int64s, *, seed: int, partitions: int, sent_bytes: int, run_bytes: int
) -> tuple[npt.NDArray[np.int32], int]:
    """Partitions of records without a key, in runs of `run_bytes`, as KIP-794 has it.

    A small batch makes one file, a large one fills all partitions evenly. A record belongs to the
    run in which it begins. `sent_bytes` were sent before; their new sum is returned, too.
    """
    ends = sent_bytes + np.cumsum(sizes_bytes)
    runs = (ends - sizes_bytes) // run_bytes
    first = sticky_partition(seed, partitions)
    return ((first + runs) % partitions).astype(np.int32), int(ends[-1])


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= MASK_POSITIVE:
        raise ValueError(f"partitions must be from 1 to {MASK_POSITIVE}, got {partitions}")


def _plain(keys: KeyArray) -> KeyArray:
    """Return the column laid out as offsets into one data buffer."""
    kind = keys.type
    if pa.types.is_dictionary(kind):
        keys = keys.dictionary_decode()
        kind = keys.type
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        return keys
    if pa.types.is_fixed_size_binary(kind):
        return keys.cast(pa.large_binary())
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return keys.cast(pa.large_binary())
    raise TypeError(f"keys must be binary or string, got {kind}: cast the key column first")


def _hash_array(keys: KeyArray, out: UInt32s) -> None:
    """Write the hash of each row of one array to ``out``; rows that are null get any value."""
    rows = len(keys)
    if rows == 0:
        return
    _, offset_buffer, data_buffer = keys.buffers()
    wide = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    offsets = np.frombuffer(offset_buffer, dtype=np.int64 if wide else np.int32)
    offsets = offsets[keys.offset : keys.offset + rows + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    if data.size < 4:
        data = np.concatenate([data, np.zeros(4, dtype=np.uint8)])
    # Every position of the data as the start of a little-endian word: keys are not aligned.
    words = np.ndarray(shape=(data.size - 3,), dtype="<u4", buffer=data, strides=(1,))
    for at in range(0, rows, ROWS_PER_STRETCH):
        stretch = offsets[at : at + ROWS_PER_STRETCH + 1].astype(np.int64)
        starts, lengths = stretch[:-1], np.diff(stretch)
        shortest, longest = int(lengths.min()), int(lengths.max())
        fewest, most = shortest >> 2, longest >> 2
        if shortest == longest:
            hashes = _hash_equal_rows(words, int(starts[0]), longest, len(starts))
        elif most - fewest <= UNSORTED_BLOCKS_MAX:
            hashes = _hash_like_rows(words, starts, lengths, fewest, most)
        else:
            hashes = _hash_rows(words, starts, lengths)
        out[at : at + ROWS_PER_STRETCH] = hashes


def _hash_equal_rows(words: UInt32s, start: int, length: int, rows: int) -> UInt32s:
    """Hash rows of the same length, one after the other from `start` on: nothing is gathered."""
    h: UInt32s = np.full(rows, np.uint32(SEED ^ length))
    end = start + rows * length
    tail_at = start + (length & ~3)
    for at in range(start, tail_at, 4):
        h *= np.uint32(M)
        h ^= _mix(words[at:end:length].copy())
    left = length & 3
    if left:
        tails = np.zeros(rows, dtype=np.uint32)
        whole = words[tail_at:end:length]
        tails[: len(whole)] = whole
        for row in range(len(whole), rows):  # The last bytes of the buffer start no whole word.
            missing = tail_at + row * length - (len(words) - 1)
            tails[row] = words[-1] >> np.uint32(8 * missing)
        h ^= tails & _TAIL_MASKS[left]
        h *= np.uint32(M)
    return _finished(h)


def _hash_like_rows(
    words: UInt32s, starts: Int64s, lengths: Int64s, fewest: int, most: int
) -> UInt32s:
    """Hash rows of nearly the same length: all have `fewest` blocks, and some up to `most`."""
    h: UInt32s = np.uint32(SEED) ^ lengths.astype(np.uint32)
    blocks = lengths >> 2
    at = starts.copy()
    for _ in range(fewest):
        h *= np.uint32(M)
        h ^= _mix(words[at])
        at += 4
    for i in range(fewest, most):
        longer = np.flatnonzero(blocks > i)
        positions = at[longer]
        h[longer] = h[longer] * np.uint32(M) ^ _mix(words[positions])
        at[longer] = positions + 4
    _add_tails(words, at, lengths & 3, h)
    return _finished(h)


def _hash_rows(words: UInt32s, starts: Int64s, lengths: Int64s) -> UInt32s:
    """Hash rows given by start and length in bytes, block by block over the rows that have it."""
    blocks = lengths >> 2
    blocks_max = int(blocks.max())
    # numpy sorts 16-bit integers by radix, several times faster than wider ones.
    order = np.argsort(blocks.astype(np.uint16) if blocks_max < 1 << 16 else blocks, kind="stable")
    order = order[::-1]
    starts, lengths, blocks = starts[order], lengths[order], blocks[order]
    h: UInt32s = np.uint32(SEED) ^ lengths.astype(np.uint32)
    # Longest first, so the rows that have a block number i are always the first ones.
    alive = np.searchsorted(-blocks, -np.arange(blocks_max), side="left")
    for i, rows in enumerate(alive):
        if rows < ROWS_PER_BLOCK_MIN:
            _finish_long_rows(words, starts[:rows], blocks[:rows], i, h)
            break
        k = _mix(words[starts[:rows] + 4 * i])
        active = h[:rows]
        active *= np.uint32(M)
        active ^= k
    left = lengths & 3
    _add_tails(words, starts + (lengths - left), left, h)
    hashes = np.empty_like(h)
    hashes[order] = _finished(h)
    return hashes


def _finished(h: UInt32s) -> UInt32s:
    """The last step of murmur2, in place."""
    h ^= h >> np.uint32(13)
    h *= np.uint32(M)
    h ^= h >> np.uint32(15)
    return h


def _mix(k: UInt32s) -> UInt32s:
    """Scramble words in place, as murmur2 does with each block before it meets the hash."""
    k *= np.uint32(M)
    k ^= k >> np.uint32(R)
    k *= np.uint32(M)
    return k


def _finish_long_rows(
    words: UInt32s, starts: Int64s, blocks: Int64s, done: int, h: UInt32s
) -> None:
    """Hash the blocks from ``done`` on of the few longest rows, one row after another."""
    for row, (start, count) in enumerate(zip(starts.tolist(), blocks.tolist(), strict=True)):
        mixed = _mix(words[start + 4 * done : start + 4 * count : 4].copy())
        value = int(h[row])
        for k in mixed.tolist():
            value = (value * M & MASK_32) ^ k
        h[row] = value


def _add_tails(words: UInt32s, at: Int64s, left: Int64s, h: UInt32s) -> None:
    """Hash in the `left` bytes, up to three, after the last whole block, which ends at `at`."""
    if not left.any():
        return
    # The last bytes of the buffer start no whole word: read the last word and shift it down.
    last = words.size - 1
    readable = np.minimum(at, last)
    tail = words[readable]
    if int(at.max()) > last:
        # A row without left-over bytes may begin past the end; it is masked to nothing below.
        tail >>= np.minimum(at - readable, 3).astype(np.uint32) * np.uint32(8)
    tail &= _TAIL_MASKS[left]
    np.copyto(h, (h ^ tail) * np.uint32(M), where=left > 0)
