"""Parts of a transaction in Delta tables of others: staged, checked, published, proved.

A part is decided with the transaction, and published beside the topics' markers: one commit to the
table's log, which other tools write, too, on the state that its put proves (D139). What it adds and
removes is in a part file, so any process can publish it. The log's clean-up is others', so the
version before is looked at, before COMPLETE.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from txnlog.coordinator.root import Root
from txnlog.errors import (
    CorruptLogError,
    ObjectNotFoundError,
    StorageError,
    TableChangedError,
    TxnLogError,
    UnknownTableError,
)
from txnlog.process.failpoint import reach
from txnlog.process.failures import Failures, caught
from txnlog.protocol.enlisted.compatibility import unpublishable
from txnlog.protocol.enlisted.features import FILE_RETENTION
from txnlog.protocol.enlisted.parts import Decided, Part, app_id_of, lost_part
from txnlog.protocol.enlisted.registry import EnlistedTable, find_enlisted
from txnlog.protocol.metadata import StagedTable, TransactionMetadata
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.enlisted_log import (
    AlreadyPublished,
    AlreadyRefused,
    EnlistedLog,
    PartFile,
    Publication,
    Published,
    TableReplaced,
    is_published,
)


class TableChange:
    """What a transaction does to one table: its files are staged, its part file is not yet."""

    def __init__(self, *, name: str, url: str, part: Part, staged_ms: int) -> None:
        self.name = name
        self.url = url
        self.part = part
        self._staged_ms = staged_ms
        self._file: PartFile | None = None

    def write(self, root: Root) -> None:
        """Write the part file, once: a repeated commit names the same one."""
        if self._file is None:
            log = root.table_log(self.url)
            self._file = log.put_part(self.part, cluster_id=root.cluster_id)

    @property
    def staged(self) -> StagedTable:
        """What PREPARE says of it, after `write`."""
        assert self._file is not None
        return StagedTable(
            name=self.name,
            url=self.url,
            table_id=self.part.definition.metadata.id,
            part=self._file.path,
            size_bytes=self._file.size_bytes,
            digest=self._file.digest,
            mode=self.part.mode,
            num_files=len(self.part.adds),
            num_records=self.part.num_records,
            staged_ms=self._staged_ms,
            staging="visible" if self.part.is_visible else "hidden",
        )


def parts_of(changes: Sequence[TableChange]) -> dict[str, Part]:
    """Parts by their part files, which are written: this process need not read them."""
    return {change.staged.part: change.part for change in changes}


def ready_calls(root: Root, changes: Sequence[TableChange]) -> list[Callable[[], Any]]:
    """Calls to be made before the decision, in any order: part files, and checks of the tables.

    They raise UnknownTableError, TableFeatureError, TableChangedError, TableConflictError: then
    nothing is decided.
    """

    def check(change: TableChange) -> None:
        # As of the last sweep: a table that was delisted since then gets this one.
        table = find_enlisted(root.enlisted(refresh=False), change.name)
        if table.url != change.url:
            raise UnknownTableError(
                f"{change.name!r} was enlisted with another table, {table.url}, since the data was "
                f"staged for {change.url}. Nothing was written. Write it again.",
                table=change.name,
                url=change.url,
            )
        if table.table_id != change.part.definition.metadata.id:
            raise UnknownTableError(
                f"{change.url} was dropped and made again since it was enlisted as "
                f"{change.name!r}. Nothing was written. Delist it, and enlist the new table.",
                table=change.name,
                url=change.url,
            )
        log = root.table_log(change.url)
        log.refresh()
        log.check(change.part)

    return [
        *(partial(change.write, root) for change in changes),
        *(partial(check, change) for change in changes),
    ]


def markers_in(root: Root, producer_id: int, tables: Sequence[StagedTable]) -> dict[str, int]:
    """Table, as last read -> the newest epoch of the producer id that has ended there; -1: none."""
    app_id = app_id_of(root.cluster_id, producer_id)
    return {one.url: root.table_log(one.url).state.txns.get(app_id, -1) for one in tables}


class TablePublications:
    """The publications of one decided transaction; those of several tables may be made together.

    `parts` are those that this process has staged, by their part files. At the end of its `with`
    block a log is forgotten if memory may show a publication that is not there.
    """

    def __init__(self, root: Root, row: TransactionMetadata, parts: Mapping[str, Part]) -> None:
        self._root = root
        self._row = row
        self._parts = parts
        self._unproved: dict[str, Callable[[], bool] | None] = {}

    def __enter__(self) -> TablePublications:
        return self

    def __exit__(self, *_: object) -> None:
        for url in self._unproved:
            self._root.forget_table(url)

    def publish(self, table: StagedTable, reading: Reading) -> bool:
        """Publish a part, if it is not; False: the row was read too long ago.

        Raises TableChangedError for a table that takes it no more, UnknownTableError for one that
        cannot be read: the transaction stays decided.
        """
        made = self._publish(table, reading)
        reach("table.after")
        return made is not None

    def decide(self, table: StagedTable, reading: Reading) -> str | None:
        """Let the table decide, if it has not: why it refused, "" if it has the change.

        None: the row was read too long ago. Raises StorageError: decide again.
        """
        made = self._publish(table, reading)
        reach("change.after")
        self.prove()
        if isinstance(made, TableReplaced):
            return f"another table is there, its id is {made.table_id}"
        if isinstance(made, (Published, AlreadyRefused)):
            return made.refused
        return None if made is None else ""

    def _publish(self, table: StagedTable, reading: Reading) -> Publication | None:
        root, row = self._root, self._row
        log = root.table_log(table.url)
        decided = decided_of(root, row, table)
        part, lost = self._parts.get(table.part), ""
        age_ms = root.store.now_ms() - table.staged_ms
        if table.staging == "visible" and age_ms > (log.kept_ms(FILE_RETENTION) or 0) / 2:
            # Others may have vacuumed its files since they were decided.
            part = None
        if part is None:
            log.refresh()
            table_id = log.state.definition.metadata.id
            if is_published(log.state, decided):
                return AlreadyPublished(log.state.version)
            if table_id != table.table_id:
                # Dropped, perhaps with the part file, and made again: settled.
                return TableReplaced(table_id)
            try:
                part = log.read_part(file_of(table))
                check_files(log, part, row.transactional_id)
            except (CorruptLogError, ObjectNotFoundError) as error:
                if table.mode != "merge":
                    raise
                # Not decided yet: it is given up, for good.
                lost = f"a file of the change is lost ({error.message})"
                part = part or lost_part(log.state)
        is_young = partial(reading.is_young, root.store.clock, root.settings.trust_ms)
        self._unproved[table.url] = None
        made = log.publish(part, decided, is_still_decided=is_young, lost=lost)
        if isinstance(made, Published):
            self._unproved[table.url] = partial(log.prove, made, part, decided)
        else:
            del self._unproved[table.url]
        return made

    @property
    def are_proved(self) -> bool:
        """Whether COMPLETE need not wait for `prove`."""
        return not self._unproved

    def prove(self) -> None:
        """Look whether each publication is in its log. A log that was cleaned up, or made again,
        since its head was read may have taken it into a version that nobody reads.

        Raises StorageError: publish again.
        """
        failures = Failures("Looking at the tables of a transaction", logging.DEBUG)
        parts = [(url, partial(_proved, url, prove)) for url, prove in self._unproved.items()]
        for url in failures.together(self._root.store.together, parts):
            del self._unproved[url]
        failures.check()


def _proved(url: str, prove: Callable[[], bool] | None) -> str:
    if prove is None or not prove():
        raise StorageError(
            f"{url}: the log of this table was cleaned up, or made again, while the part of the "
            "transaction was written there. It is decided, and the next attempt publishes it.",
            url=url,
        )
    return url


def file_of(table: StagedTable) -> PartFile:
    """The part file, as PREPARE names it."""
    return PartFile(table.part, table.size_bytes, table.digest)


def decided_of(root: Root, row: TransactionMetadata, table: StagedTable) -> Decided:
    """The name of a decided part in its table's log.

    It was decided after it was staged, by the clock of the root's store.
    """
    return Decided(
        app_id=app_id_of(root.cluster_id, row.producer_id),
        epoch=row.txn_epoch,
        decided_ms=table.staged_ms,
    )


def waits_for(root: Root, row: TransactionMetadata, table: StagedTable) -> str | None:
    """Why a decided part is not in its table; "" if nothing prevents it; None: it is there.

    One whose table was dropped and made again is settled. Reads the table.
    """
    try:
        log = root.table_log(table.url)
        log.refresh()
        definition = log.state.definition
        is_replaced = definition.metadata.id != table.table_id
        if is_replaced or is_published(log.state, decided_of(root, row, table)):
            return None
        part = log.read_part(file_of(table))
        check_files(log, part, row.transactional_id)
        return "" if part.mode == "merge" else unpublishable(part, definition) or ""
    except TxnLogError as error:
        return error.message


def check_same(log: EnlistedLog, table: EnlistedTable) -> None:
    """Raise UnknownTableError for a table that was made again since it was enlisted."""
    found = log.state.definition.metadata.id
    if found != table.table_id:
        raise UnknownTableError(
            f"{table.url} was dropped and made again: its id is {found}, and {table.table_id} was "
            "enlisted. Delist it, and enlist it again.",
            url=table.url,
        )


def republish(root: Root, transactional_id: str, decided: Decided, table: StagedTable) -> None:
    """Publish an append again that was lost after its transaction was completed.

    Raises TableChangedError for others, which would replace what was written since;
    CorruptLogError, ObjectNotFoundError if its files are gone.
    """
    log = root.open_table(table.url)
    log.refresh()
    part = log.read_part(file_of(table))
    if part.mode != "append":
        raise TableChangedError(
            f"{table.url}: what is lost of {transactional_id!r} is no append, but {part.mode} with "
            f"{table.num_records} records; published again it would replace what was written "
            "since. Write it again in a new transaction, if it is still right.",
            url=table.url,
        )
    check_files(log, part, transactional_id)
    made = log.publish(part, decided, is_still_decided=lambda: True)
    if isinstance(made, Published):
        _proved(table.url, partial(log.prove, made, part, decided))


def check_parts(root: Root, row: TransactionMetadata) -> None:
    """Before the decision of what a client has prepared, perhaps long ago: whether its files for
    tables are there. Raises CorruptLogError, ObjectNotFoundError.

    A table that was made again has no part to publish; one that cannot be read gets its part later.
    """

    def check(table: StagedTable) -> None:
        log = root.table_log(table.url)
        if not isinstance(caught(log.refresh), TxnLogError) and (
            log.state.definition.metadata.id == table.table_id
        ):
            check_files(log, log.read_part(file_of(table)), row.transactional_id)

    root.store.together([partial(check, table) for table in row.pending.tables])


def check_files(log: EnlistedLog, part: Part, transactional_id: str) -> None:
    """Raise CorruptLogError for a staged file that is gone: all readers of the table would fail."""

    def check(path: str) -> None:
        if not log.store.exists(path):
            raise CorruptLogError(
                f"{log.store.url}/{path}, which the transaction of {transactional_id!r} has "
                "staged, is missing: nothing was published there. Restore this file from a backup "
                "of the table.",
                file=f"{log.store.url}/{path}",
                fatal=False,
            )

    log.store.together([partial(check, path) for path in part.new_paths])
