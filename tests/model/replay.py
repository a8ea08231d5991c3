"""Runs the project's own log code as a process of a model: every call to the store is one step.

A process works in rounds, each a plain function (store, memory) -> memory. A round is run from its
start again and again, fed with the replies it has had so far, until it asks for something new: the
state of a process is its memory and a tuple of replies, small and hashable, and its code is the
real one. Time stands still between two replies; whatever time a request takes, or a process is
stopped for, passes before a reply is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from txnlog.errors import ObjectNotFoundError, StorageError, TxnLogError
from txnlog.process.latency import Latency
from txnlog.process.retries import Retries
from txnlog.storage.delta import actions, checkpoint_reader
from txnlog.storage.delta.actions import (
    Commit,
    CommitInfo,
    Txn,
    decode_commit,
    digest_of,
    encode_commit,
)
from txnlog.storage.delta.checkpoint_reader import read_checkpoint
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.store.objects import ObjectMeta, ObjectStore
from txnlog.storage.tables.schemas import create_actions

TABLE = "t"
LOST = "lost"
_COMMIT = re.compile(r".*/(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r".*/(\d{20})\.checkpoint\.parquet\Z")


class Content(NamedTuple):
    """A commit or a checkpoint: who wrote it, with which write id, and what its `txn`s name."""

    author: str
    write: int
    ids: tuple[str, ...]


CREATED = Content("", 0, ())


class Request(NamedTuple):
    """One call to the store; `what` is what a put writes."""

    verb: str
    path: str
    what: Content | int | None = None


class Reply(NamedTuple):
    """What the store said, and when the process continues with it, by its two clocks."""

    value: Hashable
    at_ms: int
    wall_ms: int = 0


class Pause(NamedTuple):
    """Where a process stands: its next request, or else what it remembers after the round.

    `shown` is what it has handed out or claimed in this round. Memory None: it has ended.
    """

    request: Request | None
    memory: Hashable
    shown: tuple[Hashable, ...]


class _PausedError(BaseException):
    def __init__(self, request: Request) -> None:
        self.request = request


class _Clock:
    boot_id = "model"

    def __init__(self, start: Reply) -> None:
        self.at_ms, self.wall_ms = start.at_ms, start.wall_ms

    def now_ms(self) -> int:
        return self.wall_ms

    def boot_ms(self) -> int:
        return self.at_ms

    def sleep_ms(self, duration_ms: float) -> None:
        """No time at all: a model has every other time for its reply anyway."""


class ReplayStore(ObjectStore):
    """What a process sees as its store; `is_local`: it is used as a local disk is."""

    is_local = False

    def __init__(
        self,
        name: str,
        round_number: int,
        start: Reply,
        replies: tuple[Reply, ...],
        parquet: dict[Content, bytes],
        *,
        is_local: bool = False,
    ) -> None:
        self.is_local = is_local
        self.url = "memory://"
        self._disk = None
        self._at_once = 1
        self.latency = Latency()
        self.clock = self._time = _Clock(start)
        self.retries = Retries(self.clock.boot_ms)
        # Write ids are random: here the author of a write, the round and its number in it.
        self._author = f"{name}{round_number}"
        self._replies = replies
        self._taken = 0
        self._parquet = parquet
        self._write_ids: list[str] = []
        self.shown: list[Hashable] = []

    def show(self, value: Hashable) -> None:
        """What the process hands out, or claims."""
        self.shown.append(value)

    def _ask(self, request: Request) -> Any:
        if self._taken == len(self._replies):
            raise _PausedError(request)
        reply = self._replies[self._taken]
        self._taken += 1
        self._time.at_ms, self._time.wall_ms = reply.at_ms, reply.wall_ms
        if reply.value == LOST:
            raise StorageError(f"{request.path}: no reply", path=request.path)
        return reply.value

    def get(self, path: str) -> bytes:
        value = self._ask(Request("get", path))
        if value is None:
            raise ObjectNotFoundError(f"{path}: no such object", path=path)
        if isinstance(value, int):
            return b'{"version":%d,"size":0}' % value
        if _CHECKPOINT.match(path):
            return self._parquet[value]
        return self._encoded(value)

    def get_many(self, paths: Any) -> list[bytes]:
        return [self.get(path) for path in paths]

    def exists(self, path: str) -> bool:
        return bool(self._ask(Request("head", path)))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return bool(self._ask(Request("put", path, self._decoded(data))))

    def put(self, path: str, data: Any) -> None:
        found = _CHECKPOINT.match(path)
        if found is None:
            self._ask(Request("put", path, msgspec.json.decode(data)["version"]))
            return
        version = int(found[1])
        probe = _OneObject(bytes(data))
        commit = read_checkpoint(probe, TABLE, version)
        ids = tuple(sorted(a.app_id for a in commit.actions if isinstance(a, Txn)))
        what = Content(f"checkpoint of {commit.digest}", version, ids)
        self._parquet.setdefault(what, bytes(data))
        self._ask(Request("put", path, what))

    def list(self, prefix: str, *, start_after: str | None = None) -> list[ObjectMeta]:
        listed: Iterable[tuple[str, int]] = self._ask(Request("list", start_after or ""))
        return [ObjectMeta(path, 0, at_ms) for path, at_ms in listed]

    def delete_in_order(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._ask(Request("delete", path))

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def _decoded(self, data: bytes) -> Content:
        commit = decode_commit(data, version=0, source="")
        if commit.info.write_id not in self._write_ids:
            self._write_ids.append(commit.info.write_id)
        ids = tuple(a.app_id for a in commit.actions if isinstance(a, Txn))
        return Content(self._author, self._write_ids.index(commit.info.write_id), ids)

    def _encoded(self, content: Content) -> bytes:
        write_id = f"{content.author}-{content.write}"
        if content.author == self._author:
            write_id = self._write_ids[content.write]
        info = CommitInfo(operation="WRITE", write_id=write_id)
        txns = [Txn(app_id, 0) for app_id in content.ids]
        if content != CREATED:
            return encode_commit(info, txns)
        created = create_actions(
            table_id="t", data_columns={"x": "long"}, partition_columns={}, config={}, created_ms=0
        )
        return encode_commit(info, created)


def _digest_of(data: bytes) -> str:
    """Of a commit's actions only: what names it is random, and here another for each reader."""
    return digest_of(data[data.index(b"\n") :])


