"""Whether staged files can still be committed: topics exist, vacuum cannot have deleted files."""

from __future__ import annotations

from collections.abc import Sequence

from txnlog.coordinator.root import Root
from txnlog.errors import StagedFileTooOldError
from txnlog.protocol.appends import check_topic_id
from txnlog.protocol.metadata import StagedBatch


def check_batches(root: Root, batches: Sequence[StagedBatch]) -> None:
    """Raise if a batch's topic is gone or its staged file is too old, before anything is written.

    Raises UnknownTopicIdError, StagedFileTooOldError.
    """
    check_ages(root, batches)
    for topic, topic_id in sorted({(batch.topic, batch.topic_id) for batch in batches}):
        log = root.topic_log(topic)
        log.refresh()
        check_topic_id(log.view, topic=topic, topic_id=topic_id)


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
