"""Files removed from a table recently, with the time of removal. Only vacuum reads them."""

from __future__ import annotations

from txnlog.errors import RESTORE_ALL, LogGapError, ObjectNotFoundError
from txnlog.storage.delta import checkpoint_file, log_files
from txnlog.storage.delta.actions import Remove, decode_commit
from txnlog.storage.delta.checkpoint_reader import damaged, read_intact
from txnlog.storage.delta.log_files import LogFiles, checkpoint_path, commit_path
from txnlog.storage.store.errors import is_out_of_memory, out_of_memory
from txnlog.storage.store.objects import ObjectStore

_TRIES_MAX = 5


def read_tombstones(store: ObjectStore, table: str, *, version: int) -> dict[str, int]:
    """Path -> when it was removed, by the store's clock, as of `version` of the table or later.

    A checkpoint keeps a tombstone for as long as the table's delta.deletedFileRetentionDuration.
    Raises CorruptLogError, LogGapError, StorageError.
    """
    for attempt in range(_TRIES_MAX):
        try:
            return _read(store, log_files.list_log(store, table), version)
        except ObjectNotFoundError:
            # Clean-up removed a listed file before it was read: a newer checkpoint exists.
            store.back_off(attempt + 3)
    raise LogGapError(
        f"{store.url}/{table}/_delta_log: files that were listed could not be read in "
        f"{_TRIES_MAX} tries. {RESTORE_ALL}",
        file=f"{table}/_delta_log",
    )


def _read(store: ObjectStore, files: LogFiles, version: int) -> dict[str, int]:
    newest = files.newest_checkpoint
    found: dict[str, int] = {}
    if newest is not None:
        found = _of_checkpoint(store, files, newest)
    first = 0 if newest is None else newest + 1
    last = max([version, *files.commits])
    paths = [commit_path(files.table, number) for number in range(first, last + 1)]
    for path, data in zip(paths, store.get_many(paths), strict=True):
        for action in decode_commit(data, version=-1, source=path).actions:
            if isinstance(action, Remove):
                found[action.path] = _time_ms(store, action.deletion_timestamp)
    return found


def _of_checkpoint(store: ObjectStore, files: LogFiles, version: int) -> dict[str, int]:
    path = checkpoint_path(files.table, version)
    data = read_intact(store, files.table, version).data
    try:
        tombstones = checkpoint_file.read_tombstones(checkpoint_file.open_checkpoint(data))
        paths, times = (column.to_pylist() for column in tombstones.columns)
    except checkpoint_file.UNDECODABLE as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"{store.url}/{path}", path) from error
        raise damaged(store, path, str(error)) from error
    return {name: _time_ms(store, at_ms) for name, at_ms in zip(paths, times, strict=True)}


def _time_ms(store: ObjectStore, at_ms: int | None) -> int:
    """A tombstone without a time counts as new."""
    return store.now_ms() if at_ms is None else at_ms
