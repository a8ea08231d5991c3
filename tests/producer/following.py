"""What a producer does after a commit that has left something to do."""

from __future__ import annotations

import pytest

from tests.producer.worlds import group, input_at
from txnlog.producer import Producer


def commit(made: Producer, value: str, *, input_offset: int | None = None) -> None:
    """One transaction of one record, perhaps with an input."""
    made.begin_transaction()
    made.produce("orders", value, partition=0)
    if input_offset is not None:
        made.send_offsets_to_transaction(input_at(input_offset), group())
    made.commit_transaction()


def next_commit(made: Producer) -> None:
    commit(made, "next")


def next_with_offsets(made: Producer) -> None:
    commit(made, "next", input_offset=20)


def next_abort(made: Producer) -> None:
    made.begin_transaction()
    made.produce("orders", "gone", partition=0)
    made.flush()
    made.abort_transaction()
    commit(made, "next")


def next_prepared(made: Producer) -> None:
    made.begin_transaction()
    made.produce("orders", "next", partition=0)
    state = made.prepare_transaction()
    assert made.complete_transaction(state)


ACTS = [next_commit, next_with_offsets, next_abort, next_prepared]
NEXT = pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
