"""Tables of one row per id: the shards of the transaction log, and the consumer offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Generic, TypeVar

from msgspec import Struct

from txnlog.errors import (
    CorruptLogError,
    GroupAuthorizationError,
    LogGapError,
    StorePermissionError,
    TransactionalIdAuthorizationError,
    TxnLogError,
)
from txnlog.protocol.groups import GROUP_COLUMNS, Group, OffsetsCommit
from txnlog.protocol.metadata import ROW_COLUMNS, TransactionMetadata
from txnlog.protocol.shards import offsets_table, state_table
from txnlog.protocol.states import TransactionState
from txnlog.protocol.topics import marker_app_id
from txnlog.protocol.transitions import Done, Transition
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.storage.delta.actions import Action, Add, Adds, Commit, Remove, Txn
from txnlog.storage.delta.delta_log import DeltaLog, LogSettings, Outcome
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.schemas import (
    ROW_DATA_COLUMNS,
    create_actions,
    new_row_file,
    row_add,
)
from txnlog.text import shell_option

Row = TypeVar("Row", TransactionMetadata, Group)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A live row that this process cannot read: damaged, or written by a newer txnlog.

    `key` is its id, or its file's name if it has no id.
    """

    key: str
    path: str
    values: Mapping[str, str]
    error: CorruptLogError


class Rows(dict[str, Row]):
    """The live rows by id. Reading one that is `unreadable` raises its error: it costs its own id,
    and not all ids of the table (D57).
    """

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: dict[str, UnreadableRow] = {}
        self.active: dict[str, TransactionMetadata] = {}
        """Those with a transaction that is open or prepared: few, of all that were written."""

    def __setitem__(self, key: str, row: Row) -> None:
        dict.__setitem__(self, key, row)
        self.active.pop(key, None)
        if isinstance(row, TransactionMetadata) and not row.state.is_idle:
            self.active[key] = row

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.active.pop(key, None)

    def get(self, key: str, default: Row | None = None) -> Row | None:  # type: ignore[override]
        """The row of an id, None if it has none. Raises CorruptLogError."""
        if self.unreadable and key in self.unreadable:
            raise self.unreadable[key].error.replace()
        found: Row | None = dict.get(self, key, default)
        return found

    def __missing__(self, key: str) -> Row:
        if key in self.unreadable:
            raise self.unreadable[key].error.replace()
        raise KeyError(key)


Parsed = tuple[Commit, list[tuple[str, Row | UnreadableRow, Add]]]

_DELETE_COMMANDS: Mapping[str, tuple[str, str]] = {
    "transactional_id": ("transactions", "--transactional-id"),
    "group_id": ("groups", "--group"),
}


class RowView(Generic[Row]):
    """The live rows by id, and the table's `txn` versions per producer id."""

    def __init__(self, table: str, kind: type[Row], id_column: str) -> None:
        self._table = table
        self._kind: Any = kind
        self._id_column = id_column
        self.is_writing = False
        self.watch: Callable[[int, Sequence[Row | UnreadableRow]], object] | None = None
        """Called with the version of each commit that is applied, and the rows in it; a log that is
        opened again repeats some, and leaves some out."""
        self.reset()

    def reset(self) -> None:
        self.rows: Rows[Row] = Rows()
        self.txns = TxnMemory()
        self.markers = self.txns.markers
        self.sizes: dict[str, int] = {}
        self._key_of: dict[str, str] = {}

    def parse(self, commit: Commit) -> Parsed[Row]:
        """The commit, or a checkpoint in the form of one, and its rows.

        An unreadable row affects only its own id: it is kept apart. Writing one (`is_writing`)
        raises CorruptLogError.
        """
        adds: list[tuple[str, Row | UnreadableRow, Add]] = []
        for action in commit.actions:
            if isinstance(action, Add):
                adds.append(self._read(action, commit.version))
            elif isinstance(action, Adds):
                adds += [self._read(add, commit.version) for add in action]
        return commit, adds

    def apply(self, parsed: Parsed[Row]) -> None:
        """Apply what `parse` returned."""
        commit, adds = parsed
        for action in commit.actions:
            if isinstance(action, Remove):
                self._drop(action.path)
                self.sizes.pop(action.path, None)
            elif isinstance(action, Txn):
                self.txns.set_txn(action.app_id, action.version, action.last_updated)

        # A checkpoint is in hash order; iterating over the rows should not depend on that.
        for key, row, add in sorted(adds, key=itemgetter(0)):
            is_moved = self._key_of.get(add.path, key) != key
            if is_moved or self.rows.unreadable or isinstance(row, UnreadableRow):
                self._drop(add.path)
            if isinstance(row, UnreadableRow):
                if key in self.rows.unreadable:
                    # The same id in another file.
                    key, row = add.path, replace(row, key=add.path)
                self.rows.unreadable[key] = row
            else:
                self.rows[key] = row
            self.sizes[add.path] = add.size
            self._key_of[add.path] = key
        if self.watch is not None:
            self.watch(commit.version, [row for _, row, _ in adds])

    def _drop(self, path: str) -> None:
        key = self._key_of.pop(path, None)
        if key is None:
            return
        row, unreadable = dict.get(self.rows, key), self.rows.unreadable.get(key)
        if row is not None and row.path == path:
            del self.rows[key]
        if unreadable is not None and unreadable.path == path:
            del self.rows.unreadable[key]

    def _read(self, add: Add, version: int) -> tuple[str, Row | UnreadableRow, Add]:
        source = commit_path(self._table, version)
        try:
            row = self._kind.from_values(add.partition_values, path=add.path, source=source)
            row_id = getattr(row, self._id_column)
            if not isinstance(row_id, str) or not row_id:
                raise CorruptLogError(f"{source}: a row has no {self._id_column}.")
            return row_id, row, add
        except (CorruptLogError, RecursionError, AttributeError) as error:
            if self.is_writing:
                raise CorruptLogError(str(error), file=source) from error
            unreadable = self._unreadable(add, source, error)
            return unreadable.key, unreadable, add

    def _unreadable(self, add: Add, source: str, error: Exception) -> UnreadableRow:
        values = {k: v for k, v in add.partition_values.items() if isinstance(v, str)}
        # Without an id its key is the file's name, which is never taken for an id.
        key = values.get(self._id_column) or add.path
        command, option = _DELETE_COMMANDS[self._id_column]
        return UnreadableRow(
            key=key,
            path=add.path,
            values=values,
            error=CorruptLogError(
                f"{error} The other rows of table {self._table} can be read; only {key!r} (file "
                f"{add.path}) cannot. To delete it: "
                f"`txnlog {command} delete {shell_option(option, key)}`.",
                file=source,
                table=self._table,
                key=key,
                path=add.path,
            ),
        )


