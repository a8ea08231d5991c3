"""Broken variants of the protocol, each without one rule, for the machine to find.

They show that the machine finds such bugs. Each takes a MonkeyPatch and breaks one decision where
the coordinator or housekeeping calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import txnlog.coordinator.appending
import txnlog.coordinator.fencing
import txnlog.coordinator.finishing
import txnlog.coordinator.groups
import txnlog.coordinator.transactions
import txnlog.housekeeping.compaction.segments
import txnlog.housekeeping.vacuum
from tests.machine.focused import (
    Appending,
    Chaining,
    Compacting,
    Copying,
    Producing,
    Tidying,
    Vacuuming,
)
from tests.machine.machine import Clients
from txnlog.protocol import appends, compaction, groups, retention, tickets, topics, transitions
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.topics import TopicCommit
from txnlog.protocol.transitions import Transition
from txnlog.storage.delta import log_cleanup

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]
BROKEN: dict[str, tuple[type[Clients], Break]] = {}
"""The histories that meet it soonest, and what breaks the rule."""


def broken(histories: type[Clients]) -> Callable[[Break], Break]:
    def add(break_it: Break) -> Break:
        BROKEN[break_it.__name__] = (histories, break_it)
        return break_it

    return add


class Without:
    """A state that lacks some things."""

    def __init__(self, state: Any, **lacking: Any) -> None:
        self._state = state
        self.__dict__.update(lacking)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def changed(decision: Any, **changes: Any) -> Any:
    """A Transition to another row."""
    if not isinstance(decision, Transition):
        return decision
    return Transition(
        operation=decision.operation,
        previous=decision.previous,
        next=replace(decision.next, **changes),
    )


@broken(Producing)
def a_marker_is_written_twice(patch: Patch) -> None:
    """R5: a late helper publishes the manifest again."""

    def decide(state: Any, **asked: Any) -> Any:
        return appends.prepare_marker(Without(state, markers={}), **asked)

    patch.setattr(txnlog.coordinator.finishing, "prepare_marker", decide)


@broken(Appending)
def a_marker_fences_nothing(patch: Patch) -> None:
    """R4: an append lands after the marker of its transaction."""

    def decide(state: Any, *batches: Any, **asked: Any) -> Any:
        return appends.prepare_append(Without(state, markers={}), *batches, **asked)

    patch.setattr(txnlog.coordinator.appending, "prepare_append", decide)


@broken(Producing)
def the_first_topic_only_is_published(patch: Patch) -> None:
    """R36: a transaction over two topics is complete after the first marker."""
    write_marker = txnlog.coordinator.finishing._write_marker

    def write(log: Any, row: Any, *rest: Any) -> bool:
        topics = {batch.topic for batch in row.pending.batches}
        if topics and log.name != min(topics):
            return True
        return write_marker(log, row, *rest)

    patch.setattr(txnlog.coordinator.finishing, "_write_marker", write)


@broken(Producing)
def readers_ignore_open_transactions(patch: Patch) -> None:
    """R12: the last stable offset is the end."""
    stable = property(lambda state: state.end_offset)
    patch.setattr(topics.PartitionState, "last_stable_offset", stable)


@broken(Producing)
def aborted_batches_are_read(patch: Patch) -> None:
    """R16: an abort marks what it settles as committed."""

    def decide(state: Any, *, result: Any, **asked: Any) -> Any:
        decision = appends.prepare_marker(state, result=result, **asked)
        if not isinstance(decision, TopicCommit):
            return decision
        status = TransactionResult.COMMIT.status
        adds = tuple(replace(header, status=status) for header in decision.adds)
        return TopicCommit(operation=decision.operation, adds=adds, txns=decision.txns)

    patch.setattr(txnlog.coordinator.finishing, "prepare_marker", decide)


@broken(Appending)
def repeats_are_appended(patch: Patch) -> None:
    """R2: sequences are not checked."""
    patch.setattr(appends, "check_sequence", lambda *_, **__: None)


@broken(Producing)
def a_time_out_undoes_a_decision(patch: Patch) -> None:
    """R32, D5: PREPARE is no point of no return for a timeout."""

    def decide(row: Any, **asked: Any) -> Any:
        if row is not None and row.state is TransactionState.PREPARE_COMMIT:
            row = replace(row, state=TransactionState.ONGOING)
        return transitions.prepare_time_out(row, **asked)

    def sweep_row(self: Any, row: Any, seen: Any) -> int:
        if row.state.is_prepared or row.state is TransactionState.ONGOING:
            txnlog.coordinator.fencing.time_out(self._root, row, by="a broken sweeper")
        return 0

    patch.setattr(txnlog.coordinator.fencing, "prepare_time_out", decide)
    patch.setattr("txnlog.coordinator.sweeper.Sweeper._sweep_row", sweep_row)


@broken(Producing)
def an_end_keeps_the_epoch(patch: Patch) -> None:
    """D4: two transactions have one name, and the second one's marker is there already."""

    def decide(row: Any, **asked: Any) -> Any:
        decision = transitions.prepare_complete(row, **asked)
        return changed(decision, producer_epoch=getattr(row, "producer_epoch", 0))

    patch.setattr(txnlog.coordinator.finishing, "prepare_complete", decide)


