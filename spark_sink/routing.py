"""Which topic and partition each row of a task goes to, and whether the topic accepts it.

A lane is the small integer that stands for one topic-partition within a task, so that rows are
routed and sorted by integers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spark_sink.rows import Rows
from txnlog.errors import (
    InvalidRecordError,
    InvalidTopicError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from txnlog.process import arrow_compute as pc
from txnlog.protocol.partitioner import partition_for_keys, sticky_partitions
from txnlog.protocol.topics import check_topic_name
from txnlog.settings.topic_configs import config_value, is_compacted

# Rows without key and partition go to one partition for this many bytes, then to the next one.
STICKY_RUN_BYTES = 1 << 20

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class Topic(Protocol):
    """The part of txnlog.storage.tables.topic_log.TopicLog that the sink uses."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def config(self) -> Mapping[str, str]: ...
    @property
    def path(self) -> str: ...


class Topics(Protocol):
    """The part of txnlog.cluster.Cluster that finds topics."""

    def find_or_create_topic(
        self, name: str, *, auto_create: bool, partitions: int | None = None
    ) -> Topic: ...


@dataclass(slots=True)
class RoutedTopic:
    """A topic this task writes to; `sticky_bytes` counts the bytes of its rows without a key."""

    log: Topic
    partitions: int
    message_bytes_max: int
    needs_key: bool
    first_lane: int
    sticky_seed: int
    sticky_bytes: int = 0


