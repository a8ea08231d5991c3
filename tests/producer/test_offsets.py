"""Group offsets in a producer's transactions, in both publications."""

from __future__ import annotations

import pytest

from tests.producer.worlds import BOTH, GROUP, group, input_at, started, values, world
from tests.world import check_settled, position, process
from txnlog.errors import IllegalGenerationError, TransactionAbortableError
from txnlog.messages import TopicPartition


@BOTH
def test_offsets_sent_in_pieces_are_committed_together(publish: str) -> None:
    """Several calls in one transaction add up; the newest position of a partition counts (R45)."""
    shared = world()
    made = started(shared, publish)
    with made.transaction():
        made.produce("orders", "a")
        made.send_offsets_to_transaction(input_at(4), group())
        made.send_offsets_to_transaction([TopicPartition("input", 1, 7)], group())
        made.send_offsets_to_transaction(input_at(5), group())
    assert process(shared).groups.fetch(GROUP) == {"input": {0: 5, 1: 7}}
    with made.transaction():
        made.send_offsets_to_transaction(input_at(6), group())
    assert process(shared).groups.fetch(GROUP) == {"input": {0: 6, 1: 7}}
    check_settled(shared)


@BOTH
def test_offsets_of_an_aborted_transaction_are_dropped(publish: str) -> None:
    """Visible if and only if it commits (R45, R46, R49)."""
    shared = world()
    made = started(shared, publish)
    made.begin_transaction()
    made.produce("orders", "a")
    made.send_offsets_to_transaction(input_at(4), group())
    made.abort_transaction()
    assert process(shared).groups.fetch(GROUP) == {}
    check_settled(shared)


@BOTH
def test_offsets_of_a_stale_generation_are_refused_and_abort_helps(publish: str) -> None:
    """At the call, and again at the commit, since a newer member may have joined by then (R48)."""
    shared = world()
    made = started(shared, publish)
    with pytest.raises(IllegalGenerationError), made.transaction():
        made.send_offsets_to_transaction(input_at(4), group(7))
    made.begin_transaction()
    made.produce("orders", "a")
    made.send_offsets_to_transaction(input_at(4), group())
    generation = process(shared).groups.start(GROUP)
    # The new generation has aborted a transaction that had sent its offsets.
    refused = TransactionAbortableError if publish == "eager" else IllegalGenerationError
    with pytest.raises(refused):
        made.commit_transaction()
    made.abort_transaction()
    with made.transaction():
        made.produce("orders", "b")
        made.send_offsets_to_transaction(input_at(9), group(generation))
    assert values(process(shared), "orders") == ["b"]
    assert position(process(shared)) == 9
    check_settled(shared)
