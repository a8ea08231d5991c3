"""Offsets in transactions: visible if and only if they commit, waited for, never overwritten."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.world import (
    GROUP,
    MINUTE_MS,
    TOPICS,
    both,
    consumed,
    eager,
    faults,
    owned,
    position,
    prepared,
    process,
    staged,
    state_of,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.fencing import time_out
from txnlog.coordinator.finishing import publish
from txnlog.errors import (
    IllegalGenerationError,
    OffsetConflictError,
    ProducerFencedError,
    TxnLogError,
    UnstableOffsetCommitError,
)
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Manifest, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import prepare_add_partitions
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.readings import Reading
from txnlog.testing.faults import FaultsAt, PausedClock, SharedMemory
from txnlog.testing.invariants import check_cluster


def test_offsets_are_visible_if_and_only_if_the_transaction_commits() -> None:
    """On abort the consumer goes back to its committed position (R45, R49)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    row = cluster.coordinator.commit(row, both(cluster, "one"), offsets=[consumed(0, 10)])
    row = eager(cluster, row, "two", offsets=[consumed(10, 20)])
    cluster.coordinator.abort(row)
    assert position(cluster) == 10
    check_cluster(cluster, settled=True)


def test_offsets_sent_in_several_calls_are_all_committed() -> None:
    """Only the last call's offsets of an eager transaction would be committed (R45)."""
    cluster = process(world())
    row = eager(cluster, owned(cluster, "a"), "one")
    for number in (0, 1):
        piece = GroupOffsets(
            group_id=GROUP, generation=1, start={}, end={"input": {number: 10 + number}}
        )
        row = cluster.coordinator.add_partitions(row, offsets=[piece])
    cluster.coordinator.commit(row)
    assert cluster.groups.fetch(GROUP) == {"input": {0: 10, 1: 11}}


@pytest.mark.parametrize("number", range(8))
def test_transaction_prepared_after_a_reader_read_its_row_is_not_aborted(number: int) -> None:
    """Its client may have committed in an external database (R32, R46)."""
    shared = world()
    holder, reader = process(shared), process(shared)
    row, batches = owned(holder, "a"), both(holder, "one")
    holder.groups.tickets(row, [consumed(0, 10)])
    held: list[TransactionMetadata] = []

    def prepare() -> None:
        with suppress(TxnLogError):
            held.append(holder.coordinator.prepare(row, batches, offsets=[consumed(0, 10)]))

    reader.coordinator.describe("tx")
    reader.groups.describe(GROUP)
    faults(reader).plan = FaultsAt({}, interlude=prepare, interlude_at=number)
    with suppress(UnstableOffsetCommitError):
        reader.groups.fetch(GROUP)
    if held:
        assert state_of(process(shared)) is TransactionState.ONGOING
        holder.coordinator.commit(held[0], batches, offsets=[consumed(0, 10)])
        assert position(process(shared)) == 10


def test_reader_that_waits_lets_a_transaction_commit() -> None:
    """It has sent its offsets; fencing it now would abort it (D45)."""
    shared = world()
    holder, reader = process(shared), process(shared)
    row = eager(holder, owned(holder, "a"), "one", offsets=[consumed(0, 10)])

    def commit() -> None:
        holder.coordinator.commit(row)

    reader.coordinator.describe("tx")
    reader.groups.describe(GROUP)
    faults(reader).plan = FaultsAt({}, interlude=commit, interlude_at=9)
    assert reader.groups.fetch(GROUP, patience_ms=10_000) == {"input": {0: 10}}


