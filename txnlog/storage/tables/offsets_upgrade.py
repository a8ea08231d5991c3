"""The one log of consumer offsets of a root of format 1: sealing it, and copying it into shards.

See txnlog.protocol.upgrade for the steps, and for what happens when a process dies between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from txnlog.errors import GroupAuthorizationError
from txnlog.protocol.group_metadata import GROUP_COLUMNS, Group
from txnlog.protocol.shards import shard_number
from txnlog.protocol.topics import marker_app_id
from txnlog.protocol.txn_memory import (
    EXPIRED_PRODUCERS,
    EXPIRED_TRANSACTIONS,
    EXPIRING_TRANSACTIONS,
    NEVER_EXPIRES_MS,
    VACUUM_AGE,
    TxnMemory,
)
from txnlog.protocol.upgrade import OLD_OFFSETS_TABLE, rows_of_shard
from txnlog.storage.delta.actions import Action, Metadata, Txn
from txnlog.storage.delta.delta_log import LogSettings, Outcome
from txnlog.storage.delta.table_protocol import PROTOCOL, SEALED
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.row_log import OffsetsLog, RowLog, UnreadableRow
from txnlog.storage.tables.schemas import (
    CONFIG_PREFIX,
    ROW_DATA_COLUMNS,
    create_actions,
    new_row_file,
    row_add,
)

_SEALED_FOR = "sealed.for"


class _Row(NamedTuple):
    """A row of a new shard: its file, and its columns."""

    path: str
    data: bytes
    values: Mapping[str, str]


class OldOffsets(RowLog[Group]):
    """`__consumer_offsets` of format 1. The constructor does no I/O."""

    def __init__(self, store: ObjectStore, *, settings: LogSettings | None = None) -> None:
        super().__init__(
            store,
            OLD_OFFSETS_TABLE,
            kind=Group,
            columns=GROUP_COLUMNS,
            id_column="group_id",
            refused=GroupAuthorizationError,
            settings=settings,
            reads_sealed=True,
        )

    @property
    def sealed_for(self) -> int:
        """The number of shards that the seal names; 0 without a seal."""
        return int(self.view.config.get(_SEALED_FOR, "0"))

    def seal(self, *, cluster_id: str, shards: int) -> None:
        """Close the log to all versions of txnlog; one that does not exist is created closed."""

        def commit(sealed_for: int) -> Outcome | None:
            if sealed_for:
                return None
            metadata = self.log.metadata
            if metadata is None:
                metadata = self._created(f"{cluster_id}-offsets")
            properties = {**metadata.configuration, CONFIG_PREFIX + _SEALED_FOR: str(shards)}
            actions: list[Action] = [SEALED, replace(metadata, configuration=properties)]
            return self.log.commit(actions, operation="SEAL")

        transact(self.log, lambda: self.sealed_for, commit)

    def copy(self, number: int, *, cluster_id: str) -> None:
        """Write version 0 of a shard, unless it exists: all that the sealed log has for it."""
        shard = OffsetsLog(self.store, number, settings=self.log.settings)
        now_ms = self.store.now_ms()
        rows: list[_Row] = []

        def commit(exists: bool) -> Outcome | None:
            if exists:
                return None
            if not rows:
                rows.extend(self._rows(number, now_ms))
                puts = [partial(self.store.put_new, f"{shard.path}/{r.path}", r.data) for r in rows]
                self.store.make_folder(f"{shard.path}/_delta_log")
                self.store.together(puts)
            found = self._created(f"{cluster_id}-offsets-{number}")
            actions: list[Action] = [PROTOCOL, found, *_markers(self.view.txns)]
            actions += [
                row_add(row.path, row.values, size_bytes=len(row.data), now_ms=now_ms)
                for row in rows
            ]
            return shard.log.commit(actions, operation="UPGRADE")

        transact(shard.log, lambda: shard.log.exists, commit)

    def _created(self, table_id: str) -> Metadata:
        """The metaData of a shard, with the properties of other tools that the log has."""
        made = create_actions(
            table_id=table_id,
            data_columns=ROW_DATA_COLUMNS,
            partition_columns=GROUP_COLUMNS,
            config={},
            created_ms=self.store.clock.now_ms(),
        )
        [metadata] = [action for action in made if isinstance(action, Metadata)]
        known = {} if self.log.metadata is None else self.log.metadata.configuration
        others = {name: text for name, text in known.items() if not name.startswith(CONFIG_PREFIX)}
        return replace(metadata, configuration=others)

    def _rows(self, number: int, now_ms: int) -> list[_Row]:
        shards = self.sealed_for
        readable = rows_of_shard(
            self.view.rows.values(), number, shards=shards, sealed_at=self.log.version
        )
        values = [group.to_values() for group in readable]
        # What cannot be read is copied as it is, for `txnlog groups delete`.
        values += [
            dict(row.values)
            for row in self.view.rows.unreadable.values()
            if _shard_of_unreadable(row, shards) == number
        ]
        return [_Row(*new_row_file(now_ms), columns) for columns in values]


def _shard_of_unreadable(row: UnreadableRow, shards: int) -> int:
    return shard_number(row.values.get("group_id") or "", shards)


def _markers(txns: TxnMemory) -> list[Action]:
    """The `txn` actions of the old log: every shard refuses what has ended (R4)."""
    others = (
        (EXPIRED_TRANSACTIONS, txns.transactions_expired_ms, None),
        (EXPIRED_PRODUCERS, txns.producers_expired_ms, None),
        (EXPIRING_TRANSACTIONS, txns.expiring_ms, txns.announced_ms),
        (VACUUM_AGE, txns.vacuum_age_ms if txns.vacuumed_ms >= 0 else -1, txns.vacuumed_ms),
    )
    found: list[Action] = [Txn(name, version, at) for name, version, at in others if version >= 0]
    for producer_id, epoch in txns.markers.items():
        at_ms = txns.markers.updated_ms[producer_id]
        written_ms = None if at_ms == NEVER_EXPIRES_MS else at_ms
        found.append(Txn(marker_app_id(producer_id), epoch, written_ms))
    return found
