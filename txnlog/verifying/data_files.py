"""The live files of a table: checked in the listing, or with `deep` by their bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txnlog.errors import CorruptLogError, ObjectNotFoundError
from txnlog.protocol.batches import decode_stats
from txnlog.protocol.metadata import StagedBatch
from txnlog.protocol.verification.data_files import RecordCheck, check_files
from txnlog.protocol.verification.findings import Finding, FindingKind, Findings
from txnlog.protocol.verification.headers import Batches, batch_finding
from txnlog.protocol.verification.replay import TableState
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.store.objects import ObjectStore

FILES_AT_ONCE = 256
THREADS = 4


def list_data_files(store: ObjectStore, table: str) -> tuple[Any, Any]:
    """Names and sizes of the files directly in a table's folder, as Arrow arrays."""
    start = len(table) + 1
    # A name that is not UTF-8 is no name of ours; its surrogates do not fit into Arrow's strings.
    listed = [item for item in store.list_files(table) if _is_utf8(item.path)]
    names = pa.array([item.path[start:] for item in listed], pa.string())
    return names, pa.array([item.size_bytes for item in listed], pa.int64())


def _is_utf8(path: str) -> bool:
    return path.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in path)


def check_listing(
    store: ObjectStore,
    table: str,
    state: TableState,
    findings: Findings,
    *,
    missing: FindingKind,
    batches: Batches | None = None,
    decided: Collection[StagedBatch] = (),
    since_ms: int | None = None,
) -> set[str]:
    """Check that every live file exists with its size; returns the paths of those that do not.

    The log must be read before the listing. `batches` are the headers of a topic, `decided` what
    will be published in it.
    """
    live = state.files
    if since_ms is not None:
        live = live.filter(pc.greater_equal(live.column("modification_time"), since_ms))
    live = live.select(["path", "size"])
    if decided:
        pairs = [{"path": one.path, "size": one.size_bytes} for one in decided]
        live = pa.concat_tables([live, pa.Table.from_pylist(pairs, schema=live.schema)])
    if not len(live):
        return set()
    names, sizes = list_data_files(store, table)
    return check_files(
        table,
        live,
        names=names,
        sizes=sizes,
        missing=missing,
        findings=findings,
        batches=batches,
    )


def read_deep(
    store: ObjectStore,
    table: str,
    batches: Batches,
    findings: Findings,
    *,
    since_ms: int | None = None,
    only: Collection[str] | None = None,
    reported: Collection[str] = (),
    tick: Callable[[int], None] = lambda count: None,
) -> int:
    """Read data files completely; returns their number. `only`: paths to read, below the root;
    `reported`: paths below the table that `check_listing` has found damaged.
    """
    done = 0
    with ThreadPoolExecutor(THREADS) as pool:
        for paths in _wanted(table, batches, since_ms, only, reported):
            for finding in pool.map(lambda at: _read_one(store, table, batches, at), paths):
                if finding is not None:
                    findings.add(finding)
            done += len(paths)
            tick(len(paths))
    return done


def _wanted(
    table: str,
    batches: Batches,
    since_ms: int | None,
    only: Collection[str] | None,
    reported: Collection[str],
) -> Iterator[list[int]]:
    """Places of the batches to read, up to FILES_AT_ONCE at a time."""
    some: list[int] = []
    for at in range(len(batches.partition)):
        if since_ms is not None and batches.modified_ms[at] < since_ms:
            continue
        path = batches.paths[at].as_py()
        if path in reported or (only is not None and f"{table}/{path}" not in only):
            continue
        some.append(at)
        if len(some) == FILES_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def _read_one(store: ObjectStore, table: str, batches: Batches, at: int) -> Finding | None:
    path = f"{table}/{batches.paths[at].as_py()}"
    found = damage_of(
        store,
        path,
        offsets=int(batches.last_offset[at] - batches.base_offset[at]) + 1,
        size_bytes=int(batches.size_bytes[at]),
        stats=batches.stats[at].as_py(),
    )
    if found is None:
        return None
    kind, what = found
    return batch_finding(kind, table, batches, at, what, is_lost=True)


def damage_of(
    store: ObjectStore, path: str, *, offsets: int, size_bytes: int, stats: str
) -> tuple[FindingKind, str] | None:
    """What is wrong with a data file that has this number of offsets; None: it is whole."""
    try:
        what = _records_wrong(store, path, offsets=offsets, size_bytes=size_bytes, stats=stats)
        kind = FindingKind.RECORDS_DISAGREE
    except ObjectNotFoundError:
        what, kind = "the log names it, and it does not exist", FindingKind.FILE_MISSING
    except CorruptLogError as error:
        what, kind = error.message, FindingKind.FILE_DAMAGED
    return (kind, what) if what else None


def _records_wrong(
    store: ObjectStore, path: str, *, offsets: int, size_bytes: int, stats: str
) -> str:
    try:
        statistics = decode_stats(stats)
    except (msgspec.MsgspecError, TypeError) as error:
        return f"its statistics cannot be read: {error}"
    check = RecordCheck(span=offsets, statistics=statistics)
    whole = FileSpan(path, num_records=statistics.num_records, size_bytes=size_bytes)
    for batch in read_batch_file(store, whole):
        times = batch.column("timestamp").drop_null().cast(pa.int64())
        check.add(batch.column("offset_delta").to_numpy(), times.to_numpy())
    return check.wrong


def read_row_files(
    store: ObjectStore,
    table: str,
    state: TableState,
    findings: Findings,
) -> int:
    """Decode the one-row files of a table; returns their number."""
    paths = state.files.column("path").to_pylist()
    for path in paths:
        try:
            rows = pq.read_table(pa.BufferReader(store.get(f"{table}/{path}"))).num_rows
            what = "" if rows == 1 else f"it has {rows} rows"
        except ObjectNotFoundError:
            # The check of the listing reports it.
            continue
        except CorruptLogError as error:
            what = error.message
        except (pa.ArrowException, OSError, ValueError) as error:
            what = f"it cannot be decoded: {error}"
        if what:
            kind = FindingKind.FILE_DAMAGED
            findings.add(Finding(kind=kind, table=table, file=f"{table}/{path}", what=what))
    return len(paths)
