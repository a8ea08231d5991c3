"""Which files of a table are unreferenced and old enough to delete (D11).

The order of the reads makes it safe (D40): list the files; commit to the table, and to every shard
if manifests can name its files, so that commits under way conflict and check the age of their
files; read the manifests; read the table; read its tombstones. One of these reads finds each file
that can still become live or be read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from txnlog.errors import ConfigError
from txnlog.protocol.decoding import INT64_MAX

VACUUM_AGE_MS_MIN = 3_600_000

BATCH_FILE = re.compile(r"part-[^/]+\.parquet\Z")
ROW_FILE = re.compile(r"row-[^/]+\.parquet\Z")

RETENTION_PROPERTY = "delta.deletedFileRetentionDuration"
FILE_RETENTION_MS_DEFAULT = 7 * 86_400_000
_UNITS_MS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_INTERVAL = re.compile(rf"(?i:interval\s+)?0*([0-9]+)\s+({'|'.join(_UNITS_MS)})s?\s*\Z")
_DIGITS_MAX = len(str(INT64_MAX))

EVEN_MS_MIN = 3_600_000
"""How long clocks must have run alike: the minimum retention."""
UNEVEN_MS_MAX = 300_000
"""Allowed clock difference, plus a thousandth of the time: clocks are slewed, and resolve seconds.

Far below half of the minimum vacuum age, the margin between staged files and vacuum.
"""
UNEVEN_MS_EVER = 900_000

NEVER_COMMITTED = "never committed"
REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a table's folder, as a listing shows it; `path` is relative to the table."""

    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Deletable:
    """What housekeeping can delete, and why; `path` is relative to the root."""

    path: str
    reason: str
    age_ms: int
    size_bytes: int


class ClockReading(msgspec.Struct, frozen=True):
    """A machine's boot clock and a store's clock, read at one moment."""

    boot_ms: int
    store_ms: int


def has_run_evenly(since: ClockReading, now: ClockReading) -> bool | None:
    """Whether ages by the store's clock can be trusted: it has run as the boot clock did, for
    EVEN_MS_MIN. None: the clocks differ; `since` is useless, and watching must start again.

    A boot clock that stops, in a paused guest or a copy of one, appears as a step.
    """
    passed_ms = now.boot_ms - since.boot_ms
    error_ms = abs(now.store_ms - since.store_ms - passed_ms)
    if passed_ms < 0 or error_ms > min(UNEVEN_MS_EVER, UNEVEN_MS_MAX + passed_ms // 1_000):
        return None
    return passed_ms >= EVEN_MS_MIN


def check_vacuum_age(age_ms: int) -> None:
    """Raises ConfigError below an hour, on which readers and writers rely."""
    if age_ms < VACUUM_AGE_MS_MIN:
        raise ConfigError(
            f"delta.deletedFileRetentionDuration={age_ms} ms is shorter than "
            f"{VACUUM_AGE_MS_MIN} ms: transactions and readers under way would lose their files. "
            "Keep files longer.",
            age_ms=age_ms,
        )


def vacuum_age_ms(wanted_ms: int, *, log_retention_ms: int, timeouts_ms: Iterable[int]) -> int:
    """The age at which files are deleted: `wanted_ms`, or more where needed.

    Every retained version must stay readable, and a transaction may take its whole time-out (a
    file older than half of this age is not committed).
    """
    return max(wanted_ms, log_retention_ms, 2 * max(timeouts_ms, default=0))


def find_old(
    files: Sequence[StoredFile], names: re.Pattern[str], *, now_ms: int, age_ms: int
) -> list[StoredFile]:
    """Old enough files whose names are txnlog's; vacuum ignores foreign files."""
    return [
        file for file in files if names.match(file.path) and now_ms - file.modified_ms >= age_ms
    ]


def find_deletable(
    old: Sequence[StoredFile],
    *,
    table: str,
    live: Collection[str],
    named: Collection[str],
    removed_ms: Mapping[str, int],
    now_ms: int,
    age_ms: int,
) -> list[Deletable]:
    """Old files that are not live, not in a manifest, and have no young tombstone."""
    deletable = []
    for file in old:
        if file.path in live or file.path in named:
            continue
        since_ms = removed_ms.get(file.path)
        if since_ms is not None and now_ms - since_ms < age_ms:
            continue
        reason = NEVER_COMMITTED if since_ms is None else REMOVED
        gone_ms = file.modified_ms if since_ms is None else since_ms
        deletable.append(
            Deletable(f"{table}/{file.path}", reason, now_ms - gone_ms, file.size_bytes)
        )
    return deletable


def file_retention_ms(configuration: Mapping[str, str]) -> int:
    """How long checkpoints keep tombstones: the table's property, or Delta's default."""
    found_ms = interval_ms(configuration.get(RETENTION_PROPERTY, ""))
    return FILE_RETENTION_MS_DEFAULT if found_ms is None else found_ms


def interval_ms(text: str) -> int | None:
    """The length of a Delta property such as "interval 7 days"; None for anything else.

    It is INT64_MAX at most, which is longer than any table exists: times are compared as int64.
    """
    found = _INTERVAL.match(text)
    if found is None:
        return None
    if len(found[1]) > _DIGITS_MAX:
        return INT64_MAX
    return min(INT64_MAX, int(found[1]) * _UNITS_MS[found[2]])


def keeps_for(configuration: Mapping[str, str], age_ms: int) -> bool:
    """Whether checkpoints keep tombstones for `age_ms`, as format_retention rounds it."""
    return 0 <= file_retention_ms(configuration) - age_ms < 1_000


def format_retention(retention_ms: int) -> str:
    """The property's value, rounded up to seconds."""
    return f"interval {-(-retention_ms // 1000)} seconds"