def test_stale_generation_and_repeated_input_are_refused() -> None:
    """Two instances never both commit the same input (R47, R48)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    row = cluster.coordinator.commit(row, both(cluster, "one"), offsets=[consumed(0, 10)])
    with pytest.raises(OffsetConflictError):
        cluster.coordinator.commit(row, both(cluster, "two"), offsets=[consumed(5, 15)])
    assert process(shared).groups.start(GROUP) == 2
    with pytest.raises(IllegalGenerationError):
        cluster.coordinator.commit(row, both(cluster, "two"), offsets=[consumed(10, 15)])
    assert visible(cluster, "two") == (False, False)
    assert position(cluster) == 10


def test_late_helper_never_overwrites_a_newer_position() -> None:
    """A helper repeats step 3 of an old transaction after newer commits (R47)."""
    shared = world()
    old = prepared(shared)
    helper = process(shared)
    helper.groups.fetch(GROUP)
    cluster = process(shared)
    row = owned(cluster, "b")
    for number in range(1, 4):
        row = cluster.coordinator.commit(
            row, both(cluster, f"n{number}"), offsets=[consumed(10 * number, 10 * number + 10)]
        )
        publish(process(shared), old, reading=Reading.begin(shared.clock))
        assert position(process(shared)) == 10 * number + 10
    check_cluster(process(shared), settled=True)


def two_phase(cluster: Cluster, row: TransactionMetadata, name: str) -> TransactionMetadata:
    """An Ongoing row that holds its manifest, as prepare_transaction writes it (KIP-939)."""
    tickets = cluster.groups.tickets(row, [consumed(0, 10)])
    manifest = Manifest(batches=tuple(both(cluster, name)), tickets=tickets)
    held = cluster.shard(cluster.shard_of("tx")).transition(
        "tx",
        lambda now: prepare_add_partitions(
            now,
            holder=row.holder,
            manifest=manifest,
            now_ms=0,
        ),
    )
    assert held is not None
    return held


@pytest.mark.parametrize("commit", [True, False])
def test_two_phase_transaction_is_waited_for_and_ends_as_its_client_says(commit: bool) -> None:
    """No timeout and no reader ends it; a commit publishes its manifest (R32, R46)."""
    shared = world()
    cluster = process(shared)
    held = two_phase(cluster, owned(cluster, "a"), "mine")
    shared.clock.advance_ms(30 * MINUTE_MS)
    other = process(shared)
    time_out(other, held, by="a test")
    with pytest.raises(UnstableOffsetCommitError):
        other.groups.fetch(GROUP)
    assert state_of(other) is TransactionState.ONGOING
    if commit:
        cluster.coordinator.commit(held)
    else:
        cluster.coordinator.abort(held)
    assert visible(other, "mine") == (commit, commit)
    assert position(other) == (10 if commit else 0)
    check_cluster(other, settled=True)


def test_member_in_a_paused_guest_commits_nothing_of_a_generation_that_has_passed() -> None:
    """Its clocks were paused while others took over and the log was cleaned up (R34, R48)."""
    shared = world()
    clock = PausedClock(shared.clock)
    paused = process(shared, clock=clock)
    paused.groups.commit(GROUP, 1, {"input": {0: 10}})
    with clock.paused():
        other = process(shared)
        for _ in range(4):
            generation = other.groups.start(GROUP)
        other.groups.commit(GROUP, generation, {"input": {0: 20}})
        clean(other, shared, "__consumer_offsets-0")
    shared.clock.advance_ms(11_000)
    for _ in range(2):
        with pytest.raises(IllegalGenerationError):
            paused.groups.commit(GROUP, 1, {"input": {0: 11}})
    assert position(process(shared)) == 20
    check_cluster(process(shared), settled=True)


@pytest.mark.parametrize("topics", [("orders",), TOPICS])
def test_producer_in_a_paused_guest_is_fenced_by_its_successor(topics: tuple[str, ...]) -> None:
    """Its clocks were paused, and the slot after the row it has read is free again (R4, R34)."""
    shared = world()
    clock = PausedClock(shared.clock)
    paused = process(shared, clock=clock)
    row = owned(paused, "a")
    with clock.paused():
        other = process(shared)
        for name in ("b", "c", "d"):
            successor = owned(other, name)
        theirs = [staged(other, topic, "theirs") for topic in topics]
        other.coordinator.commit(successor, theirs)
        clean(other, shared, other.shard(other.shard_of("tx")).path)
    if "stock" not in topics:
        # Else the successor's marker, which its row lacks, shows it before a look is due.
        shared.clock.advance_ms(11_000)
    ours = [staged(paused, "stock", "ours")]
    for _ in range(2):
        with pytest.raises(ProducerFencedError):
            paused.coordinator.commit(row, ours)
    after = process(shared)
    assert visible(after, "ours") == (False, False)
    assert visible(after, "theirs") == tuple(topic in topics for topic in TOPICS)


def clean(cluster: Cluster, shared: SharedMemory, table: str) -> None:
    """Delete all but the newest commits of a log."""
    settings = cluster.settings
    shared.clock.advance_ms(2 * settings.log_retention_ms)
    create_checkpoint(cluster.store, table, trust_ms=settings.trust_ms)
    assert clean_up(cluster.store, table, retention_ms=settings.log_retention_ms)
