"""Whether staged files can still be committed: topics exist, vacuum cannot have deleted files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from txnlog.coordinator.root import Root
from txnlog.errors import StagedFileTooOldError, TxnLogError
from txnlog.process.failures import Failures, caught
from txnlog.protocol.appends import check_topic_id
from txnlog.protocol.metadata import StagedBatch


class Staging(NamedTuple):
    """Files of a commit that are still to be written: `write` does it, and returns them.

    After an error `write` is called again, and need not repeat what it has done.
    """

    topics: frozenset[str]
    write: Callable[[], Sequence[StagedBatch]]

    @classmethod
    def done(cls, batches: Sequence[StagedBatch]) -> Staging:
        """Files that are there already."""
        return cls(frozenset(batch.topic for batch in batches), lambda: batches)


def check_batches(root: Root, batches: Sequence[StagedBatch]) -> None:
    """Raise if a batch's topic is gone or its staged file is too old, before anything is written.

    Raises UnknownTopicIdError, StagedFileTooOldError.
    """
    check_read_batches(root, batches, read_topics(root, {batch.topic for batch in batches}))


TopicsRead = Mapping[str, TxnLogError | None]
"""Topic -> why it could not be read a moment ago; None for one that was read."""


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


def check_ages(root: Root, batches: Sequence[StagedBatch]) -> None:
    """Raise StagedFileTooOldError for a file that vacuum may delete before the commit (R72)."""
    if not batches:
        return
    oldest = min(batches, key=lambda batch: batch.staged_ms)
    topics = {batch.topic for batch in batches}
    age_ms = root.store_now_ms(topics) - oldest.staged_ms
    vacuum_age_ms = root.vacuum_age_ms(topics)
    if age_ms > vacuum_age_ms // 2:
        raise StagedFileTooOldError(
            f"{oldest.topic}/{oldest.path} was staged {age_ms // 1000} s ago, more than half "
            f"of the vacuum age ({vacuum_age_ms // 1000} s), and may be deleted. Abort, and "
            "write the data again.",
            path=oldest.path,
        )
