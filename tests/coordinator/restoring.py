"""Restoring some tables of a root from a backup, and what retention writes."""

from __future__ import annotations

from txnlog.protocol.topics import TopicCommit, TopicState, end_app_id
from txnlog.testing.faults import SharedMemory

Backup = dict[str, bytes]


def backup(shared: SharedMemory, prefix: str) -> Backup:
    """The files of the tables whose names begin so."""
    store = shared.open()
    paths = [file.path for file in store.list("") if file.path.startswith(prefix)]
    return dict(zip(paths, store.get_many(paths), strict=True))


def restore(shared: SharedMemory, prefix: str, files: Backup) -> None:
    """Put tables back, whole."""
    store = shared.open()
    store.delete([file.path for file in store.list("") if file.path.startswith(prefix)])
    for path, data in files.items():
        store.put(path, data)


def remove_all(state: TopicState) -> TopicCommit:
    """The commit that retention writes when all files are old."""
    ends = {end_app_id(n): state.high_watermark(n) for n in range(len(state.partitions))}
    return TopicCommit(operation="DELETE EXPIRED", removes=tuple(state.by_path), txns=ends)
