"""A repair in its folder `__repaired-<time>`: prepared, decided by one file, then brought in place.

    <folder>/prepared/<path>   new log files, as they will be
    <folder>/plan.json         decided: what to do with them; before it, nothing has changed
    <folder>/cut/<path>        what the repair took away
    <folder>/finished          all is done

Each step may be repeated: a process that dies anywhere is followed by another one, which does the
same again. Names that begin with `__` are no topics, so nobody else reads the folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from txnlog.errors import ConcurrentTransactionsError, CorruptLogError, ObjectNotFoundError
from txnlog.process.failpoint import reach
from txnlog.protocol.repair.losses import RepairReport
from txnlog.storage.delta.checkpoint_reader import read_checkpoint
from txnlog.storage.delta.log_files import checkpoint_path, commit_path, sort_files
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.forced_deletion import delete_unreadable

MOVED_AT_ONCE = 256
_FOLDER = re.compile(r"__repaired-[0-9TZ]+\Z")
_OnStep = Callable[[str, int, int], None]


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """A table that gets a commit of this version. `is_new_log`: with a checkpoint, in place of all
    that is there.
    """

    table: str
    version: int
    is_new_log: bool


class JournalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided: `tables` change in this order; then `deleted` topics, which nobody can read,
    and `lost_files`, which no log names any more, go.
    """

    tables: tuple[TableChange, ...]
    deleted: tuple[str, ...]
    lost_files: tuple[str, ...]
    report: RepairReport


class Journal:
    """One repair's folder."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self.folder = folder
        self._store = store

    @classmethod
    def find_interrupted(cls, store: ObjectStore) -> Journal | None:
        """The repair that was decided and not finished, if there is one."""
        for name in filter(_FOLDER.match, sorted(store.list_folders())):
            if store.exists(f"{name}/plan.json") and not store.exists(f"{name}/finished"):
                return cls(store, name)
        return None

    def prepare(self, path: str, data: bytes) -> None:
        """Write a new log file, which nobody reads yet."""
        self._put(f"prepared/{path}", data)

    def decide(self, plan: JournalPlan) -> None:
        """From here on the repair will be finished, by this process or another one."""
        reach("repair.prepared")
        self._put("plan.json", msgspec.json.encode(plan))
        reach("repair.decided")

    def finish(self, on_step: _OnStep) -> RepairReport:
        """Bring everything in place. Raises ConcurrentTransactionsError if a client has written to
        a table since: then the repair is given up, and another one begins anew; CorruptLogError if
        the plan cannot be read.
        """
        plan = self._plan()
        parts: list[TableChange | str] = [*plan.tables, *plan.deleted]
        for done, part in enumerate(parts):
            on_step(part if isinstance(part, str) else part.table, done, len(parts))
            if isinstance(part, str):
                self._delete(part)
            elif part.is_new_log:
                self._replace(part)
            else:
                self._append(part)
            reach("repair.part")
        self._take_away(plan.lost_files)
        self._put("finished", b"")
        reach("repair.finished")
        return msgspec.structs.replace(plan.report, is_done=True)

    def _plan(self) -> JournalPlan:
        path = f"{self.folder}/plan.json"
        try:
            return msgspec.json.decode(self._store.get(path), type=JournalPlan)
        except msgspec.DecodeError as error:
            raise CorruptLogError(
                f"{self._store.url}/{path}: the plan of an interrupted repair cannot be read "
                f"({error}). Delete this file, and repair again: what was done of it stays, and "
                f"what it took away is in {self.folder}/cut."
            ) from error

    def _append(self, change: TableChange) -> None:
        """The commit decides who has the version: of two repairs at once, too."""
        path = commit_path(change.table, change.version)
        data = self._prepared(path)
        if not self._store.put_if_absent(path, data) and self._store.get(path) != data:
            self._put("finished", b"given up")
            raise ConcurrentTransactionsError(
                f"{self._store.url}/{change.table}: another process has written to this table "
                "while it was repaired. Stop all clients, and repair again.",
                tables=[change.table],
            )

    def _replace(self, change: TableChange) -> None:
        """The checkpoint makes the log readable, without anything before it."""
        table, version = change.table, change.version
        self._store.make_folder(f"{table}/_delta_log")
        self._append(change)
        reach("repair.commit")
        for path in checkpoint_path(table, version), f"{table}/_delta_log/_last_checkpoint":
            self._store.put(path, self._prepared(path))
            reach("repair.checkpoint")
        self._clear(table, version)

    def _delete(self, topic: str) -> None:
        """No checkpoint of it could be read: one that can is that of its deletion."""
        files = sort_files(topic, self._store.list(f"{topic}/_delta_log"))
        version = files.newest_checkpoint or -1
        try:
            read_checkpoint(self._store, topic, version)
        except (CorruptLogError, ObjectNotFoundError):
            version = delete_unreadable(self._store, topic)
        self._clear(topic, version)

    def _clear(self, table: str, version: int) -> None:
        """Take away the log files below a version."""
        files = sort_files(table, self._store.list(f"{table}/_delta_log"))
        paths = [commit_path(table, one) for one in files.commits if one < version]
        paths += [checkpoint_path(table, one) for one in files.checkpoints if one < version]
        self._take_away(paths)

    def _take_away(self, paths: Sequence[str]) -> None:
        for folder in sorted({path.rpartition("/")[0] for path in paths}):
            self._store.make_folder(f"{self.folder}/cut/{folder}")
        for at in range(0, len(paths), MOVED_AT_ONCE):
            some = paths[at : at + MOVED_AT_ONCE]
            moves = [partial(self._store.move, one, f"{self.folder}/cut/{one}") for one in some]
            self._store.together(moves)
            reach("repair.moved")

    def _prepared(self, path: str) -> bytes:
        return self._store.get(f"{self.folder}/prepared/{path}")

    def _put(self, name: str, data: bytes) -> None:
        path = f"{self.folder}/{name}"
        self._store.make_folder(path.rpartition("/")[0])
        self._store.put(path, data)
