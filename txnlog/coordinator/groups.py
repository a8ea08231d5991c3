"""Group offsets: generations, pending entries of open transactions, and settling them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from txnlog.coordinator.fencing import fence as fence_producer
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.root import Root, by_shard
from txnlog.coordinator.state_rows import describe
from txnlog.process.clock import OPERATION_ATTEMPTS_MAX, backoff_ms
from txnlog.protocol.groups import (
    Group,
    GroupOffsets,
    OffsetsCommit,
    PendingOffsets,
    Positions,
    UnstableOffsets,
    prepare_clear,
    prepare_fetch,
    prepare_generation,
    prepare_offset_commit,
    prepare_pending,
    prepare_reset,
    unstable,
)
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.storage.tables.row_log import OffsetsLog


class GroupCoordinator:
    """The group coordinator, in any process, for any group; each change is one compare-and-swap."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def start(self, group_id: str) -> int:
        """Bump the generation, which fences all former users of the group; returns the new one."""
        log = self._root.offsets_log(group_id)
        written = log.change(
            lambda view, version: prepare_generation(
                view.rows.get(group_id), group_id=group_id, now_ms=self._now_ms()
            )
        )
        return written.groups[0].generation

    def fetch(
        self,
        group_id: str,
        generation: int | None = None,
        *,
        partitions: Mapping[str, Collection[int]] | None = None,
        patience_ms: int = 0,
        fence: bool = True,
    ) -> dict[str, dict[int, int]]:
        """Committed positions (topic -> partition -> next offset), with nothing pending on them.

        Pending entries are settled first (R46): only those on `partitions`, if given, and only
        after their transactions had `patience_ms` to end; with `fence=False` never.
        Raises IllegalGenerationError for an old generation, UnstableOffsetCommitError while an
        open transaction has entries there.
        """
        clock = self._root.store.clock
        patient_until_ms = clock.boot_ms() + patience_ms
        attempt = rounds = 0
        while True:
            found = prepare_fetch(
                self.describe(group_id),
                group_id=group_id,
                generation=generation,
                partitions=partitions,
            )
            if not isinstance(found, UnstableOffsets):
                return found
            is_patient = clock.boot_ms() < patient_until_ms
            if not is_patient:
                rounds += 1
                if rounds > (OPERATION_ATTEMPTS_MAX if fence else 1):
                    raise unstable(group_id, found.entries)
            for entry in found.entries:
                by = f"a reader of group {group_id!r}"
                self.settle(group_id, entry, by=by, fence=fence and not is_patient)
            clock.sleep_ms(max(1.0, backoff_ms(attempt)) if is_patient else backoff_ms(attempt))
            attempt += 1

    def describe(self, group_id: str) -> Group | None:
        """The newest row of a group."""
        log = self._root.find_offsets_log(group_id)
        if log is None:
            return None
        log.refresh()
        return log.view.rows.get(group_id)

    def commit(
        self,
        group_id: str,
        generation: int,
        positions: Positions,
        *,
        member_id: str = "",
        metadata: Mapping[str, Mapping[int, str]] | None = None,
    ) -> None:
        """OffsetCommit of a consumer, outside of transactions (R48).

        Raises IllegalGenerationError, UnknownMemberIdError.
        """
        self._root.offsets_log(group_id).change(
            lambda view, version: prepare_offset_commit(
                view.rows.get(group_id),
                group_id=group_id,
                generation=generation,
                member_id=member_id,
                offsets=positions,
                metadata=metadata or {},
                version=version,
                now_ms=self._now_ms(),
            )
        )

    def add_pending(self, row: TransactionMetadata, requests: Sequence[GroupOffsets]) -> None:
        """Step 0 (TxnOffsetCommit): an entry in each group's row, before PREPARE.

        One commit in each shard that has groups of it, side by side. If one is refused, the entries
        in others stay: of an undecided transaction, as after a crash here.
        The offsets of an Ongoing transaction may come in several calls; in any other state one call
        has all of them and replaces those of a failed attempt.
        Raises IllegalGenerationError, UnknownMemberIdError, OffsetConflictError,
        ProducerFencedError.
        """
        left = by_shard(self._root, requests, lambda request: request.group_id)
        entries: tuple[PendingOffsets, ...] = ()
        for attempt in range(OPERATION_ATTEMPTS_MAX):
            written = self._add_pending_in(row, left)
            left = [one for one, refused in zip(left, written, strict=True) if refused]
            if not left:
                return
            entries = tuple(entry for refused in written for entry in refused)
            for refused, (_, some) in zip(filter(None, written), left, strict=True):
                for entry in refused:
                    for request in some:
                        self.settle(request.group_id, entry, by=f"{row.transactional_id!r}")
            self._root.store.clock.sleep_ms(backoff_ms(attempt))
        raise unstable(left[0][1][0].group_id, entries)

    def try_pending(
        self, row: TransactionMetadata, requests: Sequence[GroupOffsets]
    ) -> tuple[PendingOffsets, ...]:
        """`add_pending`, once; returns the entries of other transactions that are in its way.

        Uses no other logs than the groups'.
        """
        shards = by_shard(self._root, requests, lambda request: request.group_id)
        return tuple(entry for refused in self._add_pending_in(row, shards) for entry in refused)

    def _add_pending_in(
        self,
        row: TransactionMetadata,
        shards: Sequence[tuple[OffsetsLog, Sequence[GroupOffsets]]],
    ) -> list[tuple[PendingOffsets, ...]]:
        """Step 0 in shards, together; for each the entries of others that are in its way."""

        def add(log: OffsetsLog, requests: Sequence[GroupOffsets]) -> tuple[PendingOffsets, ...]:
            written = log.change(
                lambda view, version: prepare_pending(
                    view.rows,
                    view.markers,
                    requests,
                    holder=row.holder,
                    version=version,
                    now_ms=self._now_ms(),
                    merge=row.state is TransactionState.ONGOING,
                )
            )
            return written.entries if isinstance(written, UnstableOffsets) else ()

        return self._root.store.together([partial(add, log, some) for log, some in shards])

    def reset(self, group_id: str, positions: Positions) -> int:
        """Reset offsets as an operator: new positions under a new generation, which is returned."""
        log = self._root.offsets_log(group_id)
        for attempt in range(OPERATION_ATTEMPTS_MAX):
            written = log.change(
                lambda view, version: prepare_reset(
                    view.rows.get(group_id),
                    group_id=group_id,
                    positions=positions,
                    version=version,
                    now_ms=self._now_ms(),
                )
            )
            if isinstance(written, OffsetsCommit):
                return written.groups[0].generation
            for entry in written.entries:
                self.settle(group_id, entry, by="an offset reset")
            self._root.store.clock.sleep_ms(backoff_ms(attempt))
        raise unstable(group_id, ())

    def settle(self, group_id: str, entry: PendingOffsets, *, by: str, fence: bool = True) -> None:
        """Resolve a pending entry of another transaction.

        A decided transaction is finished, a prepared two-phase one is waited for
        (UnstableOffsetCommitError). Otherwise the producer is fenced first, and then the entry is
        removed. With `fence=False` a transaction that may still be decided, and its entry, stay.
        """
        row = describe(self._root, entry.transactional_id)
        if row is not None and row.producer_id == entry.producer_id:
            if row.state.is_prepared and row.txn_epoch >= entry.txn_epoch:
                finish(self._root, row)
                return None
            two_phase = row.state is TransactionState.ONGOING and row.pending.prepared_by_client
            if row.producer_epoch <= entry.txn_epoch and not fence:
                return None
            if two_phase and row.txn_epoch == entry.txn_epoch:
                raise unstable(group_id, (entry,))
            if row.producer_epoch <= entry.txn_epoch:
                fence_producer(
                    self._root,
                    entry.transactional_id,
                    above_epoch=entry.txn_epoch,
                    by=by,
                    reason=f"its offsets were pending in group {group_id!r}",
                    spare_two_phase=True,
                )
                # If it was decided meanwhile, the next call finishes it.
                return self.settle(group_id, entry, by=by)
        self._root.offsets_log(group_id).change(
            lambda view, version: prepare_clear(
                view.rows.get(group_id), entry, now_ms=self._now_ms()
            )
        )
        return None

    def _now_ms(self) -> int:
        return self._root.store.clock.now_ms()
