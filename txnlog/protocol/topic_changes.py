"""Decisions of operators about a topic's records.

Mirrors maybeIncrementLogStartOffset of Kafka's UnifiedLog.
"""

from __future__ import annotations

from collections.abc import Mapping

from txnlog.errors import OffsetOutOfRangeError
from txnlog.protocol.appends import check_partition
from txnlog.protocol.topics import TopicCommit, TopicState, start_app_id


def prepare_delete_records(
    state: TopicState, *, topic: str, before: Mapping[int, int]
) -> TopicCommit | None:
    """Move log starts up to `before` (partition -> offset, -1: the end); None if nothing moves.

    A log start never moves down. Retention removes the files below it.
    Raises UnknownTopicOrPartitionError, and OffsetOutOfRangeError for an offset above the end.
    """
    moves = {}
    for partition, asked in before.items():
        check_partition(state, topic=topic, partition=partition)
        end = state.high_watermark(partition)
        offset = end if asked == -1 else asked
        if not 0 <= offset <= end:
            raise OffsetOutOfRangeError(
                f"Records of {topic!r} partition {partition} can be deleted up to offset {end}, "
                f"the end, not up to {asked}. Use -1 for all of them.",
                topic=topic,
                partition=partition,
                end_offset=end,
            )
        if offset > state.log_start_offset(partition):
            moves[start_app_id(partition)] = offset
    return TopicCommit(operation="DELETE RECORDS", txns=moves) if moves else None
