"""What `__cluster` says of the root: its shards, whether its files are synced, and its copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txnlog.protocol.copies import OF_A_COPY, Copy
from txnlog.protocol.verification.findings import Finding, FindingKind
from txnlog.protocol.verification.log_files import missing_commit
from txnlog.protocol.verification.replay import TableState
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.copy_log import read_whole_copy
from txnlog.storage.tables.schemas import CONFIG_PREFIX
from txnlog.verifying.log_reading import TableReading


def shards_with(state: TableState, wanted: int) -> set[str]:
    """Names of the shards of which `__cluster` says ANNOUNCED, or CREATED."""
    prefix = cluster_log.CREATED_PREFIX
    return {
        app_id[len(prefix) :]
        for app_id, (version, _) in state.txns.items()
        if app_id.startswith(prefix) and version == wanted
    }


def numbers(names: Collection[str], prefix: str) -> list[int]:
    """The numbers of the shards among names of tables."""
    found = (name[len(prefix) :] for name in names if name.startswith(prefix))
    return sorted(int(number) for number in found if number.isdecimal() and len(number) <= 4)


def undecided(config: Mapping[str, str], *, syncs: bool) -> list[Finding]:
    """What to say of a copy that is not whole, and of storage.fsync where a store `syncs`."""
    found = _unfinished(config)
    return found + _fsync(config.get(CONFIG_PREFIX + cluster_log.FSYNC)) if syncs else found


def _fsync(fsync: str | None) -> list[Finding]:
    what = {
        None: "storage.fsync is not recorded",
        cluster_log.SYNCING: "storage.fsync=true: files written before are still to be synced",
    }.get(fsync)
    kind = FindingKind.FSYNC_UNDECIDED
    return [] if what is None else [Finding(kind=kind, table=cluster_log.PATH, what=what)]


def copied_versions(store: ObjectStore, config: Mapping[str, str]) -> dict[str, int]:
    """Of a copy: each table, with its version when that was whole last. Raises StorageError."""
    copy = _copy_of(config)
    return {} if copy is None or not copy.file else read_whole_copy(store, copy.file).versions


def check_not_shorter(reading: TableReading, copied: int) -> None:
    """A table that only copies have written to has the version with which the last was whole."""
    if reading.operation in OF_A_COPY and reading.version < copied:
        what = f"the newest one is {reading.version}, and the copy was whole with this"
        reading.findings.add(missing_commit(reading.table, copied, what))


def _copy_of(config: Mapping[str, str]) -> Copy | None:
    return cluster_log.copy_of({k.removeprefix(CONFIG_PREFIX): v for k, v in config.items()})


def _unfinished(config: Mapping[str, str]) -> list[Finding]:
    copy = _copy_of(config)
    if copy is None or not copy.run:
        return []
    before = "the one before can be restored" if copy.file else "none was whole before"
    what = f"a copy of cluster {copy.origin} is not whole; {before}"
    return [Finding(kind=FindingKind.COPY_UNFINISHED, table=cluster_log.PATH, what=what)]


def count(config: Mapping[str, str], name: str, default: int) -> int:
    """A number of shards, the default for one that cannot be read."""
    text = config.get(CONFIG_PREFIX + name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else default
