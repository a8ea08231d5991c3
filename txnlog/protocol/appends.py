"""The two decisions about a topic's next commit: append batches, or write a transaction's marker.

Mirrors UnifiedLog.append and endTransaction markers of Apache Kafka. Both are pure: TopicState in,
TopicCommit (to be written at the version after the state's) or Appended/Settled (already done) out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from txnlog.errors import (
    RESTORE_ALL,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.batches import ABORTED, COMMITTED, NONE, ONGOING, BatchHeader, encode_stats
from txnlog.protocol.metadata import (
    AppTransaction,
    ProducerIdAndEpoch,
    StagedBatch,
    TopicPartitions,
)
from txnlog.protocol.producer_expiry import check_remembered
from txnlog.protocol.sequences import ProducerStateEntry, check_sequence, observe
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.topics import TopicCommit, TopicState, marker_app_id, sequence_app_id
from txnlog.protocol.txn_memory import APPLICATION_RECORDS


@dataclass(frozen=True, slots=True)
class Appended:
    """All batches are in the log already, with these `base_offsets`, in the order given."""

    base_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """The topic has the marker already, or has been deleted (R71).

    `missing` are batches of the commit that the topic should have, and that are not among its live
    files: they were removed since, or the marker is that of another transaction (D131).
    """

    missing: tuple[StagedBatch, ...] = ()


def prepare_append(
    state: TopicState,
    batches: Sequence[StagedBatch],
    *,
    producer: ProducerIdAndEpoch,
    base_sequences: Mapping[int, int],
    transactional: bool,
    may_be_there: bool = True,
) -> TopicCommit | Appended:
    """Append a producer's batches of one topic: `ongoing` inside a transaction, else final at once.

    `base_sequences` maps partition -> sequence of the first record in it. All partitions are
    written by one commit, all or none. `may_be_there`: an earlier call may have written them, and
    compaction replaced their files. Raises the errors of `check_sequence`, UnknownProducerIdError
    for batches that an expired producer may have written before, and InvalidProducerEpochError if
    the transaction of this epoch has its marker already (R4).
    """
    producer_id, producer_epoch = producer
    topic = batches[0].topic
    check_topic_id(state, topic=topic, topic_id=batches[0].topic_id)
    marked = state.markers.get(producer_id, -1)
    if transactional and marked >= producer_epoch:
        raise InvalidProducerEpochError(
            f"Topic {topic!r}: the transaction of producer {producer_id} epoch {producer_epoch} "
            f"has ended here (marker of epoch {marked}); nothing more can be written in it. "
            "Abort, and call init_transactions again.",
            producer_id=producer_id,
            expected_epoch=marked + 1,
            actual_epoch=producer_epoch,
        )
    if not transactional and state.ongoing_of(producer_id, producer_epoch):
        raise InvalidTxnStateError(
            f"Topic {topic!r}: producer {producer_id} is inside a transaction and cannot append "
            "outside it. Commit or abort the transaction first.",
            producer_id=producer_id,
        )
    for batch in batches:
        check_partition(state, topic=topic, partition=batch.partition)
    adds = _place(
        state,
        batches,
        status=ONGOING if transactional else NONE,
        producer=producer,
        base_sequences=base_sequences,
    )
    known = _repeats(state, adds, topic=topic, may_be_there=may_be_there)
    if known:
        return Appended(known)
    txns = {}
    if not transactional:
        unknown = [batch for batch in batches if not _has_sequence(state, producer_id, batch)]
        check_remembered(state.txns, unknown, topic=topic, producer_id=producer_id)
        txns = {sequence_app_id(producer_id, add.partition): add.last_sequence for add in adds}
    return TopicCommit(
        operation="PRODUCE",
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        adds=adds,
        txns=txns,
    )


def _has_sequence(state: TopicState, producer_id: int, batch: StagedBatch) -> bool:
    return (producer_id, batch.partition) in state.last_sequences


def has_marker(state: TopicState, topic_id: str, transaction: ProducerIdAndEpoch) -> bool:
    """Whether the topic has the transaction's marker, or gets none as it is deleted (D12)."""
    if state.deleted or state.topic_id != topic_id:
        return True
    return state.markers.get(transaction.producer_id, -1) >= transaction.epoch


def prepare_marker(
    state: TopicState,
    *,
    topic_id: str,
    transaction: ProducerIdAndEpoch,
    result: TransactionResult,
    batches: Sequence[StagedBatch] = (),
    app: AppTransaction | None = None,
    ends: Mapping[int, int] = {},
) -> TopicCommit | Settled:
    """The marker commit of a transaction in one topic (D4).

    It settles every live `ongoing` header of the producer up to the epoch: those of an earlier one,
    whose end was lost with the state log, are aborted (D131). It publishes on commit
    every staged batch of the manifest with its offsets, and carries the `txn` that refuses any
    later write of the transaction (R4, R5). Written even if there is nothing to mark. A commit
    records `app`, and its number of records here, in the same write: data and txnVersion appear
    together. `ends` of partitions: as after what the same commit has for other transactions.
    """
    producer_id, txn_epoch = transaction
    is_commit = result is TransactionResult.COMMIT
    wanted = [batch for batch in batches if is_commit and batch.topic_id == topic_id]
    if has_marker(state, topic_id, transaction):
        is_gone = state.deleted or state.topic_id != topic_id
        missing = () if is_gone else [one for one in wanted if one.path not in state.by_path]
        return Settled(tuple(missing))
    marked = tuple(
        replace(header, status=result.status if header.producer_epoch == txn_epoch else ABORTED)
        for header in state.ongoing_of(producer_id, txn_epoch)
    )
    published = _place(
        state, wanted, status=COMMITTED, producer=transaction, base_sequences={}, ends=ends
    )
    txns = {marker_app_id(producer_id): txn_epoch}
    if is_commit and app is not None:
        txns[app.app_id] = app.version
        txns[APPLICATION_RECORDS + app.app_id] = sum(batch.num_records for batch in wanted)
    return TopicCommit(
        operation="WRITE TXN MARKERS",
        producer_id=producer_id,
        producer_epoch=txn_epoch,
        adds=marked + published,
        txns=txns,
    )


