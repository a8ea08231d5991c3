"""Which files of a table are unreferenced and old enough to delete (D11).

The order of the looks is what makes it safe: list the files; commit to the table, and to every
shard where its files stand in manifests, so that commits under way conflict and look at the age of
what they name; read the manifests; then read the table, and last its tombstones. Each file that
somebody may still make live, or still read, is met by one of these looks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from txnlog.errors import ConfigError

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
_INTERVAL = re.compile(rf"(?i:interval\s+)?(\d+)\s+({'|'.join(_UNITS_MS)})s?\s*\Z")

EVEN_MS_MIN = 3_600_000
"""How long clocks must have run alike: the shortest retention there may be."""
UNEVEN_MS_MAX = 300_000
"""What clocks may differ by, beside a thousandth of the time: they are slewed, and resolve seconds.

Far below half of the shortest age, which commits of staged files keep from vacuum.
"""
UNEVEN_MS_EVER = 900_000

NEVER_COMMITTED = "no commit names it"
REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a table's folder, as a listing shows it; `path` is relative to the table."""

    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Deletable:
    """What is to be deleted, and why; `path` is relative to the root."""

    path: str
    reason: str
    age_ms: int
    size_bytes: int


class ClockReading(msgspec.Struct, frozen=True):
    """What the boot clock of a machine and the clock of a store showed at one moment."""

    boot_ms: int
    store_ms: int


def has_run_evenly(since: ClockReading, now: ClockReading) -> bool | None:
    """Whether ages by the store's clock may be believed: it has run as the boot clock did, for
    EVEN_MS_MIN. None: it has not, and what was read before is of no use any more.

    A boot clock that stood still, in a paused guest or a copy of one, looks like a step.
    """
    passed_ms = now.boot_ms - since.boot_ms
    error_ms = abs(now.store_ms - since.store_ms - passed_ms)
    if passed_ms < 0 or error_ms > min(UNEVEN_MS_EVER, UNEVEN_MS_MAX + passed_ms // 1_000):
        return None
    return passed_ms >= EVEN_MS_MIN


def check_vacuum_age(age_ms: int) -> None:
    """Raises ConfigError below the hour that readers and writers everywhere count on."""
    if age_ms < VACUUM_AGE_MS_MIN:
        raise ConfigError(
            f"delta.deletedFileRetentionDuration={age_ms} ms is shorter than "
            f"{VACUUM_AGE_MS_MIN} ms: transactions and readers under way would lose their files. "
            "Keep files longer.",
            age_ms=age_ms,
        )


def vacuum_age_ms(wanted_ms: int, *, log_retention_ms: int, timeouts_ms: Iterable[int]) -> int:
    """How old a file must be: as asked for, but every version that is kept stays readable, and a
    transaction may take its whole time-out (a file older than half of this is not committed).
    """
    return max(wanted_ms, log_retention_ms, 2 * max(timeouts_ms, default=0))


def find_old(
    files: Sequence[StoredFile], names: re.Pattern[str], *, now_ms: int, age_ms: int
) -> list[StoredFile]:
    """Files of ours that are old enough; whatever else lies there is none of vacuum's business."""
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
    """Of the old files those that neither table nor manifests name, nor a young tombstone."""
    doomed = []
    for file in old:
        if file.path in live or file.path in named:
            continue
        since_ms = removed_ms.get(file.path)
        if since_ms is not None and now_ms - since_ms < age_ms:
            continue
        reason = NEVER_COMMITTED if since_ms is None else REMOVED
        gone_ms = file.modified_ms if since_ms is None else since_ms
        doomed.append(Deletable(f"{table}/{file.path}", reason, now_ms - gone_ms, file.size_bytes))
    return doomed


def file_retention_ms(configuration: Mapping[str, str]) -> int:
    """How long checkpoints keep tombstones, as the table's property says, or Delta's default."""
    found_ms = interval_ms(configuration.get(RETENTION_PROPERTY, ""))
    return FILE_RETENTION_MS_DEFAULT if found_ms is None else found_ms


def interval_ms(text: str) -> int | None:
    """The length of a Delta property such as "interval 7 days"; None for anything else."""
    found = _INTERVAL.match(text)
    return None if found is None else int(found[1]) * _UNITS_MS[found[2]]


def keeps_for(configuration: Mapping[str, str], age_ms: int) -> bool:
    """Whether checkpoints keep tombstones for so long and no longer, as format_retention rounds."""
    return 0 <= file_retention_ms(configuration) - age_ms < 1_000


def format_retention(retention_ms: int) -> str:
    """The property's value for so long, or up to a second longer."""
    return f"interval {-(-retention_ms // 1000)} seconds"