class Router:
    """Assigns each row its lane: `topic.first_lane + partition`.

    The topic comes from the option, else the column; the partition from the column, else from
    Kafka's hash of the key, else from the sticky partitioner. With `auto_create` missing topics
    are created.
    """

    def __init__(
        self,
        topics: Topics,
        *,
        topic: str | None,
        auto_create: bool,
        partitions: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._cluster_topics = topics
        self._option = topic
        self._auto_create = auto_create
        self._partitions_of_new = partitions
        self._random = random.Random(seed)
        self._index_by_name: dict[str, int] = {}
        self._topics: list[RoutedTopic] = []
        self._lanes = 0

    def lanes(self, rows: Rows, sizes: Int64s) -> Int32s:
        """The lane of each row; `sizes` holds the bytes of each record.

        Raises RecordTooLargeError, InvalidRecordError naming the row, InvalidTopicError,
        UnknownTopicOrPartitionError.
        """
        count = rows.records.num_rows
        indexes = self._topic_indexes(rows)
        used = np.unique(indexes) if isinstance(indexes, np.ndarray) else np.array([indexes])
        partitions = np.full(count, -1, dtype=np.int32)
        if rows.partitions is not None:
            partitions[:] = rows.partitions
        first_lanes = np.empty(count, dtype=np.int32)
        for index in used:
            topic = self._topics[index]
            of = slice(None) if len(used) == 1 else np.flatnonzero(indexes == index)
            self._check(rows, sizes[of], partitions[of], topic, of)
            first_lanes[of] = topic.first_lane
        if partitions.size and partitions.min() < 0:
            self._hash_keys(rows, indexes, used, partitions)
            self._stick(sizes, indexes, used, partitions)
        first_lanes += partitions
        return first_lanes

    def topic_partition(self, lane: int) -> tuple[Topic, int]:
        """The topic and partition of a lane."""
        for topic in reversed(self._topics):
            if lane >= topic.first_lane:
                return topic.log, lane - topic.first_lane
        raise IndexError(lane)

    def _topic_indexes(self, rows: Rows) -> npt.NDArray[np.int32] | int:
        """The index of each row's topic in `_topics`, or one index for all rows."""
        if rows.topics is None:
            assert self._option is not None
            return self._index_of(check_topic_name(self._option))
        encoded = pc.dictionary_encode(rows.topics)
        names = encoded.dictionary.to_pylist()
        try:
            # Check all names before a topic is created for one of them.
            for name in names:
                check_topic_name(name)
            index_of_name = [self._index_of(name) for name in names]
        except (InvalidTopicError, UnknownTopicOrPartitionError) as error:
            code = names.index(error.topic)
            row = rows.first_row + int(pc.index(encoded.indices, code).as_py())
            message = f"Row {row} of this task, column topic: {error.message}"
            raise error.replace(message, row=row) from error
        if len(index_of_name) == 1:
            return index_of_name[0]
        by_code = np.array(index_of_name, dtype=np.int32)
        indexes: npt.NDArray[np.int32] = by_code[encoded.indices.to_numpy()]
        return indexes

    def _index_of(self, name: str) -> int:
        index = self._index_by_name.get(name)
        if index is None:
            log = self._cluster_topics.find_or_create_topic(
                name, auto_create=self._auto_create, partitions=self._partitions_of_new
            )
            index = self._index_by_name[name] = len(self._topics)
            self._topics.append(
                RoutedTopic(
                    log=log,
                    partitions=log.partitions,
                    message_bytes_max=config_value(log.config, "max.message.bytes"),
                    needs_key=is_compacted(log.config),
                    first_lane=self._lanes,
                    sticky_seed=self._random.randrange(1 << 30),
                )
            )
            self._lanes += log.partitions
        return index

    def _check(
        self,
        rows: Rows,
        sizes: Int64s,
        partitions: Int32s,
        topic: RoutedTopic,
        of: slice | npt.NDArray[np.int64],
    ) -> None:
        """Raise for records above max.message.bytes (R65), without key, of a wrong partition."""

        def row_of(bad: npt.NDArray[np.bool_]) -> tuple[int, int]:
            at = int(np.argmax(bad))
            return at, rows.first_row + (at if isinstance(of, slice) else int(of[at]))

        if sizes.size and sizes.max() > topic.message_bytes_max:
            at, row = row_of(sizes > topic.message_bytes_max)
            raise RecordTooLargeError(
                f"Row {row} of this task: a record of {sizes[at]} bytes is larger than "
                f"max.message.bytes = {topic.message_bytes_max} of topic {topic.log.name}. "
                "Nothing of this batch is published. Split the record, or raise the topic's "
                "setting.",
                row=row,
                topic=topic.log.name,
                size_bytes=int(sizes[at]),
                size_bytes_max=topic.message_bytes_max,
            )
        keys = rows.records.column("key")
        if topic.needs_key and keys.null_count:
            keyless = keys.is_null().to_numpy(zero_copy_only=False)[of]
            if keyless.any():
                _, row = row_of(keyless)
                raise InvalidRecordError(
                    f"Row {row} of this task has no key, and topic {topic.log.name} keeps the "
                    "newest record of each key (cleanup.policy=compact). Nothing of this batch is "
                    "published. Give the row a key, or leave it out.",
                    row=row,
                    topic=topic.log.name,
                )
        if partitions.size and partitions.max() >= topic.partitions:
            at, row = row_of(partitions >= topic.partitions)
            raise InvalidRecordError(
                f"Row {row} of this task: partition {partitions[at]} does not exist, topic "
                f"{topic.log.name} has {topic.partitions} partitions, 0 to "
                f"{topic.partitions - 1}. Correct the column partition, or leave it null to "
                "partition by key.",
                row=row,
                topic=topic.log.name,
                partition=int(partitions[at]),
                partitions=topic.partitions,
            )

    def _hash_keys(
        self,
        rows: Rows,
        indexes: npt.NDArray[np.int32] | int,
        used: npt.NDArray[np.int32],
        partitions: Int32s,
    ) -> None:
        """Fill in partitions by key; -1 remains where the key is null."""
        keys = rows.records.column("key")
        if keys.null_count == len(keys):
            return
        counts = np.array([topic.partitions for topic in self._topics])
        for count in np.unique(counts[used]):
            hashed = partition_for_keys(keys, int(count))
            unassigned = partitions < 0
            if isinstance(indexes, np.ndarray):
                unassigned &= counts[indexes] == count
            np.copyto(partitions, hashed, where=unassigned)

    def _stick(
        self,
        sizes: Int64s,
        indexes: npt.NDArray[np.int32] | int,
        used: npt.NDArray[np.int32],
        partitions: Int32s,
    ) -> None:
        """Assign rows without key and partition in runs of STICKY_RUN_BYTES per partition."""
        unassigned = np.flatnonzero(partitions < 0)
        if unassigned.size == 0:
            return
        for index in used:
            topic = self._topics[index]
            of_topic = unassigned
            if isinstance(indexes, np.ndarray):
                of_topic = unassigned[indexes[unassigned] == index]
            if of_topic.size == 0:
                continue
            partitions[of_topic], topic.sticky_bytes = sticky_partitions(
                sizes[of_topic],
                seed=topic.sticky_seed,
                partitions=topic.partitions,
                sent_bytes=topic.sticky_bytes,
                run_bytes=STICKY_RUN_BYTES,
            )
