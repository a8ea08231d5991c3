"""Processes of the versions that wrote formats 1 and 2, as far as they commit offsets and decide.

They check protocols as those versions do, and the format only when they open a root.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from tests.coordinator.processes import PLAIN
from txnlog.protocol.group_metadata import CommittedOffset
from txnlog.protocol.metadata import Manifest, TransactionMetadata
from txnlog.protocol.shards import offsets_table, shard_number, state_table
from txnlog.protocol.states import TransactionState
from txnlog.protocol.upgrade import _PENDING, OldGroup
from txnlog.storage.delta.actions import Commit, Protocol
from txnlog.storage.delta.delta_log import DeltaLog
from txnlog.storage.delta.table_protocol import PROTOCOL, check_protocol
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.offsets_upgrade import OldOffsets, OldShard
from txnlog.storage.tables.row_log import RowCommit, RowLog, RowView, TransactionLog

SHARDS = 4


class _Row(OldGroup, frozen=True, kw_only=True):
    """Written with its pending entries."""

    def to_values(self) -> dict[str, str]:
        values = super().to_values()
        values.pop("tickets")
        return {**values, "pending": _PENDING.encode(self.pending)}


class _Log(DeltaLog):
    def _parse(self, commit: Commit) -> Any:
        for action in commit.actions:
            if isinstance(action, Protocol):
                check_protocol(action, PROTOCOL, self.path, table=self.path)
        return super()._parse(commit)


class OldProcess:
    """It has the root open: all logs are in memory."""

    def __init__(self, store: ObjectStore, root_format: str) -> None:
        self.store = store
        numbers = range(SHARDS)
        self._states = [self._opened(TransactionLog(store, n, settings=PLAIN)) for n in numbers]
        self._offsets: list[Any] = [self._opened(OldOffsets(store, settings=PLAIN))]
        if root_format == "2":
            self._offsets = [self._opened(OldShard(store, n, settings=PLAIN)) for n in numbers]

    def _opened(self, log: Any) -> Any:
        log.log = _Log(self.store, log.path, log.view, settings=PLAIN)
        log.refresh()
        return log

    def commit(self, group_id: str, offset: int) -> None:
        """OffsetCommit of partition 0 of `input`."""
        log: RowLog[Any] = self._offsets[shard_number(group_id, len(self._offsets))]

        def decide(view: RowView[Any], version: int) -> RowCommit[Any] | None:
            row = view.rows[group_id]
            known = CommittedOffset(offset, row.generation, version)
            if row.offsets["input"][0].offset == offset:
                return None
            offsets = {"input": {**row.offsets["input"], 0: known}}
            values = {**asdict(row), "offsets": offsets}
            return RowCommit(operation="OFFSET COMMIT", puts=(_Row(**values),))

        log.transact(decide)

    def decide(self, transactional_id: str) -> None:
        """PREPARE_COMMIT of a transaction that has entries in three groups."""
        log = self._states[shard_number(transactional_id, SHARDS)]
        groups = ",".join(f'"{transactional_id} {number}"' for number in range(3))

        def decide(
            view: RowView[TransactionMetadata], version: int
        ) -> RowCommit[TransactionMetadata] | None:
            row = view.rows[transactional_id]
            if row.state is TransactionState.PREPARE_COMMIT:
                return None
            decided = replace(
                row,
                state=TransactionState.PREPARE_COMMIT,
                txn_epoch=row.producer_epoch,
                pending=Manifest(unknown=f'{{"groups":[{groups}]}}'),
            )
            return RowCommit(operation="PREPARE_COMMIT", puts=(decided,))

        log.transact(decide)


def tables(root_format: str) -> list[str]:
    """All tables that only coordinators write."""
    states = [state_table(number) for number in range(SHARDS)]
    return ["__cluster", *states, *(offsets_table(number) for number in range(SHARDS))]
