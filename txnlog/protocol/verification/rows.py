"""Checks of the tables of rows: the shards of the transaction log, and the consumer offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from txnlog.errors import CorruptLogError
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import StagedTable, TransactionMetadata
from txnlog.protocol.shards import offsets_table_of, shard_number
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.protocol.verification.findings import Finding, FindingKind, Findings
from txnlog.protocol.verification.replay import File, TableState, file_of_row

Row = TypeVar("Row", TransactionMetadata, Group)

ROWS_AT_ONCE = 10_000


@dataclass(slots=True)
class RowFacts(Generic[Row]):
    """Rows for the checks across tables. `is_complete`: the whole table could be read."""

    rows: dict[str, Row] = field(default_factory=dict)
    txns: TxnMemory = field(default_factory=TxnMemory)
    is_complete: bool = True


class DecidedPart(NamedTuple):
    """What a decided transaction does to a Delta table of others."""

    transactional_id: str
    producer_id: int
    epoch: int
    table: StagedTable


class RowHistory:
    """Rows in the order in which the retained commits wrote them: epochs only increase.

    `decided` has each transaction with a decision among them, by producer id, topic and topic id
    (for consumer offsets their table's name and ""; there are `offsets_shards` of them): the newest
    epoch, and the store's time of the decision. `earlier` has the one before it, which has ended.
    """

    def __init__(self, table: str, findings: Findings, *, offsets_shards: int = 1) -> None:
        self._table = table
        self._offsets_shards = offsets_shards
        self._findings = findings
        self._newest: dict[str, tuple[int, int, int]] = {}
        self.decided: dict[tuple[int, str, str], tuple[int, int]] = {}
        self.earlier: dict[tuple[int, str, str], tuple[int, int]] = {}
        self._parts: dict[tuple[str, int, int], tuple[StagedTable, ...]] = {}
        self._prepared: dict[str, tuple[str, int, int]] = {}

    def completed_parts(self) -> list[DecidedPart]:
        """What transactions have published in Delta tables of others, but for those under way."""
        under_way = set(self._prepared.values())
        return [
            DecidedPart(*key, table)
            for key, tables in self._parts.items()
            if key not in under_way
            for table in tables
        ]

    def observe(self, file: File, version: int) -> None:
        """Add a row that a commit wrote, or one of a checkpoint."""
        if "group_id" in file.values:
            self._observe_group(file, version)
            return
        row = _read(TransactionMetadata, file)
        if row is None:
            return
        now = row.producer_id, row.producer_epoch, row.txn_epoch
        before = self._newest.get(row.transactional_id, now)
        self._newest[row.transactional_id] = now
        # Another producer id: the transactional.id expired and was created again.
        if before[0] == now[0] and (now[1] < before[1] or now[2] < before[2]):
            self._add(row.transactional_id, version, f"its epochs {now[1:]} follow {before[1:]}")
        key = row.transactional_id, row.producer_id, row.txn_epoch
        self._prepared.pop(row.transactional_id, None)
        if row.tables:
            self._parts[key] = row.tables
            self._prepared[row.transactional_id] = key
        if row.state.is_prepared:
            groups = {offsets_table_of(one.group_id, self._offsets_shards) for one in row.moves}
            for topic, topic_id in (*row.topic_ids, *((table, "") for table in sorted(groups))):
                decided = row.producer_id, topic, topic_id
                known = self.decided.get(decided)
                if known is not None and known[0] < row.txn_epoch:
                    self.earlier[decided] = known
                self.decided[decided] = row.txn_epoch, file.modification_time

    def _observe_group(self, file: File, version: int) -> None:
        group = _read(Group, file)
        if group is None:
            return
        before = self._newest.get(group.group_id, (0, 0, 0))
        self._newest[group.group_id] = group.generation, 0, 0
        if group.generation < before[0]:
            what = f"its generation {group.generation} follows {before[0]}"
            self._add(group.group_id, version, what)

    def _add(self, subject: str, version: int, what: str) -> None:
        self._findings.add(
            Finding(
                kind=FindingKind.ROW_WENT_BACK,
                table=self._table,
                version=version,
                subject=subject,
                what=what,
            )
        )


def read_rows(
    table: str, state: TableState, kind: type[Row], id_column: str, findings: Findings
) -> RowFacts[Row]:
    """The readable rows; an unreadable row, or a second row of an id, is a finding."""
    facts: RowFacts[Row] = RowFacts(txns=state.memory())
    for file in live_files(state):
        path = f"{table}/{file.path}"
        try:
            row = _from_values(kind, file)
        except CorruptLogError as error:
            subject = str(file.values.get(id_column))
            findings.add(
                Finding(
                    kind=FindingKind.ROW_UNREADABLE,
                    table=table,
                    file=path,
                    subject=subject,
                    what=error.message,
                )
            )
            continue
        name = str(getattr(row, id_column))
        if name in facts.rows:
            findings.add(
                Finding(
                    kind=FindingKind.ROW_REPEATED,
                    table=table,
                    file=path,
                    subject=name,
                    what=f"there is also {facts.rows[name].path}",
                )
            )
            continue
        facts.rows[name] = row
    return facts


def check_shard(
    table: str,
    number: int,
    shards: int,
    facts: RowFacts[Row],
    findings: Findings,
) -> None:
    """Every id, or group, is in the shard of its hash."""
    for name in facts.rows:
        wanted = shard_number(name, shards)
        if wanted != number:
            findings.add(
                Finding(
                    kind=FindingKind.ROW_IN_WRONG_SHARD,
                    table=table,
                    subject=name,
                    what=f"it is in shard {number}, its hash says {wanted}",
                )
            )


def live_files(state: TableState) -> list[File]:
    """The files of a row table, in the order of their paths."""
    found = []
    files: pa.Table = state.files.sort_by("path")
    for batch in files.to_batches(max_chunksize=ROWS_AT_ONCE):
        found += [file_of_row(row) for row in batch.to_pylist()]
    return found


def _read(kind: type[Row], file: File) -> Row | None:
    """None if the row cannot be read; only unreadable live rows are reported."""
    try:
        return _from_values(kind, file)
    except CorruptLogError:
        return None


def _from_values(kind: type[Row], file: File) -> Row:
    values: Mapping[str, str] = {
        name: value for name, value in file.values.items() if value is not None
    }
    try:
        return kind.from_values(values, path=file.path, source=file.path)
    except (RecursionError, AttributeError) as error:
        raise CorruptLogError(f"{file.path}: {error}", file=file.path) from error