@broken(Producing)
def a_new_owner_gets_the_same_epoch(patch: Patch) -> None:
    """R10, R26: init assigns the epoch of the former owner."""

    def decide(row: Any, **asked: Any) -> Any:
        decision = transitions.prepare_init(row, **asked)
        if row is None or not row.state.is_idle:
            return decision
        return changed(decision, producer_epoch=row.producer_epoch)

    patch.setattr(txnlog.coordinator.transactions, "prepare_init", decide)


@broken(Producing)
def an_old_run_may_decide(patch: Patch) -> None:
    """R31, R44: a run that ends a transaction need not own its id."""

    def decide(row: Any, *, holder: Any, **asked: Any) -> Any:
        if row is not None and row.state in (TransactionState.EMPTY, TransactionState.ONGOING):
            holder = replace(holder, producer_epoch=row.producer_epoch, run_id=row.owner.run_id)
            asked["txn_epoch"] = row.producer_epoch
        return transitions.prepare_end(row, holder=holder, **asked)

    patch.setattr(txnlog.coordinator.transactions, "prepare_end", decide)


@broken(Chaining)
def holders_are_not_fenced(patch: Patch) -> None:
    """D7: a new reader reads beside a run that may still commit."""
    patch.setattr(txnlog.coordinator.groups, "fence_holders", lambda *_, **__: None)


@broken(Copying)
def floors_are_not_checked(patch: Patch) -> None:
    """R46: a run that was fenced in its group decides its transaction."""
    patch.setattr(transitions, "check_tickets", lambda *_: None)


@broken(Copying)
def holders_are_not_met(patch: Patch) -> None:
    """R46: a reader takes positions that a decided transaction is about to move."""
    patch.setattr(txnlog.coordinator.groups, "holders_met", lambda *_: ())


@broken(Copying)
def generations_are_not_checked(patch: Patch) -> None:
    """R48: a member of an old generation commits its input in a transaction."""

    def check(group: Any, **_: Any) -> Any:
        return group or groups.Group(group_id="x")

    for module in (groups, tickets, txnlog.coordinator.groups):
        patch.setattr(module, "check_member", check)
    patch.setattr("txnlog.producing.producer_session.check_member", check)


@broken(Copying)
def a_start_bumps_nothing(patch: Patch) -> None:
    """D6: a new user of a group runs beside the former one."""

    def decide(group: Any, **asked: Any) -> Any:
        if group is None:
            return groups.prepare_generation(group, **asked)
        return groups.OffsetsCommit(operation="JOIN GROUP", groups=(group,))

    patch.setattr(txnlog.coordinator.groups, "prepare_generation", decide)


