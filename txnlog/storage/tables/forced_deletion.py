"""Deleting a topic whose log cannot be read: a commit above the damage, and a checkpoint of it.

The log is not removed, since a log never restarts (D12): a process with the log in memory would put
its next commit into an empty folder. Readers start at the newest checkpoint, so a checkpoint
without predecessors hides all damage below it.

    before the commit      nothing happened
    after the commit       processes that had the log in memory see the topic deleted; for others it
                           is damaged as before: deleting again writes the checkpoint
    after the checkpoint   deleted; the files stay for as long as those of any deleted topic
    a lost reply           deleting again changes nothing

Something else than a folder in the place of the log is renamed, and the deletion then is version
UNKNOWN_VERSIONS of a new log.

If another process's commit takes the slot first, all is read again, and its data is deleted, too.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from txnlog.errors import ForeignTableError, StorageError, TxnLogError
from txnlog.process.clock import OPERATION_ATTEMPTS_MAX
from txnlog.protocol.batches import HEADER_COLUMNS
from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.protocol.topics import END_PREFIX, end_app_id
from txnlog.protocol.txn_memory import VACUUM_AGE
from txnlog.storage.delta.actions import (
    ENGINE,
    Action,
    Add,
    Adds,
    Commit,
    CommitInfo,
    Metadata,
    Protocol,
    Remove,
    Txn,
    decode_commit,
    encode_commit,
)
from txnlog.storage.delta.checkpoint_computation import compute_checkpoint
from txnlog.storage.delta.checkpoint_reader import read_checkpoint
from txnlog.storage.delta.log_files import LogFiles, checkpoint_path, commit_path, sort_files
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.schemas import CONFIG_PREFIX, config_of, create_actions
from txnlog.storage.tables.topic_log import DATA_COLUMNS, HOME

UNKNOWN_RECORDS = 10**12
"""Ends are raised by this many offsets, for records in damaged files of the log."""

UNKNOWN_VERSIONS = 10**12
"""The version of the deletion where nothing of the log is left: above each that it may have had, so
that no process that has it in memory takes the new log for its own."""

_END_MAX = 1 << 62
_DAMAGE = (ValueError, KeyError, TypeError, IndexError, OverflowError)
_OPERATION = "DELETE TOPIC"
_DATA_FILE = re.compile(r"part-(\d{1,6})-[0-9a-f-]{32,36}\.parquet\Z")


@dataclass(slots=True)
class _Salvage:
    """The readable part of a log, in any order: an end is the largest offset read."""

    metadata: Metadata | None = None
    ends: dict[int, int] = field(default_factory=dict)
    vacuum_age_ms: int | None = None

    def add(self, commit: Commit) -> None:
        """Add a commit's actions, except those that cannot be parsed: they are the damage."""
        for action in commit.actions:
            with suppress(TxnLogError, *_DAMAGE):
                self._add_action(action)

    def _add_action(self, action: Action) -> None:
        if isinstance(action, Metadata):
            self.metadata = action
        elif isinstance(action, Txn):
            self._add_txn(action)
        elif isinstance(action, Add):
            values = action.partition_values
            partition, last_offset = values["partition"] or "", values["last_offset"] or ""
            self._see_end(int(partition), int(last_offset) + 1)
        elif isinstance(action, Adds):
            partitions = action.values["partition"].cast(pa.int64()).to_numpy()
            last_offsets = action.values["last_offset"].cast(pa.int64()).to_numpy()
            for number in np.unique(partitions):
                self._see_end(int(number), int(last_offsets[partitions == number].max()) + 1)

    def _see_end(self, partition: int, end: int) -> None:
        if 0 <= partition < PARTITIONS_MAX and 0 <= end < _END_MAX:
            self.ends[partition] = max(end, self.ends.get(partition, 0))

    def _add_txn(self, txn: Txn) -> None:
        prefix, slash, number = txn.app_id.rpartition("/")
        if prefix + slash == END_PREFIX and number.isdigit():
            self._see_end(int(number), txn.version)
        elif txn.app_id == VACUUM_AGE:
            known = self.vacuum_age_ms
            self.vacuum_age_ms = txn.version if known is None else min(known, txn.version)


