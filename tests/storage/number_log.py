"""A log of numbers for the tests of DeltaLog: version n writes number n of app "n"."""

from __future__ import annotations

from collections.abc import Sequence

from txnlog.storage.delta.actions import Action, Commit, CommitInfo, Txn, encode_commit
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import (
    Committed,
    Conflict,
    DeltaLog,
    LogSettings,
    Unknown,
)
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.table_protocol import PROTOCOL
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.schemas import metadata_action
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory

TABLE = "orders"
OFF = LogSettings(checkpoint_mode="off")
HOUR_MS = 3_600_000


class History:
    """A View that keeps the numbers written, in order; a checkpoint has the newest only."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.numbers: dict[str, int] = {}

    def parse(self, commit: Commit) -> Commit:
        return commit

    def apply(self, commit: Commit) -> None:
        for action in commit.actions:
            if isinstance(action, Txn):
                self.numbers[action.app_id] = action.version


def opened(store: ObjectStore, settings: LogSettings = OFF) -> tuple[DeltaLog, History]:
    view = History()
    log = DeltaLog(store, TABLE, view, settings=settings)
    log.refresh()
    return log, view


def created(store: ObjectStore, commits: int = 0, settings: LogSettings = OFF) -> DeltaLog:
    """A new log with versions 0 to `commits`; version n writes number n of app "n"."""
    log, _ = opened(store, settings)
    metadata = metadata_action("id", {"value": "long"}, {}, {}, 0)
    assert isinstance(log.commit([PROTOCOL, metadata], operation="CREATE"), Committed)
    for number in range(1, commits + 1):
        assert isinstance(write(log, number), Committed)
    return log


def write(log: DeltaLog, number: int) -> Committed | Conflict | Unknown:
    return log.commit([Txn(f"{number}", number)], operation="WRITE")


def plant(log: DeltaLog, actions: Sequence[Action]) -> None:
    """Write what `commit` refuses into the next slot, as another tool would."""
    path = commit_path(log.path, log.version + 1)
    log.store.put(path, encode_commit(CommitInfo(operation="PLANTED"), actions))


def slots(store: ObjectStore) -> list[str]:
    return sorted(m.path.rsplit("/", 1)[-1] for m in store.list(f"{TABLE}/_delta_log"))


def faulty(faults: dict[int, Fault]) -> tuple[SharedMemory, DeltaLog]:
    """A log on a store with these faults; calls are counted from now on."""
    shared = SharedMemory()
    created(shared.open())
    store = shared.open()
    log, _ = opened(store)
    store.plan = FaultsAt(faults)
    return shared, log


def checkpoint(store: ObjectStore) -> int:
    return create_checkpoint(store, TABLE, trust_ms=OFF.trust_ms)