class _OneObject(ObjectStore):
    """A store that holds one object, under every path."""

    def __init__(self, data: bytes) -> None:
        self.url = "memory://"
        self._data = data

    def get(self, path: str) -> bytes:
        return self._data


Round = Callable[[ReplayStore, Any], Hashable]


class Process:
    """One process; `pause` says where it stands after its replies."""

    def __init__(
        self,
        name: str,
        one_round: Round,
        parquet: dict[Content, bytes],
        *,
        is_local: bool = False,
    ) -> None:
        self.name = name
        self._is_local = is_local
        self._round = one_round
        self._parquet = parquet
        self._checkpoints: dict[bytes, Commit] = {}
        self._known: dict[tuple[Hashable, Reply, tuple[Reply, ...]], Pause] = {}

    def pause(self, memory: Hashable, start: Reply, replies: tuple[Reply, ...]) -> Pause:
        """Where it stands; `start` has the clocks at which the round begins."""
        key = (memory, start, replies)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._run(memory, start, replies)
        return known

    def _run(self, memory: Hashable, start: Reply, replies: tuple[Reply, ...]) -> Pause:
        number = memory[0] if isinstance(memory, tuple) and memory else 0
        store = ReplayStore(
            self.name,
            number,
            start,
            replies,
            self._parquet,
            is_local=self._is_local,
        )
        try:
            with (
                patch.object(checkpoint_reader, "read_checkpoint", self._read_checkpoint),
                patch.object(actions, "digest_of", _digest_of),
            ):
                after = self._round(store, memory)
        except _PausedError as paused:
            return Pause(paused.request, memory, tuple(store.shown))
        except TxnLogError as error:
            # A process may fail; what it has shown before must be right all the same. But not by a
            # bug: the search would continue without this process, and prove nothing.
            return Pause(None, None, (*store.shown, ("error", f"{type(error).__name__}: {error}")))
        return Pause(None, after, tuple(store.shown))

    def _read_checkpoint(self, store: ObjectStore, table: str, version: int) -> Commit:
        """The real function, asked once for each checkpoint: Parquet is the slowest part by far."""
        data = store.get(checkpoint_path(table, version))
        if data not in self._checkpoints:
            self._checkpoints[data] = read_checkpoint(_OneObject(data), table, version)
        return self._checkpoints[data]


def slot(path: str) -> tuple[str, int]:
    """("commit" or "checkpoint", version) of a log file's path, ("hint", 0) for the hint."""
    for kind, pattern in (("commit", _COMMIT), ("checkpoint", _CHECKPOINT)):
        found = pattern.match(path)
        if found is not None:
            return kind, int(found[1])
    return "hint", 0


def path_of(kind: str, version: int) -> str:
    """The other way round."""
    if kind == "hint":
        return f"{TABLE}/_delta_log/_last_checkpoint"
    return (commit_path if kind == "commit" else checkpoint_path)(TABLE, version)