class RowCommit(Struct, Generic[Row], frozen=True, kw_only=True):
    """One commit to a row table, as data; `parameters` are for its commitInfo."""

    operation: str
    puts: tuple[Row, ...] = ()
    removes: tuple[Row | UnreadableRow, ...] = ()
    txns: Mapping[int, int] = {}
    parameters: Mapping[str, str] = {}


class RowLog(Generic[Row]):
    """Handle of one row table; see TransactionLog and OffsetsLog. The constructor does no I/O."""

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        *,
        kind: type[Row],
        columns: Mapping[str, str],
        id_column: str,
        refused: type[TxnLogError],
        settings: LogSettings | None = None,
    ) -> None:
        self.store = store
        self.path = path
        self.view: RowView[Row] = RowView(path, kind, id_column)
        self.log = DeltaLog(store, path, self.view, settings=settings)
        self._columns = columns
        self._refused = refused

    def refresh(self, *, sure: bool = False) -> None:
        """Tail to the head of the log; `sure` as in DeltaLog.refresh."""
        self._read(partial(self.log.refresh, sure=sure))

    def _read(self, read: Callable[[], None]) -> None:
        try:
            read()
        except StorePermissionError as error:
            raise self._denied("read", error) from error
        except CorruptLogError:
            # After a repair the log must be opened again.
            self.log.invalidate()
            raise

    def get_ready(self, *, check_head: bool = True) -> None:
        """See DeltaLog.get_ready; errors as of `refresh`."""
        self._read(partial(self.log.get_ready, check_head=check_head))

    def create(self, table_id: str) -> None:
        """Create the table if it does not exist."""

        def decide() -> list[Action]:
            if self.log.exists:
                return []
            return create_actions(
                table_id=table_id,
                data_columns=ROW_DATA_COLUMNS,
                partition_columns=self._columns,
                config={},
                created_ms=self.store.clock.now_ms(),
            )

        def commit(actions: list[Action]) -> Outcome | None:
            if not actions:
                return None
            try:
                return self.log.commit(actions, operation="CREATE TABLE")
            except StorePermissionError as error:
                raise self._denied("create", error) from error

        transact(self.log, decide, commit)

    def transact(
        self, decide: Callable[[RowView[Row], int], RowCommit[Row] | R]
    ) -> RowCommit[Row] | R:
        """Commit the RowCommit that `decide` returns; return anything else it returns.

        See txnlog.storage.delta.transact. `decide(view, version)`: `version` is the one its commit
        would have. Raises what it raises, an authorization error, CommitStateUnknownError.
        """

        def commit(decision: RowCommit[Row] | R) -> Outcome | None:
            if not isinstance(decision, RowCommit):
                return None
            return self._commit(decision)

        return transact(self.log, lambda: decide(self.view, self.log.version + 1), commit)

    def _commit(self, commit: RowCommit[Row]) -> Outcome:
        self.view.is_writing = True
        try:
            return self.log.commit(
                self._encode(commit),
                operation=commit.operation,
                parameters=dict(commit.parameters),
            )
        except StorePermissionError as error:
            raise self._denied("write", error) from error
        finally:
            self.view.is_writing = False

    def remove_unreadable(self, key: str, operation: str) -> bool:
        """Remove an unreadable row; False: no unreadable row has that id or file."""
        is_tried = False

        def decide(view: RowView[Row], _: int) -> RowCommit[Row] | bool:
            nonlocal is_tried
            row = view.rows.unreadable.get(key)
            if row is None:
                return is_tried
            is_tried = True
            return RowCommit(operation=operation, removes=(row,), parameters={"row": key})

        return self.transact(decide) is not False

    def _denied(self, what: str, error: StorePermissionError) -> TxnLogError:
        return self._refused(
            f"No permission to {what} {self.path}: {error.message}",
            **{**error.context, "table": self.path},
        )

    def _encode(self, commit: RowCommit[Row]) -> list[Action]:
        # Ages of markers and tombstones are measured by the store's clock.
        now_ms = self.store.now_ms()
        actions: list[Action] = [
            Txn(marker_app_id(producer_id), version, now_ms)
            for producer_id, version in commit.txns.items()
        ]
        for row in commit.puts:
            path = row.path
            size_bytes = self.view.sizes.get(path, 0)
            if not path:
                path, data = new_row_file(now_ms)
                size_bytes = len(data)
                self.store.put_new(f"{self.path}/{path}", data)
            actions.append(row_add(path, row.to_values(), size_bytes=size_bytes, now_ms=now_ms))
        actions += [Remove(row.path, now_ms, data_change=True) for row in commit.removes]
        return actions


