"""Whether staged files can still be committed: topics exist, vacuum cannot have deleted files; and
whether they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from txnlog.coordinator.root import Root
from txnlog.coordinator.tables import TableChange
from txnlog.errors import (
    RESTORE_ALL,
    LogGapError,
    ObjectNotFoundError,
    StagedFileTooOldError,
    StorePermissionError,
    TxnLogError,
)
from txnlog.process.failures import Failures, caught
from txnlog.protocol.appends import check_topic_id
from txnlog.protocol.enlisted.features import FILE_RETENTION
from txnlog.protocol.expiry import CLOCK_ERROR_MS
from txnlog.protocol.metadata import StagedBatch, StagedTable
from txnlog.protocol.vacuum import file_retention_ms
from txnlog.storage.delta.tombstones import read_tombstones
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.topic_log import TopicLog

TopicsRead = Mapping[str, TxnLogError | None]
"""Topic -> why it could not be read a moment ago; None for one that was read."""


class Staging(NamedTuple):
    """Files of a commit that are still to be written: `write` does it, and returns them.

    After an error `write` is called again, and need not repeat what it has done. `tables` are the
    changes of tables of others; their part files are written beside. `read` are all topics, if they
    and the shards of the id and its groups were just read.
    """

    topics: frozenset[str]
    write: Callable[[], Sequence[StagedBatch]]
    tables: tuple[TableChange, ...] = ()
    read: TopicsRead | None = None

    @classmethod
    def done(cls, batches: Sequence[StagedBatch]) -> Staging:
        """Files that are there already."""
        return cls(frozenset(batch.topic for batch in batches), lambda: batches)


def check_batches(root: Root, batches: Sequence[StagedBatch]) -> None:
    """Raise if a batch's topic is gone or its staged file is too old, before anything is written.

    Raises UnknownTopicIdError, StagedFileTooOldError.
    """
    check_read_batches(root, batches, read_topics(root, {batch.topic for batch in batches}))


def read_topics(root: Root, topics: Iterable[str]) -> TopicsRead:
    """Tail the logs of topics together."""
    logs = [root.topic_log(topic) for topic in sorted(topics)]
    read = root.store.together([partial(caught, log.get_ready) for log in logs])
    return {log.name: error for log, error in zip(logs, read, strict=True)}


def check_read_batches(root: Root, batches: Sequence[StagedBatch], read: TopicsRead) -> None:
    """`check_batches` of topics that `read_topics` has just read; raises their errors, too."""
    check_ages(root, batches)
    failures = Failures("Checking the topics of the transaction", logging.DEBUG)
    for topic, topic_id in sorted({(batch.topic, batch.topic_id) for batch in batches}):
        with failures.of(f"topic {topic!r}"):
            error = read[topic]
            if error is not None:
                raise error
            check_topic_id(root.topic_log(topic).view, topic=topic, topic_id=topic_id)
    failures.check()


def check_ages(
    root: Root, batches: Sequence[StagedBatch], tables: Sequence[StagedTable] = ()
) -> None:
    """Raise StagedFileTooOldError for a file that vacuum may delete before the commit (R72), or, in
    a table's own folders, that of other tools (D146).
    """
    staged = [(batch.staged_ms, f"{batch.topic}/{batch.path}") for batch in batches]
    staged += [(table.staged_ms, f"{table.url}/{table.part}") for table in tables]
    if not staged:
        return
    staged_ms, path = min(staged)
    topics = {batch.topic for batch in batches}
    now_ms = root.store_now_ms(topics)
    ages = [(now_ms - staged_ms, path, "the vacuum age", root.vacuum_age_ms(topics))]
    for table in tables:
        if table.staging == "visible":
            kept_ms = _file_retention_ms(root, table)
            ages.append((now_ms - table.staged_ms, table.url, FILE_RETENTION, kept_ms))
    for age_ms, path, what, kept_ms in ages:
        if age_ms > kept_ms // 2:
            raise StagedFileTooOldError(
                f"{path} was staged {age_ms // 1000} s ago, more than half of {what} "
                f"({kept_ms // 1000} s), and may be deleted. Abort, and write the data again.",
                path=path,
            )


def _file_retention_ms(root: Root, table: StagedTable) -> int:
    """How long other tools leave files that no commit names, as last read."""
    log = root.table_log(table.url)
    if log.state.version < 0:
        log.refresh()
    return int(log.kept_ms(FILE_RETENTION) or 0)


def check_there(store: ObjectStore, batches: Sequence[StagedBatch], transactional_id: str) -> None:
    """Raise LogGapError if a file is gone that was prepared or decided, perhaps long ago: a topic's
    folder was restored alone.
    """

    def check(batch: StagedBatch) -> None:
        path = f"{batch.topic}/{batch.path}"
        try:
            is_there = store.head(path).size_bytes == batch.size_bytes
        except (ObjectNotFoundError, StorePermissionError):
            # S3 says so of a missing object, too, without permission to list.
            is_there = False
        if not is_there:
            raise LogGapError(
                f"{path}, which the transaction of {transactional_id!r} has written, is missing, "
                "is another file, or may not be read: nothing was committed there now. "
                f"{RESTORE_ALL} Without one: `txnlog repair`.",
                transactional_id=transactional_id,
                topic=batch.topic,
                path=path,
            )

    store.together([partial(check, batch) for batch in batches])


def check_published(
    log: TopicLog,
    batches: Sequence[StagedBatch],
    transactional_id: str,
    *,
    decided_ms: int = -1,
) -> None:
    """Raise LogGapError unless the topic had these files of a decided transaction.

    It has the marker of that transaction, or a later one, and the files are not live (D131). What
    was removed is known for the table's retention: files that were staged, and if that is given
    decided, before that pass. `decided_ms` is by the wall clock of the decider, which may be ahead.
    """
    metadata = log.log.metadata
    kept_ms = file_retention_ms({} if metadata is None else metadata.configuration)
    # A vacuum of before may have known them for less.
    kept_ms = min(kept_ms, log.view.txns.vacuum_age_ms)
    now_ms = log.store.now_ms()
    since_ms = now_ms - kept_ms + CLOCK_ERROR_MS
    if decided_ms > now_ms + CLOCK_ERROR_MS:
        decided_ms = -1
    young = {batch.path for batch in batches if max(batch.staged_ms, decided_ms) > since_ms}
    if not young:
        return
    lost = young - read_tombstones(log.store, log.path, version=log.log.version).keys()
    if lost:
        raise LogGapError(
            f"Topic {log.name!r} has the marker of a transaction that {transactional_id!r} has "
            f"decided, or of a later one, but never had its file {min(lost)!r}: the newest commits "
            "of its state row, or of __cluster, are lost, as after a restore of one table alone. "
            f"The records of the transaction are in this file, and in no topic. {RESTORE_ALL}",
            transactional_id=transactional_id,
            topic=log.name,
            path=min(lost),
        )