@broken(Copying)
def aborted_offsets_are_kept(patch: Patch) -> None:
    """R45: the offsets of an aborted transaction become the group's."""
    patch.setattr(TransactionMetadata, "moves", property(lambda row: row.pending.tickets))


@broken(Copying)
def commits_return_before_their_offsets_have_moved(patch: Patch) -> None:
    """R36: the next decision completes a transaction whose offsets are in no group."""
    publish_own = txnlog.coordinator.transactions.publish_own

    def publish(root: Any, row: Any, **asked: Any) -> bool:
        row = replace(row, pending=replace(row.pending, tickets=()))
        return publish_own(root, row, **asked)

    patch.setattr(txnlog.coordinator.transactions, "publish_own", publish)


@broken(Producing)
def a_topic_is_its_name(patch: Patch) -> None:
    """R71: a marker publishes in a topic that was created again."""

    def decide(state: Any, *, topic_id: str, batches: Any = (), **asked: Any) -> Any:
        mine = [replace(batch, topic_id=state.topic_id) for batch in batches]
        topic_id = state.topic_id
        return appends.prepare_marker(state, topic_id=topic_id, batches=mine, **asked)

    patch.setattr(txnlog.coordinator.finishing, "prepare_marker", decide)


@broken(Producing)
def a_decided_transaction_is_not_finished(patch: Patch) -> None:
    """R73: no process finishes what a dead one has decided."""
    patch.setattr("txnlog.coordinator.sweeper.Sweeper._sweep_row", lambda self, row, seen: 0)


@broken(Compacting)
def a_segment_lacks_its_last_record(patch: Patch) -> None:
    """R22: compaction loses a record."""
    records = txnlog.housekeeping.compaction.segments._records

    def without_last(*asked: Any) -> Any:
        found = list(records(*asked))
        yield from found[:-1]
        # A group may have lost all its records to aborts before.
        if found and found[-1].num_rows > 1:
            yield found[-1].slice(0, found[-1].num_rows - 1)

    patch.setattr(txnlog.housekeeping.compaction.segments, "_records", without_last)


@broken(Compacting)
def a_segment_replaces_any_files(patch: Patch) -> None:
    """R20: two compactors, or compaction and retention, swap the same batches."""

    def decide(state: Any, group: Any, *rest: Any, **asked: Any) -> Any:
        there = {**state.by_path, **{batch.path: batch for batch in group.inputs}}
        return compaction.prepare_compaction(Without(state, by_path=there), group, *rest, **asked)

    patch.setattr(txnlog.housekeeping.compaction.segments, "prepare_compaction", decide)


@broken(Vacuuming)
def vacuum_reads_no_manifests(patch: Patch) -> None:
    """R72: files of a decided or prepared transaction count as unreferenced."""
    nothing = txnlog.housekeeping.vacuum._Manifests((), (), is_whole=True)
    patch.setattr(txnlog.housekeeping.vacuum.Vacuum, "_manifests", lambda vacuum: nothing)


@broken(Vacuuming)
def files_of_any_age_are_committed(patch: Patch) -> None:
    """R72: a commit names files that vacuum has deleted."""
    for module in ("appending", "one_off", "staged_files", "transactions"):
        patch.setattr(f"txnlog.coordinator.{module}.check_ages", lambda *asked: None)


@broken(Tidying)
def ends_are_forgotten_with_the_last_file(patch: Patch) -> None:
    """R22: the offsets of removed files are assigned again by a process without a warm cache."""
    bounds = retention._bounds
    patch.setattr(
        retention,
        "_bounds",
        lambda *asked: {k: v for k, v in bounds(*asked).items() if not k.startswith("txnlog/end/")},
    )


@broken(Tidying)
def log_files_are_deleted_at_once(patch: Patch) -> None:
    """R70: clean-up frees slots that other processes still rely on."""
    for name in ("find_anchor", "find_expired"):
        find = getattr(log_cleanup, name)

        def of_any_age(files: Any, *, before_ms: int, find: Any = find) -> Any:
            return find(files, before_ms=2**62)

        patch.setattr(log_cleanup, name, of_any_age)