def delete_unreadable(store: ObjectStore, topic: str) -> int:
    """Delete a topic without reading its whole log; returns the version of the deletion.

    The readable part of the log gives the ends, which are raised by UNKNOWN_RECORDS for the rest.
    Raises ForeignTableError if the readable part is another tool's, StorageError (retriable).
    """
    store.set_aside(f"{topic}/_delta_log")
    store.make_folder(f"{topic}/_delta_log")
    for _ in range(OPERATION_ATTEMPTS_MAX):
        # Without the check for holes, which are damage, too.
        files = sort_files(topic, store.list(f"{topic}/_delta_log"))
        newest = max([*files.commits, *files.checkpoints], default=UNKNOWN_VERSIONS - 1)
        commit = _deletion(store, topic, newest) if newest in files.commits else None
        if commit is None:
            actions = _actions(store, topic, _salvage(store, topic, files))
            commit = _commit(store, topic, newest + 1, actions)
        if commit is not None:
            version = commit.version
            parquet, hint = compute_checkpoint(
                None,
                [commit],
                store.now_ms,
                name=checkpoint_path(topic, version).rpartition("/")[2],
                note=commit.digest.encode(),
            )
            store.put(checkpoint_path(topic, version), parquet)
            hint_json = msgspec.json.encode({**hint, "version": version})
            store.put(f"{topic}/_delta_log/_last_checkpoint", hint_json)
            return version
    raise StorageError(
        f"{store.url}/{topic}: other processes keep writing to this topic; stop them, then delete "
        "it again.",
        topic=topic,
    )


def _deletion(store: ObjectStore, topic: str, version: int) -> Commit | None:
    """The newest commit, if it is that of a process that died before its checkpoint.

    Another one would raise the ends again. Only a deletion by force has the whole table.
    """
    path = commit_path(topic, version)
    with _skipping_damage():
        found = decode_commit(store.get(path), version=version, source=path)
        is_whole = any(isinstance(action, Protocol) for action in found.actions)
        return found if found.info.operation == _OPERATION and is_whole else None
    return None


def _commit(store: ObjectStore, topic: str, version: int, actions: list[Action]) -> Commit | None:
    """Our commit; None: another process has the slot.

    It names no previous commit, which may be damaged.
    """
    path = commit_path(topic, version)
    write_id = os.urandom(16).hex()
    info = CommitInfo(store.clock.now_ms(), _OPERATION, ENGINE, write_id=write_id)
    data = encode_commit(info, actions)
    # "Exists" may be the reply to our own put.
    is_ours = store.put_if_absent(path, data) or store.get(path) == data
    return decode_commit(data, version=version, source=path) if is_ours else None


def _salvage(store: ObjectStore, topic: str, files: LogFiles) -> _Salvage:
    """Everything readable, in version order. Raises StorageError, which is no damage."""
    found = _Salvage()
    for version in sorted({*files.commits, *files.checkpoints}):
        if version in files.checkpoints:
            with _skipping_damage():
                found.add(read_checkpoint(store, topic, version))
        if version in files.commits:
            path = commit_path(topic, version)
            with _skipping_damage():
                found.add(decode_commit(store.get(path), version=version, source=path))
    if found.metadata is not None and f"{CONFIG_PREFIX}partitions" not in (
        found.metadata.configuration
    ):
        raise ForeignTableError(
            f"{store.url}/{topic} is a Delta table of another tool; txnlog does not delete it.",
            table=topic,
        )
    return found


@contextmanager
def _skipping_damage() -> Iterator[None]:
    try:
        yield
    except StorageError:
        # An unavailable store is no damage.
        raise
    except (TxnLogError, *_DAMAGE):
        return


def _actions(store: ObjectStore, topic: str, found: _Salvage) -> list[Action]:
    """The deleted topic as a new table: no files, ends above all former offsets."""
    now_ms = store.now_ms()
    names = [item.path[len(topic) + 1 :] for item in store.list_files(topic)]
    files = [match for match in map(_DATA_FILE.match, names) if match is not None]
    config = {} if found.metadata is None else config_of(found.metadata)
    # What is deleted may be the log of another topic.
    config.pop(HOME, None)
    count = config.get("partitions", "")
    counts = [int(count) if count.isdigit() else 1, *(number + 1 for number in found.ends)]
    counts += [int(file[1]) + 1 for file in files]
    partitions = min(max(counts), PARTITIONS_MAX)
    topic_id = str(uuid.uuid4()) if found.metadata is None else found.metadata.id
    actions = create_actions(
        table_id=topic_id,
        data_columns=DATA_COLUMNS,
        partition_columns=HEADER_COLUMNS,
        config={**config, "partitions": str(partitions), "deleted": "true"},
        created_ms=now_ms,
    )
    actions += [
        Txn(end_app_id(number), found.ends.get(number, 0) + UNKNOWN_RECORDS, now_ms)
        for number in range(partitions)
    ]
    if found.vacuum_age_ms is not None:
        actions.append(Txn(VACUUM_AGE, found.vacuum_age_ms, now_ms))
    actions += [Remove(file[0], now_ms, data_change=True) for file in files]
    return actions
