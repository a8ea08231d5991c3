"""Appends and markers: decisions about the next commit to a topic."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.model.values import rebuilt, topic_key
from tests.staged_files import named_file
from txnlog.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TxnLogError,
    UnknownProducerIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.appends import Appended, Settled, prepare_append, prepare_marker
from txnlog.protocol.metadata import ProducerIdAndEpoch, StagedBatch
from txnlog.protocol.producer_expiry import CLOCK_ERROR_MS
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.topics import TopicCommit, TopicState, sequence_app_id
from txnlog.protocol.txn_memory import EXPIRED_PRODUCERS

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT


def topic(partitions: int = 2, topic_id: str = "id") -> TopicState:
    state = TopicState()
    state.set_topic(topic_id, {"partitions": str(partitions)})
    return state


def staged(path: str, partition: int = 0, count: int = 1, topic_id: str = "id") -> StagedBatch:
    return named_file(path, topic_id=topic_id, partition=partition, records=count)


def append(
    state: TopicState,
    *batches: StagedBatch,
    sequence: int = 0,
    epoch: int = 0,
    producer_id: int = 7,
    transactional: bool = False,
    topic_id: str = "id",
) -> TopicCommit | Appended:
    decision = prepare_append(
        state,
        [replace(batch, topic_id=topic_id) for batch in batches],
        producer=ProducerIdAndEpoch(producer_id, epoch),
        base_sequences={batch.partition: sequence for batch in batches},
        transactional=transactional,
    )
    if isinstance(decision, TopicCommit):
        decision.apply(state)
    return decision


def mark(
    state: TopicState,
    result: TransactionResult,
    *batches: StagedBatch,
    epoch: int = 0,
    topic_id: str = "id",
) -> TopicCommit | Settled:
    decision = prepare_marker(
        state,
        topic_id=topic_id,
        transaction=ProducerIdAndEpoch(7, epoch),
        result=result,
        batches=batches,
    )
    if isinstance(decision, TopicCommit):
        decision.apply(state)
    return decision


def statuses(state: TopicState, partition: int = 0) -> dict[str, str]:
    return {batch.path: batch.status for batch in state.partitions[partition].batches}


def test_offsets_are_dense_per_partition_in_the_order_of_the_batches() -> None:
    """Every reader would wait for a missing offset (R1)."""
    state = topic()
    append(state, staged("a", 0, 3), staged("b", 1, 2), staged("c", 0, 1))
    spans = [(b.path, b.base_offset, b.last_offset) for b in state.partitions[0].batches]
    assert spans == [("a", 0, 2), ("c", 3, 3)]
    assert [state.high_watermark(0), state.high_watermark(1)] == [4, 2]
    assert [batch.base_sequence for batch in state.partitions[0].batches] == [0, 3]


def test_repeat_of_an_append_is_acknowledged_with_its_first_offsets() -> None:
    """A lost reply must not write the records twice (R2)."""
    state = topic()
    append(state, staged("a", 0, 3), staged("b", 1, 2))
    assert append(state, staged("a2", 0, 3), staged("b2", 1, 2)) == Appended((0, 0))
    assert state.high_watermark(0) == 3


def test_remaining_files_of_an_expired_producer_do_not_give_its_last_sequence() -> None:
    """Compaction may have replaced its newest batch; it starts at 0 as a new one does (D48)."""
    state = topic()
    append(state, staged("a", 0, 3))
    state.set_txn(sequence_app_id(7, 0), 2, 1_000)
    state.set_txn(EXPIRED_PRODUCERS, 2_000)
    assert (7, 0) in state.sequences
    with pytest.raises(UnknownProducerIdError):
        append(state, replace(staged("b"), staged_ms=2_001))
    later = replace(staged("b"), staged_ms=2_000 + CLOCK_ERROR_MS)
    assert isinstance(append(state, later), TopicCommit)
    assert state.high_watermark(0) == 4


def test_append_that_is_half_a_repeat_is_refused_whole() -> None:
    """All partitions of a request are written by one commit, all or none (R2, R7)."""
    state = topic()
    append(state, staged("a", 0, 3))
    with pytest.raises(DuplicateSequenceError, match="of 2 batches 1"):
        append(state, staged("a2", 0, 3), staged("b2", 1, 2))


@pytest.mark.parametrize(
    ("error", "request_"),
    [
        (OutOfOrderSequenceError, {"sequence": 5}),
        (UnknownTopicIdError, {"topic_id": "old"}),
        (InvalidProducerEpochError, {"transactional": True, "epoch": 3}),
    ],
)
def test_refused_append_leaves_no_trace(
    error: type[TxnLogError], request_: dict[str, object]
) -> None:
    """A refusal that changes memory makes the next append wrong (R7)."""
    state = topic()
    append(state, staged("a", 0, 2))
    mark(state, COMMIT, epoch=3)
    before = topic_key(state)
    with pytest.raises(error):
        append(state, staged("b", 0, 2), **request_)  # type: ignore[arg-type]
    assert topic_key(state) == before


def test_append_to_a_missing_partition_is_refused() -> None:
    """A number too high would create partitions (R7)."""
    state = topic(partitions=2)
    with pytest.raises(UnknownTopicOrPartitionError, match="0 to 1, not 2"):
        append(state, staged("a", 2))
    assert len(state.partitions) == 2


def test_marker_alone_fences_its_epoch_and_older_ones() -> None:
    """A zombie's write lands after the abort and stays undecided forever (R4)."""
    state = topic()
    assert isinstance(mark(state, ABORT, epoch=3), TopicCommit)
    for epoch in (2, 3):
        with pytest.raises(InvalidProducerEpochError, match="marker of epoch 3"):
            append(state, staged("late"), epoch=epoch, transactional=True)
    assert isinstance(append(state, staged("next"), epoch=4, transactional=True), TopicCommit)


