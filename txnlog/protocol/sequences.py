"""Producer epochs and sequence numbers of one (producer id, partition).

Mirrors ProducerStateEntry and ProducerAppendInfo of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import msgspec
import numpy as np

from txnlog.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
)
from txnlog.protocol.batches import ABORTED, COMMITTED, BatchHeader, HeaderColumns

BATCHES_REMEMBERED = 5


class Appended(msgspec.Struct, frozen=True, gc=False):
    """A remembered batch: its sequences and its first offset."""

    base_sequence: int
    last_sequence: int
    base_offset: int


class ProducerStateEntry(msgspec.Struct, frozen=True):
    """A producer's newest epoch in a partition, and its last five batches in order."""

    producer_epoch: int
    recent: tuple[Appended, ...]

    @property
    def last_sequence(self) -> int:
        return self.recent[-1].last_sequence if self.recent else -1


def observe(state: ProducerStateEntry | None, batch: BatchHeader) -> ProducerStateEntry | None:
    """The state after a header is read from the log; the same header twice changes nothing.

    A batch of an ended transaction is forgotten: the marker refuses later batches of its epoch
    (R4). So the state does not depend on whether the batch's file still exists (R11).
    """
    if batch.base_sequence < 0:
        return state
    if batch.status in (COMMITTED, ABORTED):
        return None if state is None else forget(state, batch)
    if state is not None and batch.producer_epoch < state.producer_epoch:
        return state
    entry = Appended(batch.base_sequence, batch.last_sequence, batch.base_offset)
    if state is None or batch.producer_epoch > state.producer_epoch:
        return ProducerStateEntry(batch.producer_epoch, (entry,))
    last = state.recent[-1]
    if entry.base_sequence > last.last_sequence:
        return ProducerStateEntry(
            state.producer_epoch, (*state.recent, entry)[-BATCHES_REMEMBERED:]
        )
    if entry in state.recent:
        return state
    merged = sorted({*state.recent, entry}, key=lambda known: known.base_sequence)
    return ProducerStateEntry(state.producer_epoch, tuple(merged[-BATCHES_REMEMBERED:]))


def forget(state: ProducerStateEntry, batch: BatchHeader) -> ProducerStateEntry | None:
    """The state without a removed batch, as rebuilt from the others; None if none is left."""
    if batch.producer_epoch != state.producer_epoch:
        return state
    left = tuple(known for known in state.recent if known.base_offset != batch.base_offset)
    return ProducerStateEntry(state.producer_epoch, left) if left else None


def observe_all(columns: HeaderColumns) -> dict[tuple[int, int], ProducerStateEntry]:
    """(producer id, partition) -> the state after `observe` of each of many headers."""
    counted = (columns.producer_id >= 0) & (columns.base_sequence >= 0) & ~columns.is_ended
    written = np.flatnonzero(counted)
    keys = (columns.producer_id, columns.partition, columns.producer_epoch, columns.base_sequence)
    order = written[np.lexsort([key[written] for key in reversed(keys)])]
    ids, partitions, epochs, firsts = (key[order] for key in keys)
    offsets = columns.base_offset[order]
    lasts = firsts + columns.last_offset[order] - offsets
    changes = (np.diff(ids) != 0) | (np.diff(partitions) != 0)
    ends = np.append(np.flatnonzero(changes) + 1, len(order)) if len(order) else order
    states = {}
    start = 0
    for end in ends.tolist():
        recent = slice(max(start, end - BATCHES_REMEMBERED), end)
        newest = int(epochs[end - 1])
        states[int(ids[start]), int(partitions[start])] = ProducerStateEntry(
            newest,
            tuple(
                Appended(first, last, offset)
                for epoch, first, last, offset in zip(
                    epochs[recent].tolist(),
                    firsts[recent].tolist(),
                    lasts[recent].tolist(),
                    offsets[recent].tolist(),
                    strict=True,
                )
                if epoch == newest
            ),
        )
        start = end
    return states


def check_sequence(
    state: ProducerStateEntry | None, batch: BatchHeader, *, where: str, newest_sequence: int = -1
) -> int | None:
    """None: append the batch. An offset: an exact repeat, whose first offset this is (R1-R3).

    `newest_sequence` is the last sequence of an idempotent producer, even if none of its batches
    is left.
    Raises InvalidProducerEpochError for an older epoch, OutOfOrderSequenceError for a gap,
    DuplicateSequenceError for a partial repeat or one that is no longer remembered.
    """
    producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
    base_sequence, last_sequence = batch.base_sequence, batch.last_sequence
    who = f"{where}: producer {producer_id} epoch {producer_epoch}"
    if state is not None and producer_epoch < state.producer_epoch:
        raise InvalidProducerEpochError(
            f"{who} is older than epoch {state.producer_epoch}, which has written here already. "
            "Another instance took over; stop this one, or call init_transactions again.",
            producer_id=producer_id,
            expected_epoch=state.producer_epoch,
            actual_epoch=producer_epoch,
        )
    fresh = state is None or producer_epoch > state.producer_epoch
    last = -1 if fresh or state is None else state.last_sequence
    last = max(last, newest_sequence)
    if base_sequence == last + 1:
        return None
    if base_sequence > last:
        raise OutOfOrderSequenceError(
            f"{who} sends sequence {base_sequence}, but {last + 1} is next: records in between "
            "are missing. Nothing was written; close this producer and start a new one.",
            producer_id=producer_id,
            expected_sequence=last + 1,
            actual_sequence=base_sequence,
        )
    for known in () if state is None else state.recent:
        if (known.base_sequence, known.last_sequence) == (base_sequence, last_sequence):
            return known.base_offset
    raise DuplicateSequenceError(
        f"{who} sends sequences {base_sequence} to {last_sequence} again, but they overlap other "
        f"batches or are older than the last {BATCHES_REMEMBERED}. Nothing was written.",
        producer_id=producer_id,
        actual_sequence=base_sequence,
    )