def _repeats(
    state: TopicState, adds: Sequence[BatchHeader], *, topic: str, may_be_there: bool
) -> tuple[int, ...]:
    """First offsets of the batches if all of them are repeats, () if none is.

    Raises DuplicateSequenceError for what another producer with this producer id wrote (D131).
    """
    seen: dict[int, ProducerStateEntry | None] = {}
    known = []
    for add in adds:
        key = add.producer_id, add.partition
        newest = state.last_sequences.get(key, -1)
        # An expired producer may have batches left, which do not show its last sequence (D48).
        is_known = add.status == ONGOING or key in state.last_sequences
        before = seen.get(add.partition, state.sequences.get(key) if is_known else None)
        first_offset = check_sequence(
            before,
            add,
            where=f"Topic {topic!r} partition {add.partition}",
            newest_sequence=-1 if add.partition in seen or add.status == ONGOING else newest,
        )
        if first_offset is None:
            seen[add.partition] = observe(before, add)
        else:
            known.append(first_offset)
    if known and len(known) < len(adds):
        raise DuplicateSequenceError(
            f"Topic {topic!r}: of {len(adds)} batches {len(known)} are in the log already. Repeat "
            "exactly the batches sent before; nothing was written.",
            topic=topic,
        )
    if known and not may_be_there and any(add.path not in state.by_path for add in adds):
        raise DuplicateSequenceError(
            f"Topic {topic!r}: sequences {adds[0].base_sequence} to {adds[0].last_sequence} of "
            f"producer {adds[0].producer_id} are in other files than those sent now: another "
            "producer has its id, as after a restore of __cluster alone. Nothing was written. "
            f"{RESTORE_ALL}",
            topic=topic,
            producer_id=adds[0].producer_id,
        )
    return tuple(known)


def _place(
    state: TopicState,
    batches: Sequence[StagedBatch],
    *,
    status: str,
    producer: ProducerIdAndEpoch,
    base_sequences: Mapping[int, int],
    ends: Mapping[int, int] = {},
) -> tuple[BatchHeader, ...]:
    """Assign offsets and sequences, dense per partition, in the order of the batches.

    `ends` of partitions to which the same commit adds batches before these, maybe settled ones.
    """
    next_offset = {
        partition: max(end, state.high_watermark(partition)) for partition, end in ends.items()
    }
    next_sequence = dict(base_sequences)
    placed = []
    for batch in batches:
        partition = batch.partition
        base = next_offset.get(partition)
        if base is None:
            base = state.high_watermark(partition)
        sequence = next_sequence.get(partition, 0)
        next_offset[partition] = base + batch.num_records
        next_sequence[partition] = sequence + batch.num_records
        placed.append(
            BatchHeader(
                batch.path,
                partition,
                base,
                base + batch.num_records - 1,
                *producer,
                sequence,
                status,
                batch.size_bytes,
                encode_stats(batch.num_records, batch.timestamp_min_us, batch.timestamp_max_us),
            )
        )
    return tuple(placed)


def check_topic_id(state: TopicState, *, topic: str, topic_id: str) -> None:
    """Raises UnknownTopicIdError if the topic has been deleted, or created again (R71)."""
    if state.deleted or state.topic_id != topic_id:
        now = "deleted" if state.deleted else f"another topic (id {state.topic_id})"
        raise UnknownTopicIdError(
            f"Topic {topic!r} with id {topic_id} is now {now}. Look the topic up again, or "
            "restart the query that used it.",
            topic=topic,
            topic_id=topic_id,
        )


def check_partition(state: TopicState, *, topic: str, partition: int) -> None:
    """Raises UnknownTopicOrPartitionError for a number the topic does not have."""
    if not 0 <= partition < len(state.partitions):
        raise UnknownTopicOrPartitionError(
            f"Topic {topic!r} has partitions 0 to {len(state.partitions) - 1}, not {partition}.",
            topic=topic,
            partition=partition,
        )


def check_added(added: Sequence[TopicPartitions], batches: Sequence[StagedBatch]) -> None:
    """Raises InvalidTxnStateError unless the transaction names every partition it writes (R30).

    A partition it does not name gets no marker: its batches would stay undecided forever.
    """
    named = {(tp.topic_id, partition) for tp in added for partition in tp.partitions}
    for batch in batches:
        if (batch.topic_id, batch.partition) not in named:
            raise InvalidTxnStateError(
                f"Topic {batch.topic!r} partition {batch.partition} was not added to the "
                "transaction. Call add_partitions before the first append to it.",
                topic=batch.topic,
                partition=batch.partition,
            )