def test_marker_settles_every_older_header_of_its_producer_and_no_other() -> None:
    """No other marker would settle a late header of an earlier epoch (R4, R32)."""
    state = topic()
    append(state, staged("old"), epoch=0, transactional=True)
    append(state, staged("new"), epoch=1, transactional=True)
    append(state, staged("other"), producer_id=8, transactional=True)
    mark(state, ABORT, epoch=1)
    assert statuses(state) == {"old": "aborted", "new": "aborted", "other": "ongoing"}
    assert state.last_stable_offset(0) == 2


def test_marker_twice_or_late_changes_nothing() -> None:
    """Two helpers, or a late one, publish the manifest again (R5)."""
    state = topic()
    mark(state, COMMIT, staged("a"), epoch=2)
    assert mark(state, COMMIT, staged("a"), epoch=2) == Settled()
    assert mark(state, ABORT, epoch=1) == Settled()
    assert statuses(state) == {"a": "committed"}


def test_marker_publishes_the_manifest_on_commit_only() -> None:
    """Staged batches of an aborted transaction stay invisible (R36)."""
    for result, expected in ((COMMIT, {"a": "committed"}), (ABORT, {})):
        state = topic()
        commit = mark(state, result, staged("a"))
        assert isinstance(commit, TopicCommit)
        assert commit.txns == {"txnlog/7": 0}
        assert statuses(state) == expected


def test_marker_never_changes_a_topic_created_again() -> None:
    """A prepared transaction of the old topic would write into the new one (R71)."""
    state = topic(topic_id="new")
    assert mark(state, COMMIT, staged("a", topic_id="old"), topic_id="old") == Settled()
    mark(state, COMMIT, staged("a", topic_id="old"), staged("b", topic_id="new"), topic_id="new")
    assert statuses(state) == {"b": "committed"}
    state.set_topic("new", {"partitions": "2", "deleted": "true"})
    assert mark(state, COMMIT, staged("c", topic_id="new"), epoch=9, topic_id="new") == Settled()


def test_producer_inside_a_transaction_cannot_append_outside_it() -> None:
    """Data outside would be visible, and stay if the transaction aborts (R6)."""
    state = topic()
    append(state, staged("a"), transactional=True)
    with pytest.raises(InvalidTxnStateError, match="inside a transaction"):
        append(state, staged("b"), sequence=1)
    mark(state, COMMIT)
    assert isinstance(append(state, staged("b"), sequence=0), TopicCommit)


def test_idempotent_append_carries_its_last_sequence() -> None:
    """The log itself must have a producer's last sequence (R2, R9)."""
    commit = append(topic(), staged("a", 0, 3), staged("b", 1, 1))
    assert isinstance(commit, TopicCommit)
    assert commit.txns == {"txnlog/7-0": 2, "txnlog/7-1": 0}


def test_topic_created_again_takes_sequences_from_the_start() -> None:
    """A batch removed with the old topic would be acknowledged as a repeat (R2, R11, R71)."""
    state = topic()
    append(state, staged("a"), transactional=True)
    state.set_topic("id", {"partitions": "2", "deleted": "true"})
    state.remove(["a"])
    state.set_topic("new", {"partitions": "2"})
    again = append(state, staged("b", topic_id="new"), transactional=True, topic_id="new")
    assert isinstance(again, TopicCommit)


Request = tuple[str, int, int, int]
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["append", "idempotent", "commit", "abort", "publish"]),
        st.integers(0, 1),
        st.integers(0, 3),
        st.integers(1, 3),
    ),
    max_size=25,
)


@given(REQUESTS)
def test_memory_rebuilt_from_the_log_equals_warm_memory(requests: list[Request]) -> None:
    """A process that starts from a checkpoint decides otherwise than others (R7, R11)."""
    state = topic()
    for number, (what, partition, epoch, count) in enumerate(requests):
        path = f"file{number}"
        before = topic_key(state)
        key = (8 if what == "idempotent" else 7, partition)
        known = state.sequences.get(key)
        fresh = known is None or known.producer_epoch < epoch
        sequence = 0 if fresh or known is None else known.last_sequence + 1
        try:
            if what == "append":
                append(
                    state,
                    staged(path, partition, count),
                    sequence=sequence,
                    epoch=epoch,
                    transactional=True,
                )
            elif what == "idempotent":
                sequence = 0 if known is None else known.last_sequence + 1
                append(state, staged(path, partition, count), producer_id=8, sequence=sequence)
            elif what == "publish":
                mark(state, COMMIT, staged(path, partition, count), epoch=epoch)
            else:
                mark(state, COMMIT if what == "commit" else ABORT, epoch=epoch)
        except TxnLogError:
            assert topic_key(state) == before
        assert topic_key(rebuilt(state)) == topic_key(state)
        assert topic_key(deepcopy(state)) == topic_key(state)
        for each in state.partitions:
            bases = [batch.base_offset for batch in each.batches]
            ends = [batch.last_offset + 1 for batch in each.batches]
            assert bases == [0, *ends][: len(bases)]


def test_append_idempotent_after_its_batches_were_removed_continues_from_the_txn() -> None:
    """A process that starts after retention must accept the producer's next sequence (R11, R22)."""
    fresh = topic(partitions=1)
    fresh.set_txn("txnlog/7-0", 4)
    fresh.set_txn("txnlog/end/0", 5)
    with pytest.raises(OutOfOrderSequenceError):
        append(fresh, staged("b"), sequence=6)
    with pytest.raises(DuplicateSequenceError):
        append(fresh, staged("c"), sequence=4)
    commit = append(fresh, staged("a"), sequence=5)
    assert isinstance(commit, TopicCommit)
    assert commit.adds[0].base_offset == 5