class TransactionLog(RowLog[TransactionMetadata]):
    """One shard of the transaction log: the state row of each transactional.id in it."""

    def __init__(
        self, store: ObjectStore, shard: int, *, settings: LogSettings | None = None
    ) -> None:
        super().__init__(
            store,
            state_table(shard),
            kind=TransactionMetadata,
            columns=ROW_COLUMNS,
            id_column="transactional_id",
            refused=TransactionalIdAuthorizationError,
            settings=settings,
        )
        self.number = shard

    def row(self, transactional_id: str, *, sure: bool = False) -> TransactionMetadata | None:
        """The newest row; `sure` as in DeltaLog.refresh."""
        self.refresh(sure=sure)
        return self.view.rows.get(transactional_id)

    def transition(
        self,
        transactional_id: str,
        decide: Callable[[TransactionMetadata | None], Transition | Done],
        *,
        parameters: Callable[[], Mapping[str, str]] = dict,
    ) -> TransactionMetadata | None:
        """Decide on the newest row and persist the decision; returns the new row (None: removed).

        `parameters` is called when the commit is made; its result is added to its parameters.
        `decide` raises LogGapError where other tables show that the row is an old one: it may be,
        as this process was paused.
        """

        def decide_row(
            view: RowView[TransactionMetadata], version: int
        ) -> RowCommit[TransactionMetadata] | Done:
            decision = decide(view.rows.get(transactional_id))
            if isinstance(decision, Done):
                return decision
            row = decision.next
            is_dead = row.state is TransactionState.DEAD
            return RowCommit(
                operation=decision.operation,
                puts=() if is_dead else (row,),
                removes=(row,) if is_dead else (),
                parameters={**_parameters_of(row), **parameters()},
            )

        try:
            decision = self.transact(decide_row)
        except LogGapError:
            self.refresh(sure=True)
            decision = self.transact(decide_row)
        if isinstance(decision, Done):
            return decision.metadata
        return self.view.rows.get(transactional_id)


def _parameters_of(row: TransactionMetadata) -> dict[str, str]:
    """Commit parameters by which the table's history finds a transaction's commits."""
    return {
        "transactionalId": row.transactional_id,
        "producerId": str(row.producer_id),
        "txnEpoch": str(row.txn_epoch),
    }


class OffsetsLog(RowLog[Group]):
    """One shard of the consumer offsets: the row of each group in it."""

    def __init__(
        self, store: ObjectStore, shard: int, *, settings: LogSettings | None = None
    ) -> None:
        super().__init__(
            store,
            offsets_table(shard),
            kind=Group,
            columns=GROUP_COLUMNS,
            id_column="group_id",
            refused=GroupAuthorizationError,
            settings=settings,
        )
        self.number = shard

    def change(
        self, decide: Callable[[RowView[Group], int], OffsetsCommit | R]
    ) -> OffsetsCommit | R:
        """`transact` for decisions of txnlog.protocol.groups."""
        written: list[OffsetsCommit] = []

        def decide_rows(view: RowView[Group], version: int) -> RowCommit[Group] | R:
            decision = decide(view, version)
            if not isinstance(decision, OffsetsCommit):
                return decision
            written[:] = [decision]
            return RowCommit(operation=decision.operation, puts=decision.groups, txns=decision.txns)

        decision = self.transact(decide_rows)
        return written[0] if isinstance(decision, RowCommit) else decision
