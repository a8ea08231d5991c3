"""The transaction state row as stored, and the row of an id used once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.protocol.group_row import a_ticket
from tests.staged_files import named_file
from txnlog.errors import CorruptLogError
from txnlog.protocol.metadata import (
    FORMER_RUNS_MAX,
    LastBatch,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_complete,
    prepare_init,
    prepare_one_off_commit,
)

S = TransactionState
ROW = TransactionMetadata(
    transactional_id="id",
    producer_id=7,
    producer_epoch=3,
    txn_epoch=3,
    state=S.ONGOING,
    timeout_ms=1000,
    partitions=(TopicPartitions(topic="t", topic_id="t-id", partitions=(0, 2)),),
    pending=Manifest(tickets=(a_ticket(),)),
    owner=Owner(run_id="a", query_id="q", former_runs=("z",), last_batch=LastBatch(batch_id=4)),
)


def test_one_off_commit_is_decided_at_once_and_leaves_no_row() -> None:
    """Batch writes would fill the state table with unused rows (R36)."""
    manifest = Manifest(batches=(named_file(),))

    def commit(row: TransactionMetadata | None) -> Transition | Done:
        return prepare_one_off_commit(
            row,
            transactional_id="once",
            producer_id=9,
            manifest=manifest,
            owner=Owner(run_id="a"),
            now_ms=1,
        )

    first = commit(None)
    assert isinstance(first, Transition)
    row = first.next
    assert row.state is S.PREPARE_COMMIT
    assert commit(row) == Done(row)
    done = prepare_complete(row, transaction=ProducerIdAndEpoch(9, 0), now_ms=2)
    assert isinstance(done, Transition)
    assert done.next.state is S.DEAD


def test_row_survives_the_store() -> None:
    """Every process decides on what it reads there (R38)."""
    values = ROW.to_values()
    read = TransactionMetadata.from_values(values, path="f", source="s")
    assert read == replace(ROW, path="f")
    assert read.to_values() == values


@pytest.mark.parametrize(
    ("column", "value"), [("state", "PREPARE_FLY"), ("producer_epoch", "x"), ("pending", "{")]
)
def test_row_that_cannot_be_read_is_refused_by_name(column: str, value: str) -> None:
    """A guessed state would decide a transaction (R38, R66)."""
    values = {**ROW.to_values(), column: value}
    with pytest.raises(CorruptLogError, match="the-source.*'id'"):
        TransactionMetadata.from_values(values, path="f", source="the-source")


def test_former_runs_are_remembered_up_to_a_bound() -> None:
    """A row that grows with each restart makes each transition slower (R58)."""
    row = replace(ROW, state=S.EMPTY)
    for number in range(FORMER_RUNS_MAX + 5):
        taken_over = prepare_init(
            row,
            transactional_id="id",
            new_producer_id=-1,
            owner=Owner(run_id=f"run{number}"),
            timeout_ms=1,
            now_ms=0,
        )
        assert isinstance(taken_over, Transition)
        row = taken_over.next
    assert len(row.owner.former_runs) == FORMER_RUNS_MAX
    assert row.owner.former_runs[-1] == f"run{FORMER_RUNS_MAX + 3}"


def test_topic_created_again_is_named_with_both_ids() -> None:
    """The omitted id would get no marker, and its headers stay undecided (R71)."""
    again = TopicPartitions(topic="t", topic_id="a-id", partitions=(0,))
    row = replace(ROW, partitions=(*ROW.partitions, again))
    assert row.topic_ids == (("t", "a-id"), ("t", "t-id"))
