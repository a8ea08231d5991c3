"""The consumer offsets of a root of format 1 or 2: closing them, and converting them.

See txnlog.protocol.upgrade for the steps, and for what happens when a process dies between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from txnlog.errors import GroupAuthorizationError
from txnlog.protocol.group_metadata import GROUP_COLUMNS, Group
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.shards import offsets_table, shard_number
from txnlog.protocol.topics import marker_app_id
from txnlog.protocol.txn_memory import (
    EXPIRED_PRODUCERS,
    EXPIRED_TRANSACTIONS,
    EXPIRING_TRANSACTIONS,
    NEVER_EXPIRES_MS,
    VACUUM_AGE,
    TxnMemory,
)
from txnlog.protocol.upgrade import (
    OLD_OFFSETS_TABLE,
    OldGroup,
    converted,
    converted_unreadable,
    in_shard,
    moved,
)
from txnlog.storage.delta.actions import Action, Metadata, Txn
from txnlog.storage.delta.delta_log import LogSettings, Outcome
from txnlog.storage.delta.table_protocol import CLOSED, SEALED
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.row_log import RowLog, UnreadableRow
from txnlog.storage.tables.schemas import (
    CONFIG_PREFIX,
    ROW_DATA_COLUMNS,
    metadata_action,
    new_row_file,
    row_add,
)

_SEALED_FOR = "sealed.for"
_TICKETS = "tickets"
Carriers = Sequence[TransactionMetadata]


class _Row(NamedTuple):
    """A row of a new shard: its file, and its columns."""

    path: str
    data: bytes
    values: Mapping[str, str]


class _OldLog(RowLog[Group]):
    """A table of rows of groups, of either form."""

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        *,
        settings: LogSettings | None = None,
        reads_sealed: bool = False,
    ) -> None:
        super().__init__(
            store,
            path,
            kind=OldGroup,
            columns=GROUP_COLUMNS,
            id_column="group_id",
            refused=GroupAuthorizationError,
            settings=settings,
            reads_sealed=reads_sealed,
        )


class OldShard(_OldLog):
    """A shard of the consumer offsets, before it is converted or after. No I/O when constructed."""

    def __init__(
        self, store: ObjectStore, number: int, *, settings: LogSettings | None = None
    ) -> None:
        super().__init__(store, offsets_table(number), settings=settings)
        self.number = number

    @property
    def is_converted(self) -> bool:
        """Whether it exists, with tickets."""
        metadata = self.log.metadata
        return metadata is not None and _TICKETS in metadata.partition_columns

    def convert(self, carriers: Carriers) -> None:
        """Write the new columns, and all rows again with them, in one commit.

        `carriers` are all rows with tickets, read when none was left to carry.
        """

        def commit(is_done: bool) -> Outcome | None:
            metadata = self.log.metadata
            if is_done or metadata is None:
                return None
            made = _metadata(metadata.id, metadata.created_time or 0)
            columns = replace(
                metadata,
                schema_string=made.schema_string,
                partition_columns=made.partition_columns,
            )
            actions: list[Action] = [columns]
            if self.log.protocol != CLOSED:
                # A copy by an upgrade to format 2.
                actions.insert(0, CLOSED)
            now_ms = self.store.now_ms()
            for path, values in self._rows(carriers).items():
                size_bytes = self.view.sizes[path]
                actions.append(row_add(path, values, size_bytes=size_bytes, now_ms=now_ms))
            return self.log.commit(actions, operation="UPGRADE")

        transact(self.log, lambda: self.is_converted, commit)

    def _rows(self, carriers: Carriers) -> dict[str, Mapping[str, str]]:
        rows = self.view.rows
        found: dict[str, Mapping[str, str]] = {
            group.path: converted(group, carriers).to_values()
            for group in rows.values()
            if isinstance(group, OldGroup)
        }
        unreadable = rows.unreadable.values()
        return found | {row.path: converted_unreadable(row.values) for row in unreadable}


class OldOffsets(_OldLog):
    """`__consumer_offsets` of format 1. The constructor does no I/O."""

    def __init__(self, store: ObjectStore, *, settings: LogSettings | None = None) -> None:
        super().__init__(store, OLD_OFFSETS_TABLE, settings=settings, reads_sealed=True)

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

    def copy(self, shard: OldShard, carriers: Carriers, *, cluster_id: str) -> None:
        """Write version 0 of a shard, unless it exists: all that the sealed log has for it.

        `carriers` as in OldShard.convert.
        """
        now_ms = self.store.now_ms()
        rows: list[_Row] = []

        def commit(exists: bool) -> Outcome | None:
            if exists:
                return None
            if not rows:
                rows.extend(self._rows(shard.number, carriers, now_ms))
                puts = [partial(self.store.put_new, f"{shard.path}/{r.path}", r.data) for r in rows]
                self.store.make_folder(f"{shard.path}/_delta_log")
                self.store.together(puts)
            found = self._created(f"{cluster_id}-offsets-{shard.number}")
            actions: list[Action] = [CLOSED, found, *_markers(self.view.txns)]
            actions += [
                row_add(row.path, row.values, size_bytes=len(row.data), now_ms=now_ms)
                for row in rows
            ]
            return shard.log.commit(actions, operation="UPGRADE")

        transact(shard.log, lambda: shard.log.exists, commit)

    def _created(self, table_id: str) -> Metadata:
        """The metaData of a shard, with the properties of other tools that the log has."""
        known = {} if self.log.metadata is None else self.log.metadata.configuration
        others = {name: text for name, text in known.items() if not name.startswith(CONFIG_PREFIX)}
        return replace(_metadata(table_id, self.store.clock.now_ms()), configuration=others)

    def _rows(self, number: int, carriers: Carriers, now_ms: int) -> list[_Row]:
        shards = self.sealed_for
        values: list[Mapping[str, str]] = [
            moved(converted(group, carriers), self.log.version).to_values()
            for group in in_shard(self.view.rows.values(), number, shards)
        ]
        # What cannot be read is copied as it is, for `txnlog groups delete`.
        values += [
            converted_unreadable(row.values)
            for row in self.view.rows.unreadable.values()
            if _shard_of_unreadable(row, shards) == number
        ]
        return [_Row(*new_row_file(now_ms), columns) for columns in values]


def _metadata(table_id: str, created_ms: int) -> Metadata:
    return metadata_action(table_id, ROW_DATA_COLUMNS, GROUP_COLUMNS, {}, created_ms)


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
