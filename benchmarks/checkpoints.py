"""The next checkpoint of a table, as txnlog computes it and as delta-rs does.

Both get the checkpoint they made before and the same 100 commits. Each runs in a process of its
own, so that peaks of memory do not mix.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, at_most, reported
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from txnlog.protocol.batches import HEADER_COLUMNS, encode_stats
from txnlog.protocol.topics import marker_app_id
from txnlog.storage.delta.actions import Add, Commit, CommitInfo, Remove, Txn, encode_commit
from txnlog.storage.delta.checkpoint_computation import compute_checkpoint
from txnlog.storage.delta.checkpoint_file import SCHEMA
from txnlog.storage.tables.schemas import metadata_action
from txnlog.storage.tables.topic_log import DATA_COLUMNS

PROJECT = Path(__file__).resolve().parent.parent
COMMITS = 100
ADDS_PER_COMMIT = 3
NOW_MS = 1_700_000_000_000
SEED = 14
CHECKPOINT = f"{0:020}.checkpoint.parquet"
OURS, PEER = "txnlog", "delta-rs"
ROUNDS_MAX = 21
FILES_MAX = 1_000_000
"""Number of files in all rounds; the processor time is the median of the rounds."""
UNITS = {"processor time": "s", "size": "MB", "memory": "MB"}


def measure(scale: Scale) -> list[Figure]:
    """For each number of live files processor time, size and peak memory, and our share of them."""
    figures = []
    for files in scale.checkpointed_files:
        ours, theirs = (_in_own_process(peer, files) for peer in (OURS, PEER))
        for what, unit in UNITS.items():
            name = f"checkpoint of {files:,} files, {what}"
            against = f"{PEER}: {ours[what]:,.3g} to {theirs[what]:,.3g} {unit}"
            share = ours[what] / max(theirs[what], 1e-9)
            figures += [
                reported(f"{name}: {OURS}", ours[what], unit),
                reported(f"{name}: {PEER}", theirs[what], unit),
                at_most(f"{name}, {OURS} against {PEER}", share, "x", 1, against),
            ]
    return figures


def _in_own_process(peer: str, files: int) -> dict[str, float]:
    folder = new_folder()
    command = [sys.executable, "-m", "benchmarks.checkpoints", peer, str(files), folder]
    for step in ("prepare", "measure"):
        done = subprocess.run(
            [*command, step],
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def run(peer: str, files: int, folder: Path, step: str) -> None:
    """Make the first checkpoint, or make the second and print what that took."""
    bare, first = folder / "bare.parquet", folder / "first.parquet"
    if step == "prepare":
        pq.write_table(_live_files(files), bare)
        first.write_bytes(_next(peer, bare, folder, _commits(files, 1)))
        return
    # What is imported and started at the first use is no part of it.
    pq.write_table(_live_files(10), bare)
    _next(peer, bare, folder, _commits(10, 1))
    commits = _commits(files, 2)
    rounds = max(1, min(ROUNDS_MAX, FILES_MAX // files))
    before_mb = _peak_mb(reset=True)
    took_s = []
    for _ in range(rounds):
        started_s = time.process_time()
        made = _next(peer, first, folder, commits)
        took_s.append(time.process_time() - started_s)
    peak_mb = _peak_mb() - before_mb
    found = (statistics.median(took_s), len(made) / 1e6, peak_mb)
    print(json.dumps(dict(zip(UNITS, found, strict=True))))


def _next(peer: str, before: Path, folder: Path, commits: list[Commit]) -> bytes:
    data = before.read_bytes()
    if peer == OURS:
        return compute_checkpoint(data, commits, lambda: NOW_MS, name="c", note=b"")[0]
    return _by_delta_rs(data, commits, folder)


def _by_delta_rs(before: bytes, commits: list[Commit], folder: Path) -> bytes:
    """Of a log in a folder: the checkpoint before, and the commits as one."""
    from deltalake import DeltaTable

    log = folder / f"table-{random.randrange(1 << 60)}" / "_delta_log"
    log.mkdir(parents=True)
    (log / CHECKPOINT).write_bytes(before)
    (log / "_last_checkpoint").write_bytes(b'{"version":0,"size":0}')
    actions = [action for commit in commits for action in commit.actions]
    (log / f"{1:020}.json").write_bytes(encode_commit(CommitInfo(), actions))
    table = DeltaTable(str(log.parent))
    table.create_checkpoint()
    return (log / f"{1:020}.checkpoint.parquet").read_bytes()


# --- The table ------------------------------------------------------------------------------------


def _header(number: int) -> list[tuple[str, str]]:
    values = (number % 8, number * 100, number * 100 + 99, number % 500, 3, -1)
    return list(zip(HEADER_COLUMNS, (*map(str, values), "committed"), strict=True))


def _path(number: int) -> str:
    return f"part-{number % 8}-{random.Random(number).getrandbits(128):032x}.parquet"


def _stats(number: int) -> str:
    first_us = (NOW_MS + 37 * number) * 1_000
    return encode_stats(100, first_us, first_us + 1_234_567)


def _live_files(files: int) -> pa.Table:
    """A checkpoint of so many files, each with a header and statistics."""
    adds = []
    for first in range(0, files, 100_000):
        numbers = range(first, min(first + 100_000, files))
        columns = {
            "path": [_path(number) for number in numbers],
            "partitionValues": [_header(number) for number in numbers],
            "size": [20_000 + number % 1_000 for number in numbers],
            "modificationTime": [NOW_MS + 37 * number for number in numbers],
            "dataChange": [True] * len(numbers),
            "stats": [_stats(number) for number in numbers],
        }
        kinds = SCHEMA.field("add").type
        arrays = [pa.array(columns[field.name], field.type) for field in kinds]
        adds.append(pa.StructArray.from_arrays(arrays, fields=list(kinds)))
    live = [_only("add", some) for some in adds]
    header = dict.fromkeys(HEADER_COLUMNS, "long") | {"txn_status": "string"}
    metadata = metadata_action("id", DATA_COLUMNS, header, {}, 0)
    rows = {
        "protocol": {"minReaderVersion": 1, "minWriterVersion": 2},
        "metaData": {
            "id": metadata.id,
            "format": {"provider": "parquet", "options": []},
            "schemaString": metadata.schema_string,
            "partitionColumns": metadata.partition_columns,
            "configuration": [],
        },
    }
    said = [_only(kind, pa.array([row], SCHEMA.field(kind).type)) for kind, row in rows.items()]
    return pa.concat_tables([*said, *live])


def _only(kind: str, rows: pa.StructArray) -> pa.Table:
    columns = [rows if field.name == kind else pa.nulls(len(rows), field.type) for field in SCHEMA]
    return pa.table(columns, schema=SCHEMA)


def _commits(files: int, turn: int) -> list[Commit]:
    """A marker, new files and a removed one each."""
    commits = []
    for number in range(turn * COMMITS, (turn + 1) * COMMITS):
        news = range(files + number * ADDS_PER_COMMIT, files + (number + 1) * ADDS_PER_COMMIT)
        adds = [Add(_path(n), dict(_header(n)), 20_000, NOW_MS, True, _stats(n)) for n in news]
        gone = Remove(_path(number % files), NOW_MS - number, True)
        marker = Txn(marker_app_id(number), 0, NOW_MS)
        commits.append(Commit(number, CommitInfo(), (marker, *adds, gone)))
    return commits


def _peak_mb(*, reset: bool = False) -> float:
    """The largest memory of this process since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM")]
    return int(peak.split()[1]) / 1024


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
